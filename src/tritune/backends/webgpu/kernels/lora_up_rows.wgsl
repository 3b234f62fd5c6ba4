{#
lora_up_gemm.wgsl for few rows: y[t, n] += multiplier[t] * scale[slot, part(n)] * Σ_j down[t, part(n) * rank + j] * b[slot[t] - 1, n, j].

Buffers as there. A thread makes one output; rows of slot 0 are left alone. Grid: (ceil(N / 64), T, 1).
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "lora.wgsl" as lora with context %}
{{ prelude.params("T: u32", "N: u32", "width: u32", "rank: u32", "ends0: u32", "ends1: u32", "ends2: u32") }}
{{ binding("down", "array<f32>") }}
{{ lora.numbers("b") }}
{{ binding("slot", "array<u32>") }}
{{ binding("multiplier", "array<f32>") }}
{{ binding("scale", "array<f32>") }}
{{ binding("y", "array<f32>") }}
{{ prelude.functions() }}
{{ lora.part_of() }}
{{ prelude.main(64) }}
    let t = workgroup_y(wg, grid);
    let n = wg.x * 64u + li;
    if (t >= params.T || n >= params.N || slot[t] == 0u) { return; }
    let entry = slot[t] - 1u;
    let part = part_of(n);
    var sum = 0.0;
    for (var j = 0u; j < params.rank; j++) {
        sum += down[t * params.width + part * params.rank + j] * b_at((entry * params.N + n) * params.rank + j);
    }
    y[t * params.N + n] += multiplier[t] * scale[entry * (params.width / params.rank) + part] * sum;
}
