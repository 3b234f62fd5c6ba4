{#
The gradient of LoRA's first factor: for n in the part of column j,

    down_grad[t, j] = multiplier[t] * scale[slot, part] * Σ_n dy[t, n] * b[slot[t] - 1, n, j % rank]

dy f32 [T, Out]; b f32 [pool, Out, rank]; slot i32 [T]; multiplier f32 [T]; scale f32 [pool, parts];
down_grad f32 [T, width], =, zero in rows of slot 0. As a product: M = T, N = width, K = Out.
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "gemm.wgsl" as gemm %}
{% import "lora.wgsl" as lora with context %}
{{ prelude.params("M: u32", "N: u32", "K: u32", "rank: u32", "ends0: u32", "ends1: u32", "ends2: u32") }}
{{ binding("dy", "array<f32>") }}
{{ binding("b", "array<f32>") }}
{{ binding("slot", "array<u32>") }}
{{ binding("multiplier", "array<f32>") }}
{{ binding("scale", "array<f32>") }}
{{ binding("down_grad", "array<f32>") }}
{{ lora.part_of() }}
var<private> current_slot: u32;
fn slot_of(m: u32) -> u32 { return slot[m]; }
fn a_at(row: u32, k: u32) -> f32 {
    if (row >= params.M || k >= params.K || slot[row] != current_slot) { return 0.0; }
    return dy[row * params.K + k];
}
fn load_b(n: u32, k: u32) -> vec4<f32> {
    var values = vec4<f32>();
    let entry = current_slot - 1u;
    let part = part_of(k);
    if (k >= params.K) { return values; }
    let factor = scale[entry * (params.N / params.rank) + part];
    for (var i = 0u; i < 4u; i++) {
        let column = n + i;
        if (column < params.N && column / params.rank == part) {
            values[i] = factor * b[(entry * params.K + k) * params.rank + column % params.rank];
        }
    }
    return values;
}
{{ gemm.load_each("a") }}
fn store(m: u32, n: u32, sums: vec4<f32>) {
    let c = sums * multiplier[m];
{{ gemm.store_row("down_grad", "m * params.N") }}
}
{{ gemm.main(True, False, slots=True) }}
