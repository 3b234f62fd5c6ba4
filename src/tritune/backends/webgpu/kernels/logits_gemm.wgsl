{#
The head for many rows and one shard of the table, forwards and (`backward`) backwards.

forward:   out[r, first_row + v] = Σ_d x[r, d] * shard[v, d]              M = R, N = rows of the shard, K = D
backward:  out[r, d] (= or +=) Σ_v x[r, first_row + v] * shard[v, d]     M = R, N = D, K = rows of the shard

x f32 [R, D] or, backwards, the gradient [R, V]; shard in `format` f32, f16 or bf16; D is a multiple of 4.
x_stride, out_stride: elements from row to row; x_first, out_first: added to the index within a row.
`aligned`: the strides and firsts are multiples of 4, so that x and out are read and written in fours.
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "gemm.wgsl" as gemm with context %}
{{ prelude.params("M: u32", "N: u32", "K: u32", "first_m: u32", "first_n: u32", "accumulate: u32", "x_stride: u32", "x_first: u32", "out_stride: u32", "out_first: u32") }}
{{ binding("x", "array<vec4<f32>>" if aligned else "array<f32>") }}
{{ binding("shard", "array<vec4<f32>>" if format == "f32" else "array<vec2<u32>>") }}
{{ binding("out", "array<vec4<f32>>" if aligned else "array<f32>") }}
{{ prelude.functions() }}
{{ gemm.plain("a") }}
fn fetch_a(row: u32, k: u32) -> RawA {
    var four = vec4<f32>();
    if (row >= params.M || k >= params.K) { return four; }
    let at = row * params.x_stride + params.x_first + k;
{% if aligned %}
    four = x[at / 4u];
{% else %}
    for (var i = 0u; i < 4u && k + i < params.K; i++) { four[i] = x[at + i]; }
{% endif %}
    return four;
}
{% if format == "f32" %}
{{ gemm.plain("b") }}
{% else %}
alias RawB = vec2<u32>;
fn expand_b(raw: RawB, row: u32, k: u32) -> vec4<f32> {
    return vec4<f32>(load_{{ format }}x2(raw.x), load_{{ format }}x2(raw.y));
}
{% endif %}
fn fetch_b(n: u32, k: u32) -> RawB {
    if (n >= params.N || k >= params.K) { return RawB(); }
    return shard[({{ "k * params.N + n" if backward else "n * params.K + k" }}) / 4u];
}
fn store(m: u32, n: u32, c: vec4<f32>) {
    let at = m * params.out_stride + params.out_first + n;
{% if aligned and backward %}
    if (params.accumulate != 0u) { out[at / 4u] += c; } else { out[at / 4u] = c; }
{% else %}
{% if aligned %}
    if (n + 4u <= params.N) { out[at / 4u] = c; return; }
{% endif %}
    for (var i = 0u; i < 4u && n + i < params.N; i++) {
{% if aligned %}
        out[at / 4u][i] = c[i];
{% else %}
        if (params.accumulate != 0u) { out[at + i] += c[i]; } else { out[at + i] = c[i]; }
{% endif %}
    }
{% endif %}
}
{{ gemm.main(True, not backward) }}
