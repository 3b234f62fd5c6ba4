{#
What the LoRA branch adds to the input's gradient: dx[t, k] += dropout(Σ_j down_grad[t, j] * a[slot[t] - 1, j, k]).

down_grad f32 [T, width]; a f32 [pool, width, In]; slot i32 [T]; dx f32 [T, In], +=; state u32 [2] with `dropout`.
As a product: M = T, N = In, K = width.
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "gemm.wgsl" as gemm with context %}
{% import "lora.wgsl" as lora with context %}
{{ prelude.params("M: u32", "N: u32", "K: u32", "first_m: u32", "first_n: u32", "linear_index: u32", "threshold: u32", "keep_scale: f32") }}
{{ gemm.fours("down_grad", aligned) }}
{{ gemm.fours("a", True) }}
{{ binding("slot", "array<u32>") }}
{{ gemm.fours("dx", True) }}
{% if dropout %}
{{ binding("state", "array<u32>") }}
{% endif %}
{{ lora.dropout_functions() }}
var<private> current_slot: u32;
fn slot_of(m: u32) -> u32 { return slot[m]; }
{{ gemm.plain("a") }}
fn fetch_a(row: u32, k: u32, on: bool) -> RawA {
    if (!on) { return RawA(); }
    return four_of_down_grad(row, k, params.K);
}
{{ gemm.plain("b") }}
fn fetch_b(n: u32, k: u32) -> RawB {
    if (k >= params.K) { return RawB(); }
    return four_of_a((current_slot - 1u) * params.K + k, n, params.N);
}
fn store(m: u32, n: u32, sums: vec4<f32>) {
    let c = sums * dropout_factors(m * params.N + n);
{{ gemm.put("dx", True, "m", "n", "params.N", "true") }}
}
{{ gemm.main(True, False, lora.dropout_setup(), slots=True) }}
