{#
Shared macros. A kernel file begins with

    {% import "prelude.wgsl" as prelude with context %}
    {{ prelude.params("T: u32", "D: u32", "eps: f32") }}      struct Params and var<uniform> params at binding 0
    {{ binding("x", "array<f32>") }}                            storage buffers, numbered 1, 2, … in this order, all read_write
    {{ prelude.functions() }}                                   workgroup_1d, workgroup_y, load_* (below)
    {{ prelude.reduce("sum", "f32") }}                          fn workgroup_sum_f32(value: f32) -> f32
    {{ prelude.main() }}                                        fn main(…) {  — with `wg`, `grid` and `li` in scope
        let row = workgroup_1d(wg, grid);
        let total = workgroup_sum_f32(value);
    }

`main(size)` takes the workgroup's size (the device's `workgroup_size` by default), which reductions are told too:
`reduce("sum", "f32", size)`. Sizes are powers of two.

Barriers and reductions must be reached by all threads of a workgroup or none: guard rows with a condition that is the
same for the whole workgroup, and elements by giving the neutral value, never by `return` before a reduction.

A grid side beyond the device's limit (65535) is folded by the host: x goes on in y when y is 1 (then use workgroup_1d, and
guard: there may be more workgroups than asked for), y goes on in z when z is 1 (then use workgroup_y, guarded likewise).

What browsers want different from wgpu-native lives here alone: a browser needs `enable subgroups;` in front.
#}

{% macro params() %}
struct Params {
{% for field in varargs %}
    {{ field }},
{% endfor %}
}
@group(0) @binding(0) var<uniform> params: Params;
{% endmacro %}

{% macro functions() %}
// Index of a workgroup in a grid that was asked for as (n, 1, 1).
fn workgroup_1d(wg: vec3<u32>, grid: vec3<u32>) -> u32 { return wg.x + wg.y * grid.x; }
// Index in y of a workgroup in a grid that was asked for as (m, n, 1).
fn workgroup_y(wg: vec3<u32>, grid: vec3<u32>) -> u32 { return wg.y + wg.z * grid.y; }
// The two or four numbers packed in a word, first in the low bits.
fn load_f16x2(word: u32) -> vec2<f32> { return unpack2x16float(word); }
fn load_bf16x2(word: u32) -> vec2<f32> { return vec2<f32>(bitcast<f32>(word << 16u), bitcast<f32>(word & 0xffff0000u)); }
fn load_i8x4(word: u32) -> vec4<i32> {
    let w = bitcast<i32>(word);
    return vec4<i32>((w << 24u) >> 24u, (w << 16u) >> 24u, (w << 8u) >> 24u, w >> 24u);
}
// Four small integers (of which the low 8 bits count) in a word.
fn pack_i8x4(v: vec4<i32>) -> u32 {
    let b = vec4<u32>(v) & vec4<u32>(0xffu);
    return b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
}
{% endmacro %}

