{#
The ternary product for at most `rows` rows: y[t, n] (= or +=) Σ_k x[t, k] * w[n, k] / scales[t] * row_scales[n].

Buffers as in linear_gemm.wgsl; x i8 [T, K] (`exact`: integer dot products and sums) or f32 [T, K] without scales.
Work: a workgroup of 64 threads makes 4 outputs n of all rows; 16 threads share an output, each takes every 16th word
of its codes, and reads a word once for all rows. Variant `rows`: 1, 2, 4 or 8, at least T. Grid: ceil(N / 4).
#}
{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("T: u32", "N: u32", "K: u32", "accumulate: u32") }}
{{ binding("x", "array<u32>" if exact else "array<vec4<f32>>") }}
{{ binding("words", "array<u32>") }}
{{ binding("row_scales", "array<f32>") }}
{{ binding("y", "array<f32>") }}
{% if exact %}
{{ binding("scales", "array<f32>") }}
{% endif %}
{% set number = "i32" if exact else "f32" %}
{{ prelude.functions() }}
var<workgroup> partial: array<{{ number }}, {{ rows * 64 }}>;
{{ prelude.main(64) }}
    let first = workgroup_1d(wg, grid) * 4u;
    let n = first + li / 16u;
    let row_words = (params.K + 15u) / 16u;
    let row_quads = params.K / 4u;
{% for t in range(rows) %}
    var acc{{ t }} = {{ number }}(0);
    let x{{ t }} = {{ "min(%du, params.T - 1u)" % t }} * row_quads;
{% endfor %}
    for (var i = li % 16u; n < params.N && i < row_words; i += 16u) {
        let word = words[n * row_words + i];
{% for j in range(4) %}
        // Columns 4j … 4j + 3 as bytes -1, 0, 1: 0x7f, 0x80, 0x81 with the sign bit turned.
        let w{{ j }} = ((((word >> {{ 2 * j }}u) & 0x03030303u) | 0x80808080u) - 0x01010101u) ^ 0x80808080u;
{% if exact %}
        // Past the last column the codes are those of zero, so what is read there from x does not count.
{% for t in range(rows) %}
        acc{{ t }} += dot4I8Packed(w{{ j }}, x[x{{ t }} + i * 4u + {{ j }}u]);
{% endfor %}
{% else %}
        if (i * 4u + {{ j }}u < row_quads) {
            let f = vec4<f32>(load_i8x4(w{{ j }}));
{% for t in range(rows) %}
            acc{{ t }} += dot(f, x[x{{ t }} + i * 4u + {{ j }}u]);
{% endfor %}
        }
{% endif %}
{% endfor %}
    }
{% for t in range(rows) %}
    partial[{{ t * 64 }}u + li] = acc{{ t }};
{% endfor %}
    workgroupBarrier();
    let t = li / 4u;
    let out = first + li % 4u;
    if (li < {{ rows * 4 }}u && t < params.T && out < params.N) {
        var total = {{ number }}(0);
        for (var i = 0u; i < 16u; i++) { total += partial[t * 64u + (li % 4u) * 16u + i]; }
        let value = f32(total){{ " / scales[t]" if exact else "" }} * row_scales[out];
        let at = t * params.N + out;
        if (params.accumulate != 0u) { y[at] += value; } else { y[at] = value; }
    }
}
