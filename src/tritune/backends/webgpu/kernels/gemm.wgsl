{#
A tiled product C[m, n] = Σ_k a[m, k] * b[n, k], whatever a, b and C are: macros for the kernels named *_gemm.wgsl.

The kernel's parameters hold M, N and K (in this sense); the kernel defines

    fn load_a(m: u32, k: u32) -> vec4<f32>       a[m … m + 3, k], zero where k >= K; m is a multiple of 4
    fn load_b(n: u32, k: u32) -> vec4<f32>       b[n … n + 3, k], finite where k >= K
    fn store(m: u32, n: u32, c: vec4<f32>)       C[m, n … n + 3]; called for m < M, n < N; n a multiple of 4

and both loaders return something finite for m >= M and n >= N, which is not stored.

Work: a workgroup of 256 threads makes a tile of 64 × 64, a thread 4 × 4 of it, 16 of the k at a time through workgroup
memory. Every accumulator is a named variable: indexed in a loop they cost a factor of 17 on an H200 (39 against
2.3 TFLOP/s for a tile of this kind). Rows of the tiles are 17 vectors apart, so that writes along k hit different banks.
Grid: (ceil(N / 64), ceil(M / 64), 1).
#}

{# The product itself. by_k: neighbouring threads load neighbouring k (for operands that are contiguous along k),
   otherwise neighbouring m or n. setup: statements run first. With slots, the kernel defines
   `fn slot_of(m: u32) -> u32`; the product is repeated for every adapter slot > 0 that occurs in the tile's 64 rows, the
   loaders see it in `current_slot`, and load_a must return zero for rows of another slot. #}
{% macro main(a_by_k, b_by_k, setup="", slots=False) %}
var<workgroup> tile_a: array<vec4<f32>, {{ 16 * 17 }}>;
var<workgroup> tile_b: array<vec4<f32>, {{ 16 * 17 }}>;
{% if slots %}
var<workgroup> smallest_slot: atomic<u32>;
var<workgroup> chosen_slot: u32;
{% endif %}
@compute @workgroup_size(256)
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) li: u32,
) {
    {{ setup }}
    let n0 = wg.x * 64u;
    let m0 = (wg.y + wg.z * grid.y) * 64u;
    let low = li % 16u;
    let high = li / 16u;
{% for i in range(4) %}
    var acc{{ i }} = vec4<f32>();
{% endfor %}
{% if slots %}
    current_slot = 0u;
    loop {
        if (li == 0u) { atomicStore(&smallest_slot, 0xffffffffu); }
        workgroupBarrier();
        if (li < 64u && m0 + li < params.M) {
            let slot = slot_of(m0 + li);
            if (slot > current_slot) { atomicMin(&smallest_slot, slot); }
        }
        workgroupBarrier();
        if (li == 0u) { chosen_slot = atomicLoad(&smallest_slot); }
        current_slot = workgroupUniformLoad(&chosen_slot);
        if (current_slot == 0xffffffffu) { break; }
{{ product(a_by_k, b_by_k) }}
    }
{% else %}
{{ product(a_by_k, b_by_k) }}
{% endif %}
{% for i in range(4) %}
    if (m0 + high * 4u + {{ i }}u < params.M && n0 + low * 4u < params.N) {
        store(m0 + high * 4u + {{ i }}u, n0 + low * 4u, acc{{ i }});
    }
{% endfor %}
}
{% endmacro %}

{% macro product(a_by_k, b_by_k) %}
    for (var k0 = 0u; k0 < params.K; k0 += 16u) {
{% for name, by_k in (("a", a_by_k), ("b", b_by_k)) %}
{% set origin = "m0" if name == "a" else "n0" %}
{% if by_k %}
        tile_{{ name }}[low * 17u + high] = load_{{ name }}({{ origin }} + high * 4u, k0 + low);
{% else %}
        tile_{{ name }}[high * 17u + low] = load_{{ name }}({{ origin }} + low * 4u, k0 + high);
{% endif %}
{% endfor %}
        workgroupBarrier();
{% for k in range(16) %}
        let a{{ k }} = tile_a[{{ k * 17 }}u + high];
        let b{{ k }} = tile_b[{{ k * 17 }}u + low];
{% for i in range(4) %}
        acc{{ i }} = fma(vec4<f32>(a{{ k }}.{{ "xyzw"[i] }}), b{{ k }}, acc{{ i }});
{% endfor %}
{% endfor %}
        workgroupBarrier();
    }
{% endmacro %}

{# fn load_<name>(row, k) from fn <name>_at(row, k) -> f32. #}
{% macro load_each(name) %}
fn load_{{ name }}(row: u32, k: u32) -> vec4<f32> {
    return vec4<f32>({{ name }}_at(row, k), {{ name }}_at(row + 1u, k), {{ name }}_at(row + 2u, k), {{ name }}_at(row + 3u, k));
}
{% endmacro %}

{# Statements that write c to target[base + n … n + 3], as far as n < N; accumulate is a WGSL condition. #}
{% macro store_row(target, base, accumulate="false") %}
    for (var i = 0u; i < 4u && n + i < params.N; i++) {
        let at = {{ base }} + n + i;
        if ({{ accumulate }}) { {{ target }}[at] += c[i]; } else { {{ target }}[at] = c[i]; }
    }
{% endmacro %}
