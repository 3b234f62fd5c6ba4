{#
The ternary product for at most `rows` rows, with LoRA's second factor (`lora`):

    y[t, n] (= or +=) Σ_k x[t, k] * w[n, k] / scales[t] * part_scale(n)
                      + multiplier[t] * scale[slot, part(n)] * Σ_j down[t, part(n) * rank + j] * b[slot[t] - 1, n, j]

x: i8 [T, K] (`exact`: integer products and sums) or f32 [T, K] without scales. words u32 [N, ceil(K / 16)]: 2-bit codes
w + 1, column k in word k / 16 at bit 8 * (k % 4) + 2 * (k / 4 % 4). y f32 [T, N]. down f32 [T, parts * rank], b f32 or
(`half`) f16 [pool, N, rank], scale f32 [pool, parts]; per_row is one range of memory in which slot i32 [T] begins at `slot_at` and
multiplier f32 [T] at `multiplier_at`.

Work: `lanes` threads share `tile` outputs n; each takes every lanes-th unit of their codes, `unroll` units at a time, all
loads of which are under way before the first product. A unit is a word or, where K is a multiple of 64 (`wide`), four.
A workgroup
makes its outputs of `rows` rows; one row is `staged`, as so many units, in workgroup memory. `single`: the pool has one
entry, whose place no slot needs to tell. The correction of an output is the work of as many of the lanes as the rank has
pieces (vectors of 4 where it is `aligned`), so that the lanes see to several outputs at once. Grid: (ceil(N / (threads / lanes * tile)), ceil(T / rows), 1).
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "lora.wgsl" as lora_parts with context %}
{{ prelude.params("T: u32", "N: u32", "K: u32", "ends0: u32", "ends1: u32", "ends2: u32",
    "scale0: f32", "scale1: f32", "scale2: f32", "scale3: f32", "parts: u32", "slot_at: u32", "multiplier_at: u32") }}
{% set wide_x = wide or not exact %}
{{ binding("x", ("array<vec4<u32>>" if wide else "array<u32>") if exact else "array<vec4<f32>>") }}
{{ binding("words", "array<vec4<u32>>" if wide else "array<u32>") }}
{{ binding("y", "array<f32>") }}
{% if exact %}
{{ binding("scales", "array<f32>") }}
{% endif %}
{% if lora %}
{{ binding("down", "array<vec4<f32>>" if aligned else "array<f32>") }}
{{ lora_parts.vectors("b") if aligned else lora_parts.numbers("b") }}
{{ binding("per_row", "array<u32>") }}
{{ binding("scale", "array<f32>") }}
{% endif %}
{% set number = "i32" if exact else "f32" %}
{% set groups = threads // lanes %}
{% set outputs = groups * tile %}
{% if lora %}
{% set pieces = rank // 4 if aligned else rank %}
{% set at_once = lanes // share_lanes %}
{% set sets = (tile + at_once - 1) // at_once %}
{% set steps = (pieces + share_lanes - 1) // share_lanes %}
{% endif %}
{% set round_rows = [rows, [12288 // (threads * tile * (8 if lora else 4)), 1] | max] | min %}
{{ prelude.functions() }}
{{ lora_parts.part_of() }}
{% if staged %}
// x, the vectors of neighbouring units side by side.
var<workgroup> staged_x: array<vec4<u32>, {{ 4 * staged }}>;
{% endif %}
var<workgroup> partial: array<{{ number }}, {{ round_rows * threads * tile }}>;
{% if lora %}
var<workgroup> partial_lora: array<f32, {{ round_rows * threads * sets }}>;
{% endif %}

fn scale_of(part: u32) -> f32 {
    return select(select(params.scale0, params.scale1, part == 1u), select(params.scale2, params.scale3, part == 3u), part > 1u);
}

// A word's 16 numbers as 2-bit two's complements: codes 0, 1, 2 become 3, 0, 1.
fn signed(word: {{ "vec4<u32>" if wide else "u32" }}) -> {{ "vec4<u32>" if wide else "u32" }} {
{% if wide %}
    return ~(word | ((word << vec4<u32>(1u)) & vec4<u32>(0xaaaaaaaau)));
{% else %}
    return ~(word | ((word << 1u) & 0xaaaaaaaau));
{% endif %}
}

{# Loads of the units that begin at `at`; units past the row's end are zeros. #}
{% macro load_units() %}
{% for r in range(tile) %}
{% for u in range(unroll) %}
{% set past = "at + %du >= units" % (u * lanes) %}
        word{{ r }}_{{ u }} = {{ "words[row%d + at + %du]" % (r, u * lanes) if whole else
            "select(words[row%d + min(at + %du, units - 1u)], %s, %s)" % (r, u * lanes, "vec4<u32>(0x55555555u)" if wide else "0x55555555u", past) }};
{% endfor %}
{% endfor %}
{% endmacro %}

{# The correction's share of each lane: its loads, of a few steps over the rank, and its sums. #}
{% macro piece(name, of, j) %}{{ "%s[%s * %du + %s]" % (name, of, pieces, j) if aligned or name == "down" else "b_at(%s * %du + %s)" % (of, pieces, j) }}{% endmacro %}
{% set product = "dot(%s, expand_b(%s))" if lora and aligned else "%s * %s" %}
{% macro lora_loads() %}
    let piece = lane % {{ share_lanes }}u;
{% for k in range(sets) %}
    let share_n{{ k }} = min(first + group * {{ tile }}u + min({{ k * at_once }}u + lane / {{ share_lanes }}u, {{ tile - 1 }}u), params.N - 1u);
    let share_part{{ k }} = part_of(share_n{{ k }});
{% endfor %}
{% for t in range(rows) %}
    let entry{{ t }} = {{ "0u" if single else "(max(per_row[params.slot_at + t%d], 1u) - 1u) * params.N" % t }};
    let down{{ t }} = t{{ t }} * params.parts;
{% for k in range(sets) %}
{% for s in range(steps if steps <= 4 else 0) %}
{% set j = "min(piece + %du, %du)" % (s * share_lanes, pieces - 1) %}
    let b{{ t }}_{{ k }}_{{ s }} = {{ piece("b", "(entry%d + share_n%d)" % (t, k), j) }};
    let d{{ t }}_{{ k }}_{{ s }} = select({{ "vec4<f32>()" if aligned else "0.0" }}, {{ piece("down", "(down%d + share_part%d)" % (t, k), j) }}, piece + {{ s * share_lanes }}u < {{ pieces }}u);
{% endfor %}
{% endfor %}
{% endfor %}
{% endmacro %}
{% macro lora_shares() %}
{% for t in range(rows) %}
{% for k in range(sets) %}
{% if steps <= 4 %}
    let share{{ t }}_{{ k }} = {% for s in range(steps) %}{{ " + " if s else "" }}{{ product % ("d%d_%d_%d" % (t, k, s), "b%d_%d_%d" % (t, k, s)) }}{% endfor %};
{% else %}
    var share{{ t }}_{{ k }} = 0.0;
    for (var j = piece; j < {{ pieces }}u; j += {{ share_lanes }}u) {
        share{{ t }}_{{ k }} += {{ product % (piece("down", "(down%d + share_part%d)" % (t, k), "j"), piece("b", "(entry%d + share_n%d)" % (t, k), "j")) }};
    }
{% endif %}
{% endfor %}
{% endfor %}
{% endmacro %}

{# What the thread that ends output `n` of row `t` needs beside the sums; `name` begins the names. #}
{% macro ending(name) %}
    let {{ name }}_part = part_of({{ name }}_n);
    let {{ name }}_scale = scale_of({{ name }}_part);
{% if exact %}
    let {{ name }}_row_scale = scales[{{ name }}_t];
{% endif %}
    let {{ name }}_before = {{ "y[%s_t * params.N + %s_n]" % (name, name) if accumulate else "0.0" }};
{% if lora %}
    let {{ name }}_slot = per_row[params.slot_at + {{ name }}_t];
    let {{ name }}_factor = bitcast<f32>(per_row[params.multiplier_at + {{ name }}_t]) * scale[{{ "0u" if single else "(max(%s_slot, 1u) - 1u) * params.parts" % name }} + {{ name }}_part];
{% endif %}
{% endmacro %}

{{ prelude.main(threads) }}
    let first = wg.x * {{ outputs }}u;
    let first_row = wg.y * {{ rows }}u;
    let lane = li % {{ lanes }}u;
    let group = li / {{ lanes }}u;
    let units = {{ "params.K / 64u" if wide else "(params.K + 15u) / 16u" }};
    let quads = params.K / {{ "16u" if exact and wide else "4u" }};
{% for r in range(tile) %}
    let n{{ r }} = min(first + group * {{ tile }}u + {{ r }}u, params.N - 1u);
    let part{{ r }} = part_of(n{{ r }});
    let row{{ r }} = n{{ r }} * units;
{% for u in range(unroll) %}
    var word{{ r }}_{{ u }}: {{ "vec4<u32>" if wide else "u32" }};
{% endfor %}
{% endfor %}
{% for t in range(rows) %}
    let t{{ t }} = min(first_row + {{ t }}u, params.T - 1u);
    let x{{ t }} = t{{ t }} * quads;
{% for r in range(tile) %}
    var acc{{ t }}_{{ r }} = {{ number }}(0);
{% endfor %}
{% endfor %}
    var at = lane;
{{ load_units() }}
{% if rows == 1 %}
    let end_t = t0;
    let end_n = min(first + li, params.N - 1u);
{{ ending("end") }}
{% endif %}
{% set stage_steps = (4 * staged + threads - 1) // threads %}
{% for u in range(stage_steps) %}
    let stage{{ u }} = x[x0 + min(li + {{ u * threads }}u, {{ 4 * staged - 1 }}u)];
{% endfor %}
{% if lora and rows <= 2 %}
{{ lora_loads() }}
{% endif %}
{% if staged %}
{% for u in range(stage_steps) %}
    {
        let i = min(li + {{ u * threads }}u, {{ 4 * staged - 1 }}u);
        staged_x[i % 4u * {{ staged }}u + i / 4u] = stage{{ u }};
    }
{% endfor %}
    workgroupBarrier();
{% endif %}
    loop {
{% for u in range(unroll) %}
        {
        let unit = {{ "at + %du" % (u * lanes) if whole else "min(at + %du, units - 1u)" % (u * lanes) }};
{% for q in range(4 if wide else 1) %}
{% for r in range(tile) %}
        let w{{ q }}_{{ r }} = signed(word{{ r }}_{{ u }}){{ "." ~ "xyzw"[q] if wide else "" }};
{% for j in range(4) %}
{% if exact %}
        // Four numbers in the upper bits of four bytes: 64 times their value.
        let c{{ q }}_{{ r }}_{{ j }} = {{ "w%d_%d" % (q, r) if j == 3 else "(w%d_%d << %du)" % (q, r, 6 - 2 * j) }} & 0xc0c0c0c0u;
{% else %}
        let c{{ q }}_{{ r }}_{{ j }} = vec4<f32>(load_i8x4({{ "w%d_%d" % (q, r) if j == 3 else "(w%d_%d << %du)" % (q, r, 6 - 2 * j) }} & 0xc0c0c0c0u));
{% endif %}
{% endfor %}
{% endfor %}
{% for t in range(rows) %}
{% if exact and wide %}
        let v{{ q }}_{{ t }} = {{ "staged_x[%du + unit]" % (q * staged) if staged else "x[x%d + unit * 4u + %du]" % (t, q) }};
{% endif %}
{% for j in range(4) %}
{% if exact and not wide %}
        // Past the last column the codes are those of zero, so what is read there from x does not count.
        let v{{ q }}_{{ t }}_{{ j }} = x[x{{ t }} + unit * 4u + {{ j }}u];
{% elif not exact %}
        let v{{ q }}_{{ t }}_{{ j }} = select(vec4<f32>(), x[x{{ t }} + unit * {{ 16 if wide else 4 }}u + {{ 4 * q + j }}u], unit * {{ 16 if wide else 4 }}u + {{ 4 * q + j }}u < quads);
{% endif %}
{% for r in range(tile) %}
{% if exact %}
        acc{{ t }}_{{ r }} += dot4I8Packed(c{{ q }}_{{ r }}_{{ j }}, {{ "v%d_%d.%s" % (q, t, "xyzw"[j]) if wide else "v%d_%d_%d" % (q, t, j) }});
{% else %}
        acc{{ t }}_{{ r }} += dot(c{{ q }}_{{ r }}_{{ j }}, v{{ q }}_{{ t }}_{{ j }});
{% endif %}
{% endfor %}
{% endfor %}
{% endfor %}
{% endfor %}
        }
{% endfor %}
        at += {{ lanes * unroll }}u;
        if (at >= units) { break; }
{{ load_units() }}
    }
{% if lora %}
{{ lora_loads() if rows > 2 }}
{{ lora_shares() }}
{% endif %}
{% for start in range(0, rows, round_rows) %}
{% set count = [round_rows, rows - start] | min %}
{% if start %}
    workgroupBarrier();
{% endif %}
{% for t in range(count) %}
{% for r in range(tile) %}
    partial[{{ (t * tile + r) * threads }}u + li] = acc{{ start + t }}_{{ r }};
{% endfor %}
{% for k in range(sets if lora else 0) %}
    partial_lora[{{ (t * sets + k) * threads }}u + li] = share{{ start + t }}_{{ k }};
{% endfor %}
{% endfor %}
    workgroupBarrier();
    for (var i = li; i < {{ count * outputs }}u; i += {{ threads }}u) {
        let t = first_row + {{ start }}u + i / {{ outputs }}u;
        let out = i % {{ outputs }}u;
        let n = first + out;
        if (t >= params.T || n >= params.N) { continue; }
        let from_lane = ((i / {{ outputs }}u) * {{ tile }}u + out % {{ tile }}u) * {{ threads }}u + (out / {{ tile }}u) * {{ lanes }}u;
        var total = {{ number }}(0);
        for (var l = 0u; l < {{ lanes }}u; l++) { total += partial[from_lane + l]; }
{% if rows > 1 %}
        let end_t = t;
        let end_n = n;
{{ ending("end") }}
{% endif %}
        var value = {{ "f32(total >> 6u) / end_row_scale" if exact else "total / 64.0" }} * end_scale;
{% if lora %}
        if (end_slot > 0u) {
            let in_tile = out % {{ tile }}u;
            let from_share = ((i / {{ outputs }}u) * {{ sets }}u + in_tile / {{ at_once }}u) * {{ threads }}u
                + (out / {{ tile }}u) * {{ lanes }}u + (in_tile % {{ at_once }}u) * {{ share_lanes }}u;
            var sum = 0.0;
            for (var l = 0u; l < {{ share_lanes }}u; l++) { sum += partial_lora[from_share + l]; }
            value += end_factor * sum;
        }
{% endif %}
        y[t * params.N + n] = end_before + value;
    }
{% endfor %}
}
