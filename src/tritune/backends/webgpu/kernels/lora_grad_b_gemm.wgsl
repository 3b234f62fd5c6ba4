{#
The gradient of LoRA's B, for a pool of one entry:

    db[n, j] += scale[part(n)] * Σ_t multiplier[t] * dy[t, n] * down[t, part(n) * rank + j]

dy f32 [T, Out]; down f32 [T, width], zero in rows of slot 0; multiplier f32 [T]; scale f32 [1, parts];
db f32 [Out, rank], +=. As a product: M = Out, N = width, K = T; of the columns a row stores those of its own part.
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "gemm.wgsl" as gemm %}
{% import "lora.wgsl" as lora with context %}
{{ prelude.params("M: u32", "N: u32", "K: u32", "rank: u32", "ends0: u32", "ends1: u32", "ends2: u32") }}
{{ binding("dy", "array<f32>") }}
{{ binding("down", "array<f32>") }}
{{ binding("multiplier", "array<f32>") }}
{{ binding("scale", "array<f32>") }}
{{ binding("db", "array<f32>") }}
{{ lora.part_of() }}
fn a_at(row: u32, k: u32) -> f32 {
    if (row >= params.M || k >= params.K) { return 0.0; }
    return dy[k * params.M + row];
}
fn b_at(row: u32, k: u32) -> f32 {
    if (row >= params.N || k >= params.K) { return 0.0; }
    return multiplier[k] * down[k * params.N + row];
}
{{ gemm.load_each("a") }}
{{ gemm.load_each("b") }}
fn store(m: u32, n: u32, sums: vec4<f32>) {
    let part = part_of(m);
    let c = sums * scale[part];
    for (var i = 0u; i < 4u; i++) {
        let column = n + i;
        if (column < params.N && column / params.rank == part) {
            db[m * params.rank + column % params.rank] += c[i];
        }
    }
}
{{ gemm.main(False, False) }}
