{#
LoRA's first factor: down[t, j] = Σ_k dropout(x)[t, k] * a[slot[t] - 1, j, k]; zero in rows of slot 0.

x f32 [T, K]; a f32 [pool, width, K]; slot i32 [T]; down f32 [T, width], =; state u32 [2] with `dropout`.
As a product: M = T, N = width (parts * rank), K; repeated for each slot that occurs in a tile (gemm.wgsl).
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "gemm.wgsl" as gemm %}
{% import "lora.wgsl" as lora with context %}
{{ prelude.params("M: u32", "N: u32", "K: u32", "linear_index: u32", "threshold: u32", "keep_scale: f32") }}
{{ binding("x", "array<f32>") }}
{{ binding("a", "array<f32>") }}
{{ binding("slot", "array<u32>") }}
{{ binding("down", "array<f32>") }}
{% if dropout %}
{{ binding("state", "array<u32>") }}
{% endif %}
{{ lora.dropout_functions() }}
var<private> current_slot: u32;
fn slot_of(m: u32) -> u32 { return slot[m]; }
fn a_at(row: u32, k: u32) -> f32 {
    if (row >= params.M || k >= params.K || slot[row] != current_slot) { return 0.0; }
    return x[row * params.K + k] * dropout_factor(row * params.K + k);
}
fn b_at(row: u32, k: u32) -> f32 {
    if (row >= params.N || k >= params.K) { return 0.0; }
    return a[((current_slot - 1u) * params.N + row) * params.K + k];
}
{{ gemm.load_each("a") }}
{{ gemm.load_each("b") }}
fn store(m: u32, n: u32, c: vec4<f32>) {
{{ gemm.store_row("down", "m * params.N") }}
}
{{ gemm.main(True, True, lora.dropout_setup(), slots=True) }}
