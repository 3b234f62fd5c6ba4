{#
The gradient of LoRA's A, for a pool of one entry: da[j, k] += Σ_t down_grad[t, j] * dropout(x)[t, k].

down_grad f32 [T, width], zero in rows of slot 0; x f32 [T, In]; da f32 [width, In], +=; state u32 [2] with `dropout`.
As a product: M = width, N = In, K = T.
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "gemm.wgsl" as gemm with context %}
{% import "lora.wgsl" as lora with context %}
{{ prelude.params("M: u32", "N: u32", "K: u32", "first_m: u32", "first_n: u32", "linear_index: u32", "threshold: u32", "keep_scale: f32") }}
{{ gemm.fours("down_grad", aligned) }}
{{ gemm.fours("x", True) }}
{{ gemm.fours("da", True) }}
{% if dropout %}
{{ binding("state", "array<u32>") }}
{% endif %}
{{ lora.dropout_functions() }}
{{ gemm.plain("a") }}
fn fetch_a(row: u32, k: u32) -> RawA {
    if (k >= params.K) { return RawA(); }
    return four_of_down_grad(k, row, params.M);
}
alias RawB = vec4<f32>;
fn fetch_b(row: u32, k: u32) -> RawB {
    if (k >= params.K) { return RawB(); }
    return four_of_x(k, row, params.N);
}
fn expand_b(raw: RawB, row: u32, k: u32) -> vec4<f32> {
    return raw * dropout_factors(k * params.N + row);
}
fn store(m: u32, n: u32, c: vec4<f32>) {
{{ gemm.put("da", True, "m", "n", "params.N", "true") }}
}
{{ gemm.main(False, False, lora.dropout_setup()) }}
