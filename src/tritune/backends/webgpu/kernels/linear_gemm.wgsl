{#
The ternary product for many rows: y[t, n] (= or +=) Σ_k x[t, k] * w[n, k] / scales[t] * row_scales[n].

x: i8 [T, K] (`exact`; the sums of integers stay exact in f32 for K <= 131072), or f32 [T, K] without scales.
words u32 [N, ceil(K / 16)]: 2-bit codes w + 1, column k in word k / 16 at bit 8 * (k % 4) + 2 * (k / 4 % 4).
y f32 [T, N]. M = T. See gemm.wgsl for how work is split.
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "gemm.wgsl" as gemm with context %}
{{ prelude.params("M: u32", "N: u32", "K: u32", "first_m: u32", "first_n: u32", "accumulate: u32") }}
{{ binding("x", "array<u32>" if exact else "array<vec4<f32>>") }}
{{ binding("words", "array<u32>") }}
{{ binding("row_scales", "array<vec4<f32>>") }}
{{ binding("y", "array<vec4<f32>>") }}
{% if exact %}
{{ binding("scales", "array<f32>") }}
alias RawA = u32;
// As in gemm.wgsl's ternary: b + 128 in the low bits of 2^23's mantissa.
fn expand_a(raw: u32, row: u32, k: u32) -> vec4<f32> {
    let bytes = (vec4<u32>(raw ^ 0x80808080u) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(255u);
    return bitcast<vec4<f32>>(bytes | vec4<u32>(0x4b000000u)) - 8388736.0;
}
{% else %}
{{ gemm.plain("a") }}
{% endif %}
alias RawB = u32;
{{ gemm.ternary() }}
fn expand_b(raw: u32, row: u32, k: u32) -> vec4<f32> { return ternary(raw); }
fn fetch_a(row: u32, k: u32) -> RawA {
    if (row >= params.M || k >= params.K) { return RawA(); }
    return x[row * (params.K / 4u) + k / 4u];
}
fn fetch_b(row: u32, k: u32) -> u32 {
    if (row >= params.N || k >= params.K) { return ZERO_CODES; }
    return words[row * ((params.K + 15u) / 16u) + k / 16u] >> (2u * (k / 4u % 4u));
}
fn store(m: u32, n: u32, sums: vec4<f32>) {
    let c = sums{{ " / scales[m]" if exact else "" }} * row_scales[n / 4u];
{{ gemm.put("y", True, "m", "n", "params.N", "params.accumulate != 0u") }}
}
{{ gemm.main(True, True) }}
