{#
LoRA's second factor: y[t, n] += multiplier[t] * scale[slot, part(n)] * Σ_j down[t, part(n) * rank + j] * b[slot[t] - 1, n, j].

down f32 [T, width]; b f32 [pool, N, rank]; slot i32 [T]; multiplier f32 [T]; scale f32 [pool, parts]; y f32 [T, N], +=.
As a product: M = T, N, K = width, where b counts as zero outside of its own part, so that a tile may lie in two parts.
Rows of slot 0 get += 0.
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "gemm.wgsl" as gemm %}
{% import "lora.wgsl" as lora with context %}
{{ prelude.params("M: u32", "N: u32", "K: u32", "rank: u32", "ends0: u32", "ends1: u32", "ends2: u32") }}
{{ binding("down", "array<f32>") }}
{{ binding("b", "array<f32>") }}
{{ binding("slot", "array<u32>") }}
{{ binding("multiplier", "array<f32>") }}
{{ binding("scale", "array<f32>") }}
{{ binding("y", "array<f32>") }}
{{ lora.part_of() }}
var<private> current_slot: u32;
fn slot_of(m: u32) -> u32 { return slot[m]; }
fn a_at(row: u32, k: u32) -> f32 {
    if (row >= params.M || k >= params.K || slot[row] != current_slot) { return 0.0; }
    return down[row * params.K + k];
}
fn b_at(row: u32, k: u32) -> f32 {
    let part = part_of(row);
    if (row >= params.N || k >= params.K || k / params.rank != part) { return 0.0; }
    let entry = current_slot - 1u;
    return scale[entry * (params.K / params.rank) + part] * b[(entry * params.N + row) * params.rank + k % params.rank];
}
{{ gemm.load_each("a") }}
{{ gemm.load_each("b") }}
fn store(m: u32, n: u32, sums: vec4<f32>) {
    let c = sums * multiplier[m];
{{ gemm.store_row("y", "m * params.N", "true") }}
}
{{ gemm.main(True, True, slots=True) }}
