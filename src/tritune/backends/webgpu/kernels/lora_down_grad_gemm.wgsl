{#
The gradient of LoRA's first factor: for n in the part of column j,

    down_grad[t, j] = multiplier[t] * scale[slot, part] * Σ_n dy[t, n] * b[slot[t] - 1, n, j % rank]

dy f32 [T, Out]; b f32 [pool, Out, rank]; slot i32 [T]; multiplier f32 [T]; scale f32 [pool, parts];
down_grad f32 [T, width], =, zero in rows of slot 0. As a product: M = T, N = width, K = Out, of which a tile walks the
parts of its columns; b counts as zero outside of a column's own part. `aligned`: rank is a multiple of 4.
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "gemm.wgsl" as gemm with context %}
{% import "lora.wgsl" as lora with context %}
{{ prelude.params("M: u32", "N: u32", "K: u32", "first_m: u32", "first_n: u32", "rank: u32", "ends0: u32", "ends1: u32", "ends2: u32") }}
{{ gemm.fours("dy", True) }}
{{ gemm.fours("b", aligned) }}
{{ binding("slot", "array<u32>") }}
{{ binding("multiplier", "array<f32>") }}
{{ binding("scale", "array<f32>") }}
{{ gemm.fours("down_grad", aligned) }}
{{ lora.part_of() }}
var<private> current_slot: u32;
fn slot_of(m: u32) -> u32 { return slot[m]; }
fn k_range(m0: u32, n0: u32) -> vec2<u32> {
    let last = min(n0 + {{ tile[1] - 1 }}u, params.N - 1u);
    return vec2<u32>(part_start(n0 / params.rank), min(part_start(last / params.rank + 1u), params.K));
}
{{ gemm.plain("a") }}
fn fetch_a(row: u32, k: u32, on: bool) -> RawA {
    if (!on) { return RawA(); }
    return four_of_dy(row, k, params.K);
}
{{ gemm.plain("b") }}
fn fetch_b(n: u32, k: u32) -> RawB {
    let entry = current_slot - 1u;
    let part = part_of(k);
    if (k >= params.K) { return RawB(); }
    let factor = scale[entry * (params.N / params.rank) + part];
{% if aligned %}
    if (n / params.rank != part) { return RawB(); }
    return factor * four_of_b(entry * params.K + k, n % params.rank, params.rank);
{% else %}
    var values = RawB();
    for (var i = 0u; i < 4u; i++) {
        let column = n + i;
        if (column / params.rank == part) {
            values[i] = factor * b[(entry * params.K + k) * params.rank + column % params.rank];
        }
    }
    return values;
{% endif %}
}
fn store(m: u32, n: u32, sums: vec4<f32>) {
    let c = sums * multiplier[m];
{{ gemm.put("down_grad", aligned, "m", "n", "params.N") }}
}
{{ gemm.main(True, False, slots=True, k_range=True) }}
