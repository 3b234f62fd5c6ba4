{#
The ternary product for many rows: y[t, n] (= or +=) Σ_k x[t, k] * w[n, k] / scales[t] * row_scales[n].

x: i8 [T, K] (`exact`; the sums of integers stay exact in f32 for K <= 131072), or f32 [T, K] without scales.
words u32 [N, ceil(K / 16)]: 2-bit codes w + 1, column k in word k / 16 at bit 8 * (k % 4) + 2 * (k / 4 % 4).
y f32 [T, N]. M = T. See gemm.wgsl for how work is split.
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "gemm.wgsl" as gemm %}
{{ prelude.params("M: u32", "N: u32", "K: u32", "accumulate: u32") }}
{{ binding("x", "array<u32>" if exact else "array<f32>") }}
{{ binding("words", "array<u32>") }}
{{ binding("row_scales", "array<f32>") }}
{{ binding("y", "array<f32>") }}
{% if exact %}
{{ binding("scales", "array<f32>") }}
{% endif %}
fn a_at(row: u32, k: u32) -> f32 {
    if (row >= params.M || k >= params.K) { return 0.0; }
{% if exact %}
    return f32(extractBits(bitcast<i32>(x[row * (params.K / 4u) + k / 4u]), 8u * (k % 4u), 8u));
{% else %}
    return x[row * params.K + k];
{% endif %}
}
fn b_at(row: u32, k: u32) -> f32 {
    if (row >= params.N || k >= params.K) { return 0.0; }
    let word = words[row * ((params.K + 15u) / 16u) + k / 16u];
    return f32(extractBits(word, 8u * (k % 4u) + 2u * (k / 4u % 4u), 2u)) - 1.0;
}
{{ gemm.load_each("a") }}
{{ gemm.load_each("b") }}
fn store(m: u32, n: u32, sums: vec4<f32>) {
    // N is a multiple of 4.
    let c = sums{{ " / scales[m]" if exact else "" }} * vec4<f32>(row_scales[n], row_scales[n + 1u], row_scales[n + 2u], row_scales[n + 3u]);
{{ gemm.store_row("y", "m * params.N", "params.accumulate != 0u") }}
}
{{ gemm.main(True, True) }}
