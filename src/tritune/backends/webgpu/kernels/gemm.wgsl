{#
A tiled product C[m, n] = Σ_k a[m, k] * b[n, k], whatever a, b and C are: macros for the kernels named *_gemm.wgsl, which
import this file with context. Their parameters hold M, N and K (in this sense) first, then the row and column from which on the
grid counts (a product may be several dispatches); the kernel defines

    alias RawA = …;                                           what is loaded of a at once (RawB of b likewise)
    fn fetch_a(m: u32, k: u32) -> RawA                        four elements: a[m, k … k + 3] if a goes by k, else
                                                              a[m … m + 3, k]; what expands to zeros where k >= K
    fn expand_a(raw: RawA, m: u32, k: u32) -> vec4<f32>       the four numbers; loads nothing, for here all threads wait
    fn store(m: u32, n: u32, c: vec4<f32>)                    C[m, n … n + 3]; called for m < M, n < N; n a multiple of 4

Rows m >= M and n >= N may hold anything: they are not stored. The index along which four go is a multiple of 4.

Variant `tile` = (rows, columns, depth, rows of a thread, columns of a thread), see tiles.py. A workgroup makes rows ×
columns of C, `depth` of the k at a time through workgroup memory, the next ones on their way in registers meanwhile. A
thread's elements are groups of 4 × 4, so that neighbouring threads read neighbouring vectors. Every accumulator is a named
variable: indexed in a loop they cost a factor of 17 on an H200 (39 against 2.3 TFLOP/s for a tile of this kind).

Variant `stage`: "whole"; or "partial": splits workgroups share the k of a tile and write their sums to `partial` f32
[splits, M, N rounded up to 4], which a dispatch of the same kernel with "sum" adds up and stores. The grid says how many:
(ceil(N / columns) * splits, ceil(M / rows), 1); of "sum" it is one thread for each vec4 of C.
#}
{% set bm, bn, bk, tm, tn = tile %}
{% set threads_m = bm // tm %}
{% set threads_n = bn // tn %}
{% set threads = threads_m * threads_n %}
{% set threads_sum = 64 %}

{# The kernel's entry point. by_k: see fetch. setup: statements run first. k_range: the kernel defines
   `fn k_range(m0: u32, n0: u32) -> vec2<u32>`, the first k and the end of those that count for the tile at (m0, n0).
   With slots, the kernel defines `fn slot_of(m: u32) -> u32`; the product is repeated for every adapter slot > 0 that occurs
   in the tile's rows, the loaders see it in `current_slot`; fetch_a has a third argument, whether the row is of this slot (which is looked up once
   for a walk over k), and must return zeros if not. #}
{% macro main(a_by_k, b_by_k, setup="", slots=False, k_range=False) %}
{% if stage != "whole" %}
{{ binding("partial", "array<vec4<f32>>") }}
{% endif %}
{% if stage == "sum" %}
@compute @workgroup_size({{ threads_sum }})
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) li: u32,
) {
    {{ setup }}
    let columns = (params.N + 3u) / 4u;
    let count = params.M * columns;
    let i = (wg.x + wg.y * grid.x) * {{ threads_sum }}u + li;
    if (i >= count) { return; }
    var sum = partial[i];
    for (var at = i + count; at < arrayLength(&partial); at += count) {
        sum += partial[at];
    }
    store(i / columns, i % columns * 4u, sum);
}
{% else %}
var<workgroup> tile_a: array<vec4<f32>, {{ bk * (stride(bm, a_by_k) | int) }}>;
var<workgroup> tile_b: array<vec4<f32>, {{ bk * (stride(bn, b_by_k) | int) }}>;
{% if slots %}
var<workgroup> smallest_slot: atomic<u32>;
var<workgroup> chosen_slot: u32;
{% endif %}
@compute @workgroup_size({{ threads }})
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) li: u32,
) {
    {{ setup }}
{% if threads_n % 8 == 0 and threads_m % 4 == 0 %}
    // 32 threads are 4 × 8 patches of the tile, so that they read few vectors of either operand.
    let low = li / 32u % {{ threads_n // 8 }}u * 8u + li % 8u;
    let high = li / {{ 32 * (threads_n // 8) }}u * 4u + li / 8u % 4u;
{% else %}
    let low = li % {{ threads_n }}u;
    let high = li / {{ threads_n }}u;
{% endif %}
    let m0 = params.first_m + (wg.y + wg.z * grid.y) * {{ bm }}u;
{% if stage == "partial" %}
    let splits = grid.x / ((params.N + {{ bn - 1 }}u) / {{ bn }}u);
    let n0 = wg.x / splits * {{ bn }}u;
{% else %}
    let n0 = params.first_n + wg.x * {{ bn }}u;
{% endif %}
{% if k_range %}
    let bounds = k_range(m0, n0);
    var k_begin = bounds.x & 0xfffffffcu;
    var k_end = bounds.y;
{% else %}
    var k_begin = 0u;
    var k_end = params.K;
{% endif %}
{% if stage == "partial" %}
    let share = ((k_end - min(k_begin, k_end) + {{ bk - 1 }}u) / {{ bk }}u + splits - 1u) / splits * {{ bk }}u;
    k_begin += wg.x % splits * share;
    k_end = min(k_end, k_begin + share);
{% endif %}
{% for i in range(tm) %}
{% for j in range(tn // 4) %}
    var acc{{ i }}_{{ j }} = vec4<f32>();
{% endfor %}
{% endfor %}
{% if slots %}
    current_slot = 0u;
    loop {
        if (li == 0u) { atomicStore(&smallest_slot, 0xffffffffu); }
        workgroupBarrier();
        for (var row = m0 + li; row < min(m0 + {{ bm }}u, params.M); row += {{ threads }}u) {
            let slot = slot_of(row);
            if (slot > current_slot) { atomicMin(&smallest_slot, slot); }
        }
        workgroupBarrier();
        if (li == 0u) { chosen_slot = atomicLoad(&smallest_slot); }
        current_slot = workgroupUniformLoad(&chosen_slot);
        if (current_slot == 0xffffffffu) { break; }
{% for t in range((bm * bk // 4 + threads - 1) // threads) %}
        let row_a{{ t }} = m0 + {{ row_of(t, a_by_k, bm) }};
        let on_a{{ t }} = row_a{{ t }} < params.M && slot_of(min(row_a{{ t }}, params.M - 1u)) == current_slot;
{% endfor %}
{{ product(a_by_k, b_by_k, True) }}
    }
{% else %}
{{ product(a_by_k, b_by_k, False) }}
{% endif %}
{% for i in range(tm) %}
    {
        let m = m0 + {{ i // 4 * threads_m * 4 + i % 4 }}u + high * 4u;
        if (m < params.M) {
{% for j in range(tn // 4) %}
            if (n0 + {{ j * threads_n * 4 }}u + low * 4u < params.N) {
{% if stage == "partial" %}
                partial[(wg.x % splits * params.M + m) * ((params.N + 3u) / 4u) + n0 / 4u + {{ j * threads_n }}u + low] = acc{{ i }}_{{ j }};
{% else %}
                store(m, n0 + {{ j * threads_n * 4 }}u + low * 4u, acc{{ i }}_{{ j }});
{% endif %}
            }
{% endfor %}
        }
    }
{% endfor %}
}
{% endif %}
{% endmacro %}

{# Vectors from one k to the next in workgroup memory: one is left out so that writes along k hit different banks. #}
{% macro stride(rows, by_k) %}{{ rows // 4 + (1 if by_k else 0) }}{% endmacro %}

{% macro product(a_by_k, b_by_k, slots) %}
{{ load("a", a_by_k, bm, "m0", "k_begin", "var ", slots) }}
{{ load("b", b_by_k, bn, "n0", "k_begin", "var ") }}
    for (var k0 = k_begin; k0 < k_end; k0 += {{ bk }}u) {
        workgroupBarrier();
{{ keep("a", a_by_k, bm, "m0") }}
{{ keep("b", b_by_k, bn, "n0") }}
        workgroupBarrier();
{{ load("a", a_by_k, bm, "m0", "k0 + " ~ bk ~ "u", "", slots) }}
{{ load("b", b_by_k, bn, "n0", "k0 + " ~ bk ~ "u", "") }}
{% for k in range(bk) %}
{% for h in range(tm // 4) %}
        let a{{ k }}_{{ h }} = tile_a[{{ k * (stride(bm, a_by_k) | int) + h * threads_m }}u + high];
{% endfor %}
{% for j in range(tn // 4) %}
        let b{{ k }}_{{ j }} = tile_b[{{ k * (stride(bn, b_by_k) | int) + j * threads_n }}u + low];
{% endfor %}
{% for i in range(tm) %}
{% for j in range(tn // 4) %}
        acc{{ i }}_{{ j }} = fma(vec4<f32>(a{{ k }}_{{ i // 4 }}.{{ "xyzw"[i % 4] }}), b{{ k }}_{{ j }}, acc{{ i }}_{{ j }});
{% endfor %}
{% endfor %}
{% endfor %}
    }
{% endmacro %}

{# Element t of a thread in a tile of `rows`: its row and k within the tile. #}
{% macro row_of(t, by_k, rows) %}
{%- if by_k %}(li + {{ t * threads }}u) / {{ bk // 4 }}u{% else %}(li + {{ t * threads }}u) % {{ rows // 4 }}u * 4u{% endif -%}
{% endmacro %}
{% macro k_of(t, by_k, rows) %}
{%- if by_k %}(li + {{ t * threads }}u) % {{ bk // 4 }}u * 4u{% else %}(li + {{ t * threads }}u) / {{ rows // 4 }}u{% endif -%}
{% endmacro %}
{% macro guard(t, rows) %}
{% if (t + 1) * threads > rows * bk // 4 %}if (li < {{ rows * bk // 4 - t * threads }}u) {% endif %}
{% endmacro %}

{% macro load(name, by_k, rows, origin, k, declare, slots=False) %}
{% for t in range((rows * bk // 4 + threads - 1) // threads) %}
        {{ declare }}raw_{{ name }}{{ t }} = fetch_{{ name }}({{ origin }} + {{ row_of(t, by_k, rows) }}, {{ k }} + {{ k_of(t, by_k, rows) }}{{ ', on_a' ~ t if slots }});
{% endfor %}
{% endmacro %}

{% macro keep(name, by_k, rows, origin) %}
{% for t in range((rows * bk // 4 + threads - 1) // threads) %}
        {{ guard(t, rows) }}{
            let row = {{ row_of(t, by_k, rows) }};
            let k = {{ k_of(t, by_k, rows) }};
            let four = expand_{{ name }}(raw_{{ name }}{{ t }}, {{ origin }} + row, k0 + k);
{% if by_k %}
{% for i in range(4) %}
            tile_{{ name }}[(k + {{ i }}u) * {{ stride(rows, by_k) }}u + row / 4u][row % 4u] = four.{{ "xyzw"[i] }};
{% endfor %}
{% else %}
            tile_{{ name }}[k * {{ stride(rows, by_k) }}u + row / 4u] = four;
{% endif %}
        }
{% endfor %}
{% endmacro %}

{# fn expand_<name> for operands that are loaded as they are. #}
{% macro plain(name) %}
alias Raw{{ name | upper }} = vec4<f32>;
fn expand_{{ name }}(raw: vec4<f32>, row: u32, k: u32) -> vec4<f32> { return raw; }
{% endmacro %}

{# Ternary codes of a word, as linear_gemm.wgsl describes it: the four at bits 0, 8, 16, 24, minus one.
   Small integers in the low bits of 2^23's mantissa become floats without a conversion, which costs 4 times an addition. #}
{% macro ternary() %}
const ZERO_CODES = 0x01010101u;
fn ternary(word: u32) -> vec4<f32> {
    let codes = (vec4<u32>(word) >> vec4<u32>(0u, 8u, 16u, 24u)) & vec4<u32>(3u);
    return bitcast<vec4<f32>>(codes | vec4<u32>(0x4b000000u)) - 8388609.0;
}
{% endmacro %}

{# An f32 array whose rows are read and written in fours: as vectors where their length allows it (`aligned`).
   four_of_<name>(row, i, length): elements row * length + i …, zeros from `length` on. #}
{% macro fours(name, aligned) %}
{{ binding(name, "array<vec4<f32>>" if aligned else "array<f32>") }}
fn four_of_{{ name }}(row: u32, i: u32, length: u32) -> vec4<f32> {
    if (i >= length) { return vec4<f32>(); }
{% if aligned %}
    return {{ name }}[(row * length + i) / 4u];
{% else %}
    let at = row * length + i;
    var four = vec4<f32>({{ name }}[at], 0.0, 0.0, 0.0);
    if (i + 1u < length) { four.y = {{ name }}[at + 1u]; }
    if (i + 2u < length) { four.z = {{ name }}[at + 2u]; }
    if (i + 3u < length) { four.w = {{ name }}[at + 3u]; }
    return four;
{% endif %}
}
{% endmacro %}

{# Statements that write `c` to elements row * length + i … of an array of `fours`, as far as they are in the row. #}
{% macro put(name, aligned, row, i, length, accumulate="false") %}
{% if aligned %}
    {
        let at = ({{ row }} * {{ length }} + {{ i }}) / 4u;
        if ({{ accumulate }}) { {{ name }}[at] += c; } else { {{ name }}[at] = c; }
    }
{% else %}
    for (var each = 0u; each < 4u && {{ i }} + each < {{ length }}; each++) {
        let at = {{ row }} * {{ length }} + {{ i }} + each;
        if ({{ accumulate }}) { {{ name }}[at] += c[each]; } else { {{ name }}[at] = c[each]; }
    }
{% endif %}
{% endmacro %}
