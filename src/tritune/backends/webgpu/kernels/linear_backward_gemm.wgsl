{#
The base branch backwards: dx[t, k] = Σ_n dy[t, n] * row_scales[n] * w[n, k].

dy f32 [T, Out]; words as in linear_gemm.wgsl; dx f32 [T, In], =. As a product: M = T, N = In, K = Out.
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "gemm.wgsl" as gemm with context %}
{{ prelude.params("M: u32", "N: u32", "K: u32", "first_m: u32", "first_n: u32") }}
{{ binding("dy", "array<vec4<f32>>") }}
{{ binding("words", "array<u32>") }}
{{ binding("row_scales", "array<f32>") }}
{{ binding("dx", "array<vec4<f32>>") }}
{{ gemm.plain("a") }}
fn fetch_a(row: u32, k: u32) -> RawA {
    if (row >= params.M || k >= params.K) { return RawA(); }
    return dy[(row * params.K + k) / 4u];
}
// Ternary codes and the scale of their row.
struct RawB { codes: u32, scale: f32 }
{{ gemm.ternary() }}
fn fetch_b(n: u32, k: u32) -> RawB {
    if (n >= params.N || k >= params.K) { return RawB(ZERO_CODES, 0.0); }
    return RawB(words[k * ((params.N + 15u) / 16u) + n / 16u] >> (2u * (n / 4u % 4u)), row_scales[k]);
}
fn expand_b(raw: RawB, n: u32, k: u32) -> vec4<f32> {
    return ternary(raw.codes) * raw.scale;
}
fn store(m: u32, n: u32, c: vec4<f32>) {
{{ gemm.put("dx", True, "m", "n", "params.N") }}
}
{{ gemm.main(True, False) }}
