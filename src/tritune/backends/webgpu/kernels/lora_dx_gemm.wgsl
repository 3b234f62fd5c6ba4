{#
What the LoRA branch adds to the input's gradient: dx[t, k] += dropout(Σ_j down_grad[t, j] * a[slot[t] - 1, j, k]).

down_grad f32 [T, width]; a f32 [pool, width, In]; slot i32 [T]; dx f32 [T, In], +=; state u32 [2] with `dropout`.
As a product: M = T, N = In, K = width.
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "gemm.wgsl" as gemm %}
{% import "lora.wgsl" as lora with context %}
{{ prelude.params("M: u32", "N: u32", "K: u32", "linear_index: u32", "threshold: u32", "keep_scale: f32") }}
{{ binding("down_grad", "array<f32>") }}
{{ binding("a", "array<f32>") }}
{{ binding("slot", "array<u32>") }}
{{ binding("dx", "array<f32>") }}
{% if dropout %}
{{ binding("state", "array<u32>") }}
{% endif %}
{{ lora.dropout_functions() }}
var<private> current_slot: u32;
fn slot_of(m: u32) -> u32 { return slot[m]; }
fn a_at(row: u32, k: u32) -> f32 {
    if (row >= params.M || k >= params.K || slot[row] != current_slot) { return 0.0; }
    return down_grad[row * params.K + k];
}
{{ gemm.load_each("a") }}
fn load_b(n: u32, k: u32) -> vec4<f32> {
    if (n >= params.N || k >= params.K) { return vec4<f32>(); }
    let at = ((current_slot - 1u) * params.K + k) * params.N + n; // N is a multiple of 4
    return vec4<f32>(a[at], a[at + 1u], a[at + 2u], a[at + 3u]);
}
fn store(m: u32, n: u32, sums: vec4<f32>) {
    let e = m * params.N + n;
    let c = sums * vec4<f32>(dropout_factor(e), dropout_factor(e + 1u), dropout_factor(e + 2u), dropout_factor(e + 3u));
{{ gemm.store_row("dx", "m * params.N", "true") }}
}
{{ gemm.main(True, False, lora.dropout_setup(), slots=True) }}
