{#
lora_down_gemm.wgsl for few rows: down[t, j] = Σ_k dropout(x)[t, k] * a[slot[t] - 1, j, k]; zero in rows of slot 0.

Buffers as there, x and a in vectors of 4. A workgroup of 64 threads makes 4 of the j of one row, 16 threads each.
Grid: (ceil(width / 4), T, 1).
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "lora.wgsl" as lora with context %}
{{ prelude.params("T: u32", "width: u32", "K: u32", "linear_index: u32", "threshold: u32", "keep_scale: f32") }}
{{ binding("x", "array<vec4<f32>>") }}
{{ lora.vectors("a") }}
{{ binding("slot", "array<u32>") }}
{{ binding("down", "array<f32>") }}
{% if dropout %}
{{ binding("state", "array<u32>") }}
{% endif %}
{{ prelude.functions() }}
{{ lora.dropout_functions() }}
var<workgroup> partial: array<f32, 64>;
{{ prelude.main(64) }}
    {{ lora.dropout_setup() }}
    let t = workgroup_y(wg, grid);
    let first = wg.x * 4u;
    let j = first + li / 16u;
    let quads = params.K / 4u;
    var sum = 0.0;
    if (t < params.T && j < params.width && slot[t] > 0u) {
        let row = ((slot[t] - 1u) * params.width + j) * quads;
        for (var i = li % 16u; i < quads; i += 16u) {
            let e = t * params.K + i * 4u;
            let keep = vec4<f32>(dropout_factor(e), dropout_factor(e + 1u), dropout_factor(e + 2u), dropout_factor(e + 3u));
            sum += dot(expand_a(a[row + i]), x[t * quads + i] * keep);
        }
    }
    partial[li] = sum;
    workgroupBarrier();
    if (li < 4u && first + li < params.width && t < params.T) {
        var total = 0.0;
        for (var i = 0u; i < 16u; i++) { total += partial[li * 16u + i]; }
        down[t * params.width + first + li] = total;
    }
}
