{#
LoRA's first factor: down[t, j] = Σ_k dropout(x)[t, k] * a[slot[t] - 1, j, k]; zero in rows of slot 0.

x f32 [T, K]; factor f32 or (`half`) f16 [pool, width, K], the a of the formula; slot i32 [T]; down f32 [T, width], =; state u32 [2] with `dropout`.
As a product: M = T, N = width (parts * rank), K; repeated for each slot that occurs in a tile (gemm.wgsl).
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "gemm.wgsl" as gemm with context %}
{% import "lora.wgsl" as lora with context %}
{{ prelude.params("M: u32", "N: u32", "K: u32", "first_m: u32", "first_n: u32", "linear_index: u32", "threshold: u32", "keep_scale: f32") }}
{{ gemm.fours("x", True) }}
{{ lora.vectors("factor") }}
{{ binding("slot", "array<u32>") }}
{{ gemm.fours("down", aligned) }}
{% if dropout %}
{{ binding("state", "array<u32>") }}
{% endif %}
{{ lora.dropout_functions() }}
var<private> current_slot: u32;
fn slot_of(m: u32) -> u32 { return slot[m]; }
alias RawA = vec4<f32>;
fn fetch_a(row: u32, k: u32, on: bool) -> RawA {
    if (!on) { return RawA(); }
    return four_of_x(row, k, params.K);
}
fn expand_a(raw: RawA, row: u32, k: u32) -> vec4<f32> {
    return raw * dropout_factors(row * params.K + k);
}
alias RawB = {{ "vec2<u32>" if half else "vec4<f32>" }};
fn expand_b(raw: RawB, row: u32, k: u32) -> vec4<f32> { return expand_factor(raw); }
fn fetch_b(row: u32, k: u32) -> RawB {
    if (row >= params.N || k >= params.K) { return RawB(); }
    return factor[(((current_slot - 1u) * params.N + row) * params.K + k) / 4u];
}
fn store(m: u32, n: u32, c: vec4<f32>) {
{{ gemm.put("down", aligned, "m", "n", "params.N") }}
}
{{ gemm.main(True, True, lora.dropout_setup(), slots=True) }}
