{#
LoRA's second factor: y[t, n] += multiplier[t] * scale[slot, part(n)] * Σ_j down[t, part(n) * rank + j] * b[slot[t] - 1, n, j].

down f32 [T, width]; factor f32 or (`half`) f16 [pool, N, rank], the b of the formula; slot i32 [T]; multiplier f32 [T]; scale f32 [pool, parts]; y f32 [T, N], +=.
As a product: M = T, N, K = width, of which a tile walks the columns of its parts; b counts as zero outside of its own part,
so that a tile may lie in two. Rows of slot 0 get += 0. `aligned`: rank is a multiple of 4.
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "gemm.wgsl" as gemm with context %}
{% import "lora.wgsl" as lora with context %}
{{ prelude.params("M: u32", "N: u32", "K: u32", "first_m: u32", "first_n: u32", "rank: u32", "ends0: u32", "ends1: u32", "ends2: u32") }}
{{ gemm.fours("down", aligned) }}
{{ lora.vectors("factor") if aligned else lora.numbers("factor") }}
{{ binding("slot", "array<u32>") }}
{{ binding("multiplier", "array<f32>") }}
{{ binding("scale", "array<f32>") }}
{{ gemm.fours("y", True) }}
{{ lora.part_of() }}
var<private> current_slot: u32;
fn slot_of(m: u32) -> u32 { return slot[m]; }
fn k_range(m0: u32, n0: u32) -> vec2<u32> {
    let last = part_of(min(n0 + {{ tile[1] - 1 }}u, params.N - 1u));
    return vec2<u32>(part_of(n0), last + 1u) * params.rank;
}
{{ gemm.plain("a") }}
fn fetch_a(row: u32, k: u32, on: bool) -> RawA {
    if (!on) { return RawA(); }
    return four_of_down(row, k, params.K);
}
{{ gemm.plain("b") }}
fn fetch_b(row: u32, k: u32) -> RawB {
    if (row >= params.N || k >= params.K) { return RawB(); }
    let part = part_of(row);
    let entry = current_slot - 1u;
    let multiple = scale[entry * (params.K / params.rank) + part];
{% if aligned %}
    if (k / params.rank != part) { return RawB(); }
    return multiple * expand_factor(factor[((entry * params.N + row) * params.rank + k % params.rank) / 4u]);
{% else %}
    var values = RawB();
    for (var i = 0u; i < 4u; i++) {
        if ((k + i) / params.rank == part) {
            values[i] = multiple * factor_at((entry * params.N + row) * params.rank + (k + i) % params.rank);
        }
    }
    return values;
{% endif %}
}
fn store(m: u32, n: u32, sums: vec4<f32>) {
    let c = sums * multiplier[m];
{{ gemm.put("y", True, "m", "n", "params.N", "true") }}
}
{{ gemm.main(True, True, slots=True, k_range=True) }}
