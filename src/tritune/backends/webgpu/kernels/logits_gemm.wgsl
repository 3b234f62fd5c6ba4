{#
The head for many rows and one shard of the table, forwards and (`backward`) backwards.

forward:   out[r, first_row + v] = Σ_d x[r, d] * shard[v, d]              M = R, N = rows of the shard, K = D
backward:  out[r, d] (= or +=) Σ_v x[r, first_row + v] * shard[v, d]     M = R, N = D, K = rows of the shard

x f32 [R, D] or, backwards, the gradient [R, V]; shard in `format` f32, f16 or bf16; D is a multiple of 4.
x_stride, out_stride: elements from row to row; x_first, out_first: added to the index within a row.
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "gemm.wgsl" as gemm %}
{{ prelude.params("M: u32", "N: u32", "K: u32", "accumulate: u32", "x_stride: u32", "x_first: u32", "out_stride: u32", "out_first: u32") }}
{{ binding("x", "array<f32>") }}
{{ binding("shard", "array<f32>" if format == "f32" else "array<u32>") }}
{{ binding("out", "array<f32>") }}
{{ prelude.functions() }}
fn a_at(row: u32, k: u32) -> f32 {
    if (row >= params.M || k >= params.K) { return 0.0; }
    return x[row * params.x_stride + params.x_first + k];
}
{{ gemm.load_each("a") }}
{% if backward %}
fn load_b(n: u32, k: u32) -> vec4<f32> {
    if (n >= params.N || k >= params.K) { return vec4<f32>(); }
    let at = k * params.N + n;
{% if format == "f32" %}
    return vec4<f32>(shard[at], shard[at + 1u], shard[at + 2u], shard[at + 3u]);
{% else %}
    return vec4<f32>(load_{{ format }}x2(shard[at / 2u]), load_{{ format }}x2(shard[at / 2u + 1u]));
{% endif %}
}
{% else %}
fn b_at(row: u32, k: u32) -> f32 {
    if (row >= params.N || k >= params.K) { return 0.0; }
    let at = row * params.K + k;
{% if format == "f32" %}
    return shard[at];
{% else %}
    return load_{{ format }}x2(shard[at / 2u])[at % 2u];
{% endif %}
}
{{ gemm.load_each("b") }}
{% endif %}
fn store(m: u32, n: u32, c: vec4<f32>) {
{{ gemm.store_row("out", "m * params.out_stride + params.out_first", "params.accumulate != 0u") }}
}
{{ gemm.main(True, not backward) }}
