{#
The base branch backwards: dx[t, k] = Σ_n dy[t, n] * row_scales[n] * w[n, k].

dy f32 [T, Out]; words as in linear_gemm.wgsl; dx f32 [T, In], =. As a product: M = T, N = In, K = Out.
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "gemm.wgsl" as gemm %}
{{ prelude.params("M: u32", "N: u32", "K: u32") }}
{{ binding("dy", "array<f32>") }}
{{ binding("words", "array<u32>") }}
{{ binding("row_scales", "array<f32>") }}
{{ binding("dx", "array<f32>") }}
fn a_at(row: u32, k: u32) -> f32 {
    if (row >= params.M || k >= params.K) { return 0.0; }
    return dy[row * params.K + k] * row_scales[k];
}
{{ gemm.load_each("a") }}
fn load_b(n: u32, k: u32) -> vec4<f32> {
    if (n >= params.N || k >= params.K) { return vec4<f32>(); }
    let codes = words[k * ((params.N + 15u) / 16u) + n / 16u] >> (2u * (n / 4u % 4u));
    return vec4<f32>((vec4<u32>(codes) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(3u)) - 1.0;
}
fn store(m: u32, n: u32, c: vec4<f32>) {
{{ gemm.store_row("dx", "m * params.N") }}
}
{{ gemm.main(True, False) }}
