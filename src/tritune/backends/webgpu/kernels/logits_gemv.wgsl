{#
The head for at most `rows` rows and one shard of the table: out[t, first_row + v] = Σ_d x[t, d] * shard[v, d].

x f32 [T, D]; shard [N, D] in `format` f32, f16 or bf16; out f32 [T, V], =. D is a multiple of 4.
Work as in linear_gemv.wgsl: 16 threads an output. Grid: ceil(N / 4).
#}
{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("T: u32", "N: u32", "D: u32", "V: u32", "first_row: u32") }}
{{ binding("x", "array<vec4<f32>>") }}
{{ binding("shard", "array<vec4<f32>>" if format == "f32" else "array<vec2<u32>>") }}
{{ binding("out", "array<f32>") }}
{{ prelude.functions() }}
var<workgroup> partial: array<f32, {{ rows * 64 }}>;
{{ prelude.main(64) }}
    let first = workgroup_1d(wg, grid) * 4u;
    let v = first + li / 16u;
    let quads = params.D / 4u;
{% for t in range(rows) %}
    var acc{{ t }} = 0.0;
    let x{{ t }} = {{ "min(%du, params.T - 1u)" % t }} * quads;
{% endfor %}
    for (var i = li % 16u; v < params.N && i < quads; i += 16u) {
{% if format == "f32" %}
        let w = shard[v * quads + i];
{% else %}
        let pair = shard[v * quads + i];
        let w = vec4<f32>(load_{{ format }}x2(pair.x), load_{{ format }}x2(pair.y));
{% endif %}
{% for t in range(rows) %}
        acc{{ t }} += dot(w, x[x{{ t }} + i]);
{% endfor %}
    }
{% for t in range(rows) %}
    partial[{{ t * 64 }}u + li] = acc{{ t }};
{% endfor %}
    workgroupBarrier();
    let t = li / 4u;
    let row = first + li % 4u;
    if (li < {{ rows * 4 }}u && t < params.T && row < params.N) {
        var total = 0.0;
        for (var i = 0u; i < 16u; i++) { total += partial[t * 64u + (li % 4u) * 16u + i]; }
        out[t * params.V + params.first_row + row] = total;
    }
}
