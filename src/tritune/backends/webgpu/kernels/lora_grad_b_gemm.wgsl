{#
The gradient of LoRA's B, for a pool of one entry:

    db[n, j] += scale[part(n)] * Σ_t multiplier[t] * dy[t, n] * down[t, part(n) * rank + j]

dy f32 [T, Out]; down f32 [T, width], zero in rows of slot 0; multiplier f32 [T]; scale f32 [1, parts];
db f32 [Out, rank], +=. As a product: M = Out, N = width, K = T; of the columns a row stores those of its own part, and a
tile without any of them does nothing. `aligned`: rank is a multiple of 4.
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "gemm.wgsl" as gemm with context %}
{% import "lora.wgsl" as lora with context %}
{{ prelude.params("M: u32", "N: u32", "K: u32", "first_m: u32", "first_n: u32", "rank: u32", "ends0: u32", "ends1: u32", "ends2: u32") }}
{{ gemm.fours("dy", True) }}
{{ gemm.fours("down", aligned) }}
{{ binding("multiplier", "array<f32>") }}
{{ binding("scale", "array<f32>") }}
{{ gemm.fours("db", aligned) }}
{{ lora.part_of() }}
fn k_range(m0: u32, n0: u32) -> vec2<u32> {
    let parts = vec2<u32>(part_of(m0), part_of(min(m0 + {{ tile[0] - 1 }}u, params.M - 1u)));
    let apart = n0 >= (parts.y + 1u) * params.rank || n0 + {{ tile[1] }}u <= parts.x * params.rank;
    return vec2<u32>(0u, select(params.K, 0u, apart));
}
{{ gemm.plain("a") }}
fn fetch_a(row: u32, k: u32) -> RawA {
    if (k >= params.K) { return RawA(); }
    return four_of_dy(k, row, params.M);
}
{{ gemm.plain("b") }}
fn fetch_b(row: u32, k: u32) -> RawB {
    if (k >= params.K) { return RawB(); }
    return multiplier[k] * four_of_down(k, row, params.N);
}
fn store(m: u32, n: u32, sums: vec4<f32>) {
    let part = part_of(m);
    let c = sums * scale[part];
{% if aligned %}
    if (n / params.rank == part) { db[(m * params.rank + n % params.rank) / 4u] += c; }
{% else %}
    for (var i = 0u; i < 4u; i++) {
        let column = n + i;
        if (column < params.N && column / params.rank == part) {
            db[m * params.rank + column % params.rank] += c[i];
        }
    }
{% endif %}
}
{{ gemm.main(False, False, k_range=True) }}