{% macro main(size=None) %}
{% if subgroup %}
var<private> subgroup_lane: u32;
var<private> subgroup_index: u32;
var<private> subgroup_count: u32;
{% else %}
var<private> local_index: u32;
{% endif %}
@compute @workgroup_size({{ size or workgroup_size }})
fn main(
    @builtin(workgroup_id) wg: vec3<u32>,
    @builtin(num_workgroups) grid: vec3<u32>,
    @builtin(local_invocation_index) li: u32,
{% if subgroup %}
    @builtin(subgroup_invocation_id) builtin_lane: u32,
    @builtin(subgroup_id) builtin_subgroup: u32,
    @builtin(num_subgroups) builtin_count: u32,
{% endif %}
) {
{% if subgroup %}
    subgroup_lane = builtin_lane;
    subgroup_index = builtin_subgroup;
    subgroup_count = builtin_count;
{% else %}
    local_index = li;
{% endif %}
{% endmacro %}

{# What joins two values, and the value that changes nothing. #}
{% macro joined(op, a, b) %}
{%- if op == "sum" %}{{ a }} + {{ b }}{% else %}{{ op }}({{ a }}, {{ b }}){% endif -%}
{% endmacro %}
{% macro neutral(op, type) %}
{%- if op == "sum" %}{{ type }}(0)
{%- elif type == "f32" %}{{ "-3.4028234e38" if op == "max" else "3.4028234e38" }}
{%- elif type == "i32" %}{{ "-2147483647" if op == "max" else "2147483647" }}
{%- else %}{{ "0u" if op == "max" else "4294967295u" }}
{%- endif -%}
{% endmacro %}

{# fn workgroup_<op>_<type>(value) -> the sum, max or min over the workgroup, the same in every thread. #}
{% macro reduce(op, type, size=None) %}
{% set n = size or workgroup_size %}
var<workgroup> scratch_{{ op }}_{{ type }}: array<{{ type }}, {{ n }}>;
fn workgroup_{{ op }}_{{ type }}(value: {{ type }}) -> {{ type }} {
{% if subgroup %}
    let part = subgroup{{ {"sum": "Add", "max": "Max", "min": "Min"}[op] }}(value);
    if (subgroup_lane == 0u) { scratch_{{ op }}_{{ type }}[subgroup_index] = part; }
    workgroupBarrier();
    var total: {{ type }} = {{ neutral(op, type) }};
    for (var i = 0u; i < subgroup_count; i++) {
        total = {{ joined(op, "total", "scratch_" ~ op ~ "_" ~ type ~ "[i]") }};
    }
    workgroupBarrier();
{% else %}
    scratch_{{ op }}_{{ type }}[local_index] = value;
    workgroupBarrier();
    for (var step = {{ n // 2 }}u; step > 0u; step >>= 1u) {
        if (local_index < step) {
            let a = scratch_{{ op }}_{{ type }}[local_index];
            let b = scratch_{{ op }}_{{ type }}[local_index + step];
            scratch_{{ op }}_{{ type }}[local_index] = {{ joined(op, "a", "b") }};
        }
        workgroupBarrier();
    }
    let total = scratch_{{ op }}_{{ type }}[0];
    workgroupBarrier();
{% endif %}
    return total;
}
{% endmacro %}

{# fn workgroup_argmax(value, index) -> Best: the largest value over the workgroup and its index; of equals the smallest index. #}
{% macro argmax(size=None) %}
{% set n = size or workgroup_size %}
struct Best { value: f32, index: u32 }
var<workgroup> scratch_best_value: array<f32, {{ n }}>;
var<workgroup> scratch_best_index: array<u32, {{ n }}>;
fn better(a: Best, b: Best) -> Best {
    let take_b = b.value > a.value || (b.value == a.value && b.index < a.index);
    return Best(select(a.value, b.value, take_b), select(a.index, b.index, take_b));
}
fn workgroup_argmax(value: f32, index: u32) -> Best {
{% if subgroup %}
    let largest = subgroupMax(value);
    let smallest = subgroupMin(select(0xffffffffu, index, value == largest));
    if (subgroup_lane == 0u) {
        scratch_best_value[subgroup_index] = largest;
        scratch_best_index[subgroup_index] = smallest;
    }
    workgroupBarrier();
    var best = Best(scratch_best_value[0], scratch_best_index[0]);
    for (var i = 1u; i < subgroup_count; i++) {
        best = better(best, Best(scratch_best_value[i], scratch_best_index[i]));
    }
{% else %}
    scratch_best_value[local_index] = value;
    scratch_best_index[local_index] = index;
    workgroupBarrier();
    for (var step = {{ n // 2 }}u; step > 0u; step >>= 1u) {
        if (local_index < step) {
            let best = better(
                Best(scratch_best_value[local_index], scratch_best_index[local_index]),
                Best(scratch_best_value[local_index + step], scratch_best_index[local_index + step]),
            );
            scratch_best_value[local_index] = best.value;
            scratch_best_index[local_index] = best.index;
        }
        workgroupBarrier();
    }
    let best = Best(scratch_best_value[0], scratch_best_index[0]);
{% endif %}
    workgroupBarrier();
    return best;
}
{% endmacro %}

{# Joins `name` over groups of `count` threads next to each other, those `step` apart: all of them have the same then. They
   must be in one subgroup. #}
{% macro fold(name, count, step=1, op="sum") %}
{% for s in [1, 2, 4, 8, 16, 32, 64] if s >= step and s < count %}
    {{ name }} = {{ joined(op, name, "subgroupShuffleXor(%s, %du)" % (name, s)) }};
{% endfor %}
{% endmacro %}
