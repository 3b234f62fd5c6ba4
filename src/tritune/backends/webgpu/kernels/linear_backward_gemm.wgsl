{#
The base branch backwards: dx[t, k] = Σ_n dy[t, n] * row_scales[n] * w[n, k].

dy f32 [T, Out]; words as in linear_gemm.wgsl; dx f32 [T, In], =. As a product: M = T, N = In, K = Out.
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "gemm.wgsl" as gemm with context %}
{{ prelude.params("M: u32", "N: u32", "K: u32") }}
{{ binding("dy", "array<vec4<f32>>") }}
{{ binding("words", "array<u32>") }}
{{ binding("row_scales", "array<vec4<f32>>") }}
{{ binding("dx", "array<vec4<f32>>") }}
alias RawA = vec4<f32>;
fn fetch_a(row: u32, k: u32) -> RawA {
    if (row >= params.M || k >= params.K) { return RawA(); }
    return dy[(row * params.K + k) / 4u];
}
fn expand_a(raw: RawA, row: u32, k: u32) -> vec4<f32> {
    return raw * row_scales[k / 4u];
}
{{ gemm.ternary("b") }}
fn fetch_b(n: u32, k: u32) -> u32 {
    if (n >= params.N || k >= params.K) { return ZERO_CODES; }
    return words[k * ((params.N + 15u) / 16u) + n / 16u] >> (2u * (n / 4u % 4u));
}
fn store(m: u32, n: u32, c: vec4<f32>) {
{{ gemm.put("dx", True, "m", "n", "params.N") }}
}
{{ gemm.main(True, False) }}
