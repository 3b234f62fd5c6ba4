{#
The gradient of LoRA's A, for a pool of one entry: da[j, k] += Σ_t down_grad[t, j] * dropout(x)[t, k].

down_grad f32 [T, width], zero in rows of slot 0; x f32 [T, In]; da f32 [width, In], +=; state u32 [2] with `dropout`.
As a product: M = width, N = In, K = T.
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "gemm.wgsl" as gemm %}
{% import "lora.wgsl" as lora with context %}
{{ prelude.params("M: u32", "N: u32", "K: u32", "linear_index: u32", "threshold: u32", "keep_scale: f32") }}
{{ binding("down_grad", "array<f32>") }}
{{ binding("x", "array<f32>") }}
{{ binding("da", "array<f32>") }}
{% if dropout %}
{{ binding("state", "array<u32>") }}
{% endif %}
{{ lora.dropout_functions() }}
fn a_at(row: u32, k: u32) -> f32 {
    if (row >= params.M || k >= params.K) { return 0.0; }
    return down_grad[k * params.M + row];
}
fn b_at(row: u32, k: u32) -> f32 {
    if (row >= params.N || k >= params.K) { return 0.0; }
    return x[k * params.N + row] * dropout_factor(k * params.N + row);
}
{{ gemm.load_each("a") }}
{{ gemm.load_each("b") }}
fn store(m: u32, n: u32, c: vec4<f32>) {
{{ gemm.store_row("da", "m * params.N", "true") }}
}
{{ gemm.main(False, False, lora.dropout_setup()) }}
