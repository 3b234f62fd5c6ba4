{#
The ternary product of a single row in int8, and what lies around it in a block: the norm and quantisation of its input
(`front` "norm"), LoRA's second factor (`lora`), the GLU of gate and up (`glu`), and a share of the next linear's first
LoRA factor (`tail`). Recorded ops that follow one another are one dispatch so: see one_row.py.

    codes = round(v * 127 / max|v|) of v = gain * x / rms(x), or read (`front` "codes")
    y[n] (= or +=) Σ_k codes[k] * w[n, k] / row_scale * part_scale(n)
                   + multiplier * scale[slot, part(n)] * Σ_j down[part(n) * rank + j] * b[slot - 1, n, j]
    with `glu`: y[n] = act(value(n)) * value(n + N / 2) instead, for n < N / 2

LoRA's first factor comes from the dispatch before as sums over what each of its workgroups made, so that nobody reads
all of A at once: A normed = (Σ_k A[j, k] gain[k] x[k]) / rms, and a workgroup that makes some x[k] adds up those. `tail`:

    sums[out_at + wg * next_width + j] = Σ over the workgroup's n of y[n] * gain[next_gain_at + n] * a[slot - 1, j, n]

x f32 [K], or words: i8 [K] from word 0 and row_scale f32 at `scale_at`. gains f32: from `gain_at` [K], from `next_gain_at`
[outputs]. words: see linear_gemv.wgsl (`wide` there). adapters f32 or (`half`) f16: b [pool, N, rank] from vector of four
`b_at`, the next a [pool, next_width, outputs] from `a_at`. sums f32: from `in_at` [producers, width of down], from `out_at`.
per_row and scale: see linear_gemv.wgsl.

Work: `lanes` threads share an output (with `glu` two); a thread holds `held` vectors of x. `span` parts at most meet in a
workgroup, `producers` workgroups made the sums. Grid: (ceil(outputs / (threads / lanes)), 1, 1).
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "lora.wgsl" as lora_parts with context %}
{{ prelude.params("N: u32", "K: u32", "eps: f32", "ends0: u32", "ends1: u32", "ends2: u32", "scale0: f32", "scale1: f32",
    "scale2: f32", "scale3: f32", "parts: u32", "slot_at: u32", "multiplier_at: u32", "scale_at: u32", "gain_at: u32",
    "next_gain_at: u32", "b_at: u32", "a_at: u32", "in_at: u32", "out_at: u32") }}
{% set normed = front == "norm" %}
{{ binding("x", "array<vec4<f32>>" if normed else "array<vec4<u32>>") }}
{{ binding("words", "array<vec4<u32>>") }}
{{ binding("y", "array<f32>") }}
{% if gain or next_gain %}
{{ binding("gains", "array<vec4<f32>>") }}
{% endif %}
{% if lora or tail %}
{{ lora_parts.vectors("adapters") }}
{{ binding("sums", "array<vec4<f32>>") }}
{{ binding("per_row", "array<u32>") }}
{% endif %}
{% if lora %}
{{ binding("scale", "array<f32>") }}
{% endif %}
{% set outputs = threads // lanes %}
{% set tile = 2 if glu else 1 %}
{% set pieces = rank // 4 %}
{% set share_lanes = [lanes, pieces] | min %}
{% set share_steps = (pieces + share_lanes - 1) // share_lanes if lora else 0 %}
{% if lora %}
{% set sum_groups = [(producers + 3) // 4, threads // (span * pieces)] | min %}
{% set sum_steps = (producers + sum_groups - 1) // sum_groups %}
{% endif %}
{% if tail %}
{% set tail_quads = outputs // 4 %}
{% set tail_steps = (next_width * tail_quads + threads - 1) // threads %}
{% endif %}
{{ prelude.functions() }}
{{ lora_parts.part_of() }}
{% if normed %}
var<workgroup> coded: array<u32, {{ 16 * units }}>;
{% endif %}
// The codes, the vectors of neighbouring units side by side.
var<workgroup> staged: array<vec4<u32>, {{ 4 * units }}>;
var<workgroup> partial: array<i32, {{ threads * tile }}>;
{% if normed %}
var<workgroup> scratch_top: array<f32, {{ threads }}>;
var<workgroup> scratch_square: array<f32, {{ threads }}>;
{% endif %}
{% if lora %}
{% if normed %}
var<workgroup> sum_parts: array<vec4<f32>, {{ span * sum_groups * pieces }}>;
var<workgroup> sum_quarters: array<vec4<f32>, {{ 4 * span * pieces }}>;
{% endif %}
var<workgroup> down: array<vec4<f32>, {{ span * pieces }}>;
var<workgroup> partial_lora: array<f32, {{ threads * tile }}>;
{% endif %}
{% if tail %}
var<workgroup> made: array<f32, {{ outputs }}>;
var<workgroup> tail_parts: array<f32, {{ next_width * tail_quads }}>;
{% endif %}
{% if glu %}
{% include "glu.wgsl" %}
{% endif %}

{% set wide = true %}
{% include "ternary.wgsl" %}

{{ prelude.main(threads) }}
    let first = wg.x * {{ outputs }}u;
    let lane = li % {{ lanes }}u;
    let group = li / {{ lanes }}u;
    let count = params.N{{ " / 2u" if glu }};
    let quads = params.K / 4u;
{% for r in range(tile) %}
    let n{{ r }} = min(first + group, count - 1u){{ " + count" if r }};
    let row{{ r }} = n{{ r }} * {{ units }}u;
{% endfor %}
{# -- loads of the row, the weights and LoRA's first factor: all are under way before anything waits -- #}
{% set steps = (units + lanes - 1) // lanes %}
{% if normed %}
{% for s in range(held) %}
    let c{{ s }} = {{ "li + %du" % (s * threads) if (s + 1) * threads <= 16 * units else "min(li + %du, %du)" % (s * threads, 16 * units - 1) }};
    let x{{ s }} = x[c{{ s }}];
{% if gain %}
    let gain{{ s }} = gains[params.gain_at + c{{ s }}];
{% endif %}
{% endfor %}
{% else %}
{% for s in range((4 * units + threads - 1) // threads) %}
    let code{{ s }} = x[min(li + {{ s * threads }}u, {{ 4 * units - 1 }}u)];
{% endfor %}
    let row_scale = bitcast<f32>(x[params.scale_at / 4u][params.scale_at % 4u]);
{% endif %}
{% for r in range(tile) %}
{% for u in range(steps) %}
    let word{{ r }}_{{ u }} = words[row{{ r }} + {{ "lane + %du" % (u * lanes) if (u + 1) * lanes <= units else "min(lane + %du, %du)" % (u * lanes, units - 1) }}];
{% endfor %}
{% endfor %}
{% if lora or tail %}
    let slot = per_row[params.slot_at];
    let entry = {{ "0u" if single else "max(slot, 1u) - 1u" }};
{% endif %}
{% if lora %}
    let first_part = {{ "part_of(first)" if span == 1 else "0u" }};
    let sum_part = min(li / {{ sum_groups * pieces }}u, {{ span - 1 }}u);
    let sum_group = li / {{ pieces }}u % {{ sum_groups }}u;
    let sum_from = params.in_at + (first_part + sum_part) * {{ pieces }}u + li % {{ pieces }}u;
{% for s in range(sum_steps) %}
{% set producer = "sum_group + %du" % (s * sum_groups) %}
{% set whole = (s + 1) * sum_groups <= producers %}
    let sum{{ s }} = {{ "" if whole else "select(vec4<f32>(), " }}sums[sum_from + {{ "(%s)" % producer if whole else "min(%s, %du)" % (producer, producers - 1) }} * params.parts * {{ pieces }}u]{{ "" if whole else ", %s < %du)" % (producer, producers) }};
{% endfor %}
{% endif %}
{# -- the row's norm and codes -- #}
{% if normed %}
    var top = 0.0;
    var square = 0.0;
{% for s in range(held) %}
{% set last = (s + 1) * threads > 16 * units %}
{% if gain %}
    square += {{ "select(0.0, dot(x%d, x%d), li + %du < %du)" % (s, s, s * threads, 16 * units) if last else "dot(x%d, x%d)" % (s, s) }};
{% endif %}
    let v{{ s }} = x{{ s }}{{ " * gain%d" % s if gain }};
    let size{{ s }} = abs(v{{ s }});
    top = max(top, max(max(size{{ s }}.x, size{{ s }}.y), max(size{{ s }}.z, size{{ s }}.w)));
{% endfor %}
{% if subgroup %}
    let part_top = subgroupMax(top);
    let part_square = subgroupAdd(square);
    if subgroup_lane == 0u {
        scratch_top[subgroup_index] = part_top;
        scratch_square[subgroup_index] = part_square;
    }
{% else %}
    scratch_top[li] = top;
    scratch_square[li] = square;
{% endif %}
{% endif %}
{% if lora %}
    if li < {{ span * sum_groups * pieces }}u {
        {{ "sum_parts" if normed else "down" }}[li] = {% for s in range(sum_steps) %}{{ " + " if s }}sum{{ s }}{% endfor %};
    }
{% endif %}
{% if not normed %}
{% for s in range((4 * units + threads - 1) // threads) %}
    {
        let at = min(li + {{ s * threads }}u, {{ 4 * units - 1 }}u);
        staged[at % 4u * {{ units }}u + at / 4u] = code{{ s }};
    }
{% endfor %}
{% endif %}
    workgroupBarrier();
{# -- loads of what is needed in the end; earlier they would be in the way of the row's -- #}
{% if lora %}
    let piece = lane % {{ share_lanes }}u;
{% for r in range(tile) %}
{% for s in range(share_steps) %}
    let b{{ r }}_{{ s }} = adapters[params.b_at + (entry * params.N + n{{ r }}) * {{ pieces }}u + min(piece + {{ s * share_lanes }}u, {{ pieces - 1 }}u)];
{% endfor %}
{% endfor %}
{% endif %}
    let out_n = min(first + li, count - 1u);
{% for r in range(tile) %}
    let end_part{{ r }} = part_of(out_n{{ " + count" if r }});
{% if lora %}
    let end_factor{{ r }} = scale[entry * params.parts + end_part{{ r }}];
{% endif %}
{% endfor %}
{% if lora %}
    let multiplier = bitcast<f32>(per_row[params.multiplier_at]);
{% endif %}
{% if accumulate %}
    let before = y[out_n];
{% endif %}
{% if tail and next_gain %}
    let out_gain = gains[params.next_gain_at + out_n / 4u][out_n % 4u];
{% endif %}
{% if tail %}
    let tail_a = params.a_at + entry * {{ next_width }}u * (count / 4u);
{% for s in range(tail_steps) %}
    let tail_item{{ s }} = min(li + {{ s * threads }}u, {{ next_width * tail_quads - 1 }}u);
    let tail_quad{{ s }} = tail_item{{ s }} % {{ tail_quads }}u;
    let tail_j{{ s }} = tail_item{{ s }} / {{ tail_quads }}u;
    let a{{ s }} = adapters[tail_a + tail_j{{ s }} * (count / 4u) + min(first / 4u + tail_quad{{ s }}, count / 4u - 1u)];
{% endfor %}
{% endif %}
{% if not normed %}
    let inverse_rms = 1.0;
{% else %}
{% if subgroup %}
    top = 0.0;
    square = 0.0;
    for (var i = 0u; i < subgroup_count; i++) {
        top = max(top, scratch_top[i]);
        square += scratch_square[i];
    }
{% else %}
    for (var step = {{ threads // 2 }}u; step > 0u; step >>= 1u) {
        if li < step {
            scratch_top[li] = max(scratch_top[li], scratch_top[li + step]);
            scratch_square[li] += scratch_square[li + step];
        }
        workgroupBarrier();
    }
    top = scratch_top[0];
    square = scratch_square[0];
{% endif %}
    let inverse_rms = {{ "1.0 / sqrt(square / f32(params.K) + params.eps)" if gain else "1.0" }};
    let row_scale = 127.0 / max(top * inverse_rms, 1e-5);
{% for s in range(held) %}
    {{ "if li + %du < %du { " % (s * threads, 16 * units) if (s + 1) * threads > 16 * units }}coded[c{{ s }}] = pack_i8x4(vec4<i32>(clamp(round(v{{ s }} * inverse_rms * row_scale), vec4<f32>(-128.0), vec4<f32>(127.0)))){{ "; }" if (s + 1) * threads > 16 * units else ";" }}
{% endfor %}
{% endif %}
{% if normed %}
{% if lora %}
    if li < {{ 4 * span * pieces }}u {
        let quarter = li / {{ span * pieces }}u;
        let of_part = li / {{ pieces }}u % {{ span }}u * {{ sum_groups * pieces }}u + li % {{ pieces }}u;
        var sum = vec4<f32>();
        for (var g = quarter; g < {{ sum_groups }}u; g += 4u) { sum += sum_parts[of_part + g * {{ pieces }}u]; }
        sum_quarters[li] = sum;
    }
{% endif %}
    workgroupBarrier();
{% for s in range((4 * units + threads - 1) // threads) %}
    {
        let at = min(li + {{ s * threads }}u, {{ 4 * units - 1 }}u);
        staged[at % 4u * {{ units }}u + at / 4u] = vec4<u32>(coded[4u * at], coded[4u * at + 1u], coded[4u * at + 2u], coded[4u * at + 3u]);
    }
{% endfor %}
{% if lora %}
    if li < {{ span * pieces }}u {
        down[li] = (sum_quarters[li]{% for h in range(1, 4) %} + sum_quarters[li + {{ h * span * pieces }}u]{% endfor %}) * inverse_rms;
    }
{% endif %}
    workgroupBarrier();
{% endif %}
{# -- the product -- #}
{% for r in range(tile) %}
    var acc{{ r }} = 0;
{% endfor %}
{% for u in range(steps) %}
    {
        let unit = {{ "lane + %du" % (u * lanes) if (u + 1) * lanes <= units else "min(lane + %du, %du)" % (u * lanes, units - 1) }};
{% for r in range(tile) %}
        let s{{ r }} = {{ "signed(word%d_%d)" % (r, u) if (u + 1) * lanes <= units else "select(vec4<u32>(), signed(word%d_%d), lane + %du < %du)" % (r, u, u * lanes, units) }};
{% endfor %}
{% for q in range(4) %}
        let v4_{{ q }} = staged[{{ q * units }}u + unit];
{% for j in range(4) %}
        {
            let v = v4_{{ q }}.{{ "xyzw"[j] }};
{% for r in range(tile) %}
            // Four numbers in the upper bits of four bytes: 64 times their value.
            acc{{ r }} += dot4I8Packed({{ "s%d.%s" % (r, "xyzw"[q]) if j == 3 else "(s%d.%s << %du)" % (r, "xyzw"[q], 6 - 2 * j) }} & 0xc0c0c0c0u, v);
{% endfor %}
        }
{% endfor %}
{% endfor %}
    }
{% endfor %}
{% for r in range(tile) %}
    partial[{{ r * threads }}u + li] = acc{{ r }};
{% if lora %}
    let down_at{{ r }} = {{ "0u" if span == 1 else "part_of(n%d) * %du" % (r, pieces) }};
    partial_lora[{{ r * threads }}u + li] = {% for s in range(share_steps) %}{{ " + " if s }}dot(expand_adapters(b{{ r }}_{{ s }}), down_vector(down_at{{ r }}, piece + {{ s * share_lanes }}u)){% endfor %};
{% endif %}
{% endfor %}
    workgroupBarrier();
    if li < {{ outputs }}u {
{% for r in range(tile) %}
        var total{{ r }} = 0;
        for (var l = 0u; l < {{ lanes }}u; l++) { total{{ r }} += partial[{{ r * threads }}u + li * {{ lanes }}u + (l + li) % {{ lanes }}u]; }
        var value{{ r }} = f32(total{{ r }} >> 6u) / row_scale * scale_of(end_part{{ r }});
{% if lora %}
        if slot > 0u {
            var sum = 0.0;
            for (var l = 0u; l < {{ share_lanes }}u; l++) { sum += partial_lora[{{ r * threads }}u + li * {{ lanes }}u + l]; }
            value{{ r }} += multiplier * end_factor{{ r }} * sum;
        }
{% endif %}
{% endfor %}
        let result = {{ "before + " if accumulate }}{{ "activate(vec4<f32>(value0)).x * value1" if glu else "value0" }};
        if first + li < count { y[first + li] = result; }
{% if tail %}
        made[li] = select(0.0, result{{ " * out_gain" if next_gain }}, first + li < count);
{% endif %}
    }
{% if tail %}
    workgroupBarrier();
{% for s in range(tail_steps) %}
    {
        let at = 4u * tail_quad{{ s }};
        tail_parts[tail_quad{{ s }} * {{ next_width }}u + tail_j{{ s }}] = dot(expand_adapters(a{{ s }}), vec4<f32>(made[at], made[at + 1u], made[at + 2u], made[at + 3u]));
    }
{% endfor %}
    workgroupBarrier();
    if li < {{ next_width // 4 }}u {
        var sum = vec4<f32>();
{% for v in range(tail_quads) %}
        {
            let at = 4u * li + {{ v * next_width }}u;
            sum += vec4<f32>(tail_parts[at], tail_parts[at + 1u], tail_parts[at + 2u], tail_parts[at + 3u]);
        }
{% endfor %}
        sums[params.out_at + wg.x * {{ next_width // 4 }}u + li] = sum;
    }
{% endif %}
}
{% if lora %}
// Four numbers of LoRA's first factor in a part that begins at `first`, zeros past its end.
fn down_vector(first: u32, piece: u32) -> vec4<f32> {
    return {{ "down[first + piece]" if pieces % share_lanes == 0 else "select(vec4<f32>(), down[first + min(piece, %du)], piece < %du)" % (pieces - 1, pieces) }};
}
{% endif %}
