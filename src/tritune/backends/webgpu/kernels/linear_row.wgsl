{#
The ternary product of a single row in int8, and what lies around it in a block: the norm and quantisation of its input
(`front` "norm"; with `splits` > 1 the row is joined first from what paged_attention_rows left of it), LoRA's second factor (`lora`), the GLU of gate and up (`glu`), and a share of the next linear's first
LoRA factor (`tail`). Recorded ops that follow one another are one dispatch so: see one_row.py.

    codes = round(v * 127 / max|v|) of v = gain * x / rms(x), or read (`front` "codes")
    y[n] (= or +=) Σ_k codes[k] * w[n, k] / row_scale * row_scales[n]
                   + multiplier * scale[slot, part(n)] * Σ_j down[part(n) * rank + j] * b[slot - 1, n, j]
    with `glu`: y[n] = act(value(n)) * value(n + N / 2) instead, for n < N / 2

LoRA's first factor comes from the dispatch before as sums over what each of its workgroups made, so that nobody reads
all of A at once: A normed = (Σ_k A[j, k] gain[k] x[k]) / rms, and a workgroup that makes some x[k] adds up those. `tail`:

    sums[out_at + wg * next_width + j] = Σ over the workgroup's n of y[n] * gain[next_gain_at + n] * a[slot - 1, j, n]

x f32 [K], or (`splits`) out of paged_attention_rows, heads of 4 * `quads` numbers, whose sums are weighted like its
splits; or words: i8 [K] from word 0 and row_scale f32 at `scale_at`. gains f32: from `gain_at` [K], from `next_gain_at`
[outputs]. words: see linear_gemv.wgsl (`wide` there), and row_scales f32 [N] from vector `row_scales_at`: parameters are
the same for all layers so, and what a device has of them stays in its caches. adapters f32 or (`half`) f16: b [pool, N, rank] from vector of four
`b_at`, the next a [pool, next_width, outputs] from `a_at`, in the same range or (`apart`) one of its own. sums f32: from `in_at` [producers, width of down], from `out_at`.
per_row and scale: see linear_gemv.wgsl.

Work: `lanes` threads share an output (with `glu` two); a thread holds `held` vectors of x. `span` parts at most meet in a
workgroup, `producers` workgroups made the sums. Threads next to each other share what they have by shuffles in `team`s,
which subgroups consist of, or (0) in workgroup memory. Grid: (ceil(outputs / (threads / lanes)), 1, 1).
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "lora.wgsl" as lora_parts with context %}
{{ prelude.params("N: u32", "K: u32", "eps: f32", "ends0: u32", "ends1: u32", "ends2: u32", "parts: u32",
    "row_scales_at: u32", "slot_at: u32", "multiplier_at: u32", "scale_at: u32", "gain_at: u32",
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
{% if apart %}
{{ lora_parts.vectors("adapters_a") }}
{% endif %}
{{ binding("sums", "array<f32>") }}
{{ binding("per_row", "array<u32>") }}
{% endif %}
{% if lora %}
{{ binding("scale", "array<f32>") }}
{% endif %}
{% set powers = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] %}
{% set outputs = threads // lanes %}
{% set tile = 2 if glu else 1 %}
{# The quarters of a unit apart: a bank of workgroup memory each for threads that write, or read, beside each other. #}
{% set stride = (units + 5) // 8 * 8 + 2 %}
{% set teams = threads // team if team else 0 %}
{% set vectors = 4 * units %}
{% set row_heads = 16 * units // quads %}
{% set all_rows = (vectors + threads - 1) // threads %}
{% if lora %}
{% set pieces = rank // 4 %}
{% set share_lanes = [lanes, powers | select('ge', pieces) | first] | min %}
{% set share_steps = (pieces + share_lanes - 1) // share_lanes %}
{% set halves = glu and team and share_steps == 1 and 2 * share_lanes <= lanes %}
{% set down_size = span * rank %}
{% set sum_groups = [(producers + 3) // 4, threads // down_size] | min %}
{% set sum_steps = (producers + sum_groups - 1) // sum_groups %}
{% endif %}
{% if tail %}
{% set tail_quads = outputs // 4 %}
{% set tail_lanes = powers | select('ge', tail_quads) | first %}
{% set tail_lanes = tail_lanes if tail_lanes <= team else 0 %}
{% set tail_row = tail_lanes or tail_quads %}
{% set tail_steps = (next_width * tail_row + threads - 1) // threads %}
{% endif %}
{{ prelude.functions() }}
{{ lora_parts.part_of() }}
// The codes, by unit and, apart from each other, the quarters of units.
var<workgroup> staged: array<vec4<u32>, {{ 4 * stride }}>;
// Their sum, which nobody but this kernel sets to zero.
var<workgroup> code_sum: atomic<i32>;
{% if splits > 1 %}
// What the sums of attention's splits are multiplied by.
var<workgroup> weights: array<f32, {{ row_heads * splits }}>;
{% endif %}
{% if not team %}
var<workgroup> partial: array<i32, {{ threads * tile }}>;
{% endif %}
{% if normed %}
// The largest number and the sum of squares.
var<workgroup> scratch: array<vec2<f32>, {{ teams or threads }}>;
{% endif %}
{% if normed and not team %}
var<workgroup> coded: array<u32, {{ 16 * units }}>;
{% endif %}
{% if lora %}
{% if normed %}
var<workgroup> sum_parts: array<f32, {{ sum_groups * down_size }}>;
{% endif %}
var<workgroup> down: array<f32, {{ down_size }}>;
{% if not team %}
var<workgroup> partial_lora: array<f32, {{ threads * tile }}>;
{% endif %}
{% endif %}
{% if tail %}
var<workgroup> made: array<f32, {{ 4 * tail_row }}>;
{% if not tail_lanes %}
var<workgroup> tail_parts: array<f32, {{ next_width * tail_quads }}>;
{% endif %}
{% endif %}
{% if glu %}
{% include "glu.wgsl" %}
{% endif %}

{{ prelude.main(threads) }}
    let first = wg.x * {{ outputs }}u;
    let lane = li % {{ lanes }}u;
    let group = li / {{ lanes }}u;
    let count = params.N{{ " / 2u" if glu }};
{% for r in range(tile) %}
    let n{{ r }} = min(first + group, count - 1u){{ " + count" if r }};
    let row{{ r }} = n{{ r }} * {{ units }}u;
{% endfor %}
{# -- loads of the row, the weights and LoRA's first factor: all are under way before anything waits -- #}
{% set steps = (units + lanes - 1) // lanes %}
{% if splits > 1 %}
    let stats_at = {{ 16 * units * splits }}u + min(li, {{ row_heads - 1 }}u) * {{ splits }}u;
{% for p in range(splits) %}
    let stat{{ p }} = x[stats_at + {{ p }}u].xy;
{% endfor %}
{% endif %}
{% if normed %}
{% for s in range(held) %}
    let c{{ s }} = {{ "li + %du" % (s * threads) if (s + 1) * threads <= 16 * units else "min(li + %du, %du)" % (s * threads, 16 * units - 1) }};
{% if splits > 1 %}
{% for p in range(splits) %}
    let part{{ s }}_{{ p }} = x[(c{{ s }} / {{ quads }}u * {{ splits }}u + {{ p }}u) * {{ quads }}u + c{{ s }} % {{ quads }}u];
{% endfor %}
{% else %}
    let x{{ s }} = x[c{{ s }}];
{% endif %}
{% if gain %}
    let gain{{ s }} = gains[params.gain_at + c{{ s }}];
{% endif %}
{% endfor %}
{% else %}
{% for s in range(all_rows) %}
    let code{{ s }} = x[min(li + {{ s * threads }}u, {{ vectors - 1 }}u)];
{% endfor %}
    let row_scale = bitcast<f32>(x[params.scale_at / 4u][params.scale_at % 4u]);
{% endif %}
{% for r in range(tile) %}
{% for u in range(steps) %}
{% set whole = (u + 1) * lanes <= units %}
    let word{{ r }}_{{ u }} = words[row{{ r }} + {{ "lane + %du" % (u * lanes) if whole else "min(lane + %du, %du)" % (u * lanes, units - 1) }}];
{% endfor %}
{% endfor %}
{% if lora or tail %}
    let slot = per_row[params.slot_at];
    let entry = {{ "0u" if single else "max(slot, 1u) - 1u" }};
{% endif %}
{% if lora %}
    let first_part = {{ "part_of(first)" if span == 1 else "0u" }};
    let sum_at = li % {{ down_size }}u;
    let sum_group = {{ "li / %du" % down_size if sum_groups * down_size == threads else "min(li / %du, %du)" % (down_size, sum_groups - 1) }};
    let sum_from = params.in_at + first_part * {{ rank }}u + sum_at;
{% for s in range(sum_steps) %}
{% set producer = "sum_group + %du" % (s * sum_groups) %}
{% set whole = (s + 1) * sum_groups <= producers %}
    let sum{{ s }} = {{ "" if whole else "select(0.0, " }}sums[sum_from + {{ "(%s)" % producer if whole else "min(%s, %du)" % (producer, producers - 1) }} * params.parts * {{ rank }}u]{{ "" if whole else ", %s < %du)" % (producer, producers) }};
{% endfor %}
{% endif %}
{# -- the row's norm -- #}
{% if splits > 1 %}
    if li < {{ row_heads }}u {
        let most = {% for p in range(1, splits) %}max({% endfor %}stat0.x{% for p in range(1, splits) %}, stat{{ p }}.x){% endfor %};
{% for p in range(splits) %}
        let weight{{ p }} = exp2(stat{{ p }}.x - most);
{% endfor %}
        let weight_sum = {% for p in range(splits) %}{{ " + " if p }}weight{{ p }} * stat{{ p }}.y{% endfor %};
{% for p in range(splits) %}
        weights[li * {{ splits }}u + {{ p }}u] = select(0.0, weight{{ p }} / weight_sum, weight_sum > 0.0);
{% endfor %}
    }
    workgroupBarrier();
{% for s in range(held) %}
    let x{{ s }} = {% for p in range(splits) %}{{ " + " if p }}part{{ s }}_{{ p }} * weights[c{{ s }} / {{ quads }}u * {{ splits }}u + {{ p }}u]{% endfor %};
{% endfor %}
{% endif %}
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
{% if team %}
{{ prelude.fold("top", team, op="max") }}
{{ prelude.fold("square", team) if gain }}
    if li % {{ team }}u == 0u { scratch[li / {{ team }}u] = vec2<f32>(top, square); }
{% else %}
    scratch[li] = vec2<f32>(top, square);
{% endif %}
{% endif %}
{% if lora %}
    let sum = {% for s in range(sum_steps) %}{{ " + " if s }}sum{{ s }}{{ " * weights[min(sum_group + %du, %du)]" % (s * sum_groups, producers - 1) if splits > 1 }}{% endfor %};
{% if not normed %}
    if li < {{ down_size }}u { down[li] = sum; }
{% else %}
    if li < {{ sum_groups * down_size }}u { sum_parts[li] = sum; }
{% endif %}
{% endif %}
    if li == 0u { atomicStore(&code_sum, 0); }
    workgroupBarrier();
{# -- loads of what is needed in the end; earlier they would be in the way of the row's -- #}
{% if lora %}
{% set row_of_b = "select(n0, n1, lane %% %du >= %du)" % (2 * share_lanes, share_lanes) if halves else "n0" %}
    let piece = lane % {{ share_lanes }}u;
{% for r in range(1 if halves else tile) %}
{% for s in range(share_steps) %}
    let b{{ r }}_{{ s }} = adapters[params.b_at + (entry * params.N + {{ row_of_b if r == 0 else "n%d" % r }}) * {{ pieces }}u + min(piece + {{ s * share_lanes }}u, {{ pieces - 1 }}u)];
{% endfor %}
{% endfor %}
{% endif %}
{% if team %}
    let out_group = group;
    let writes = lane == 0u;
{% else %}
    let out_group = min(li, {{ outputs - 1 }}u);
    let writes = li < {{ outputs }}u;
{% endif %}
    let inside = first + out_group < count;
    let out_n = min(first + out_group, count - 1u);
{% for r in range(tile) %}
    let end_n{{ r }} = out_n{{ " + count" if r }};
    let end_scale{{ r }} = bitcast<f32>(words[params.row_scales_at + end_n{{ r }} / 4u][end_n{{ r }} % 4u]);
{% if lora %}
    let end_factor{{ r }} = scale[entry * params.parts + part_of(end_n{{ r }})];
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
    let tail_item{{ s }} = min(li + {{ s * threads }}u, {{ next_width * tail_row - 1 }}u);
    let tail_quad{{ s }} = tail_item{{ s }} % {{ tail_row }}u;
    let tail_j{{ s }} = tail_item{{ s }} / {{ tail_row }}u;
    let a{{ s }} = adapters{{ "_a" if apart }}[tail_a + tail_j{{ s }} * (count / 4u) + min(first / 4u + {{ "min(tail_quad%d, %du)" % (s, tail_quads - 1) if tail_row > tail_quads else "tail_quad%d" % s }}, count / 4u - 1u)];
{% endfor %}
{% endif %}
{# -- the codes -- #}
{% if normed %}
{% if team %}
{% for t in range(teams) %}
    let facts{{ t }} = scratch[{{ t }}u];
{% endfor %}
    top = facts0.x;
    square = facts0.y;
{% for t in range(1, teams) %}
    top = max(top, facts{{ t }}.x);
    square += facts{{ t }}.y;
{% endfor %}
{% else %}
    for (var step = {{ threads // 2 }}u; step > 0u; step >>= 1u) {
        if li < step {
            let a = scratch[li];
            let b = scratch[li + step];
            scratch[li] = vec2<f32>(max(a.x, b.x), a.y + b.y);
        }
        workgroupBarrier();
    }
    top = scratch[0].x;
    square = scratch[0].y;
{% endif %}
    let inverse_rms = {{ "1.0 / sqrt(square / f32(params.K) + params.eps)" if gain else "1.0" }};
    let row_scale = 127.0 / max(top * inverse_rms, 1e-5);
    var own_sum = 0;
{% for s in range(held) %}
{% set last = (s + 1) * threads > 16 * units %}
    {
        let code = pack_i8x4(vec4<i32>(clamp(round(v{{ s }} * inverse_rms * row_scale), vec4<f32>(-128.0), vec4<f32>(127.0))));
        own_sum += {{ "select(0, dot4I8Packed(code, 0x01010101u), li + %du < %du)" % (s * threads, 16 * units) if last else "dot4I8Packed(code, 0x01010101u)" }};
{% if team %}
        let code1 = subgroupShuffleXor(code, 1u);
        let code2 = subgroupShuffleXor(code, 2u);
        let code3 = subgroupShuffleXor(code, 3u);
        if li % 4u == 0u{{ " && li + %du < %du" % (s * threads, 16 * units) if last }} {
            staged[c{{ s }} / 4u % 4u * {{ stride }}u + c{{ s }} / 16u] = vec4<u32>(code, code1, code2, code3);
        }
{% else %}
        {{ "if li + %du < %du { " % (s * threads, 16 * units) if last }}coded[c{{ s }}] = code;{{ " }" if last }}
{% endif %}
    }
{% endfor %}
{% if not team %}
    workgroupBarrier();
{% for s in range(all_rows) %}
    {
        let at = min(li + {{ s * threads }}u, {{ vectors - 1 }}u);
        staged[at % 4u * {{ stride }}u + at / 4u] = vec4<u32>(coded[4u * at], coded[4u * at + 1u], coded[4u * at + 2u], coded[4u * at + 3u]);
    }
{% endfor %}
{% endif %}
{% else %}
    var own_sum = 0;
{% for s in range(all_rows) %}
    {{ "if li + %du < %du " % (s * threads, vectors) if (s + 1) * threads > vectors }}{
        let at = li + {{ s * threads }}u;
        staged[at % 4u * {{ stride }}u + at / 4u] = code{{ s }};
        own_sum = own_sum{% for i in "xyzw" %} + dot4I8Packed(code{{ s }}.{{ i }}, 0x01010101u){% endfor %};
    }
{% endfor %}
{% endif %}
{% if subgroup %}
    own_sum = subgroupAdd(own_sum);
    if subgroup_lane == 0u { atomicAdd(&code_sum, own_sum); }
{% else %}
    atomicAdd(&code_sum, own_sum);
{% endif %}
{% if normed and lora %}
    if li < {{ down_size }}u {
{% if sum_groups <= 32 %}
        down[li] = ({% for e in range(sum_groups) %}{{ " + " if e }}sum_parts[li + {{ e * down_size }}u]{% endfor %}) * inverse_rms;
{% else %}
        var all = 0.0;
        for (var e = 0u; e < {{ sum_groups }}u; e++) { all += sum_parts[li + e * {{ down_size }}u]; }
        down[li] = all * inverse_rms;
{% endif %}
    }
{% endif %}
    workgroupBarrier();
{# -- the product: numbers at three places in their bytes, so that few have to be shifted -- #}
{% for r in range(tile) %}
    var ones{{ r }} = 0;
    var fours{{ r }} = 0;
    var sixteens{{ r }} = 0;
{% endfor %}
{% for u in range(steps) %}
{% set whole = (u + 1) * lanes <= units %}
    {
        let unit = {{ "lane + %du" % (u * lanes) if whole else "min(lane + %du, %du)" % (u * lanes, units - 1) }};
{% for r in range(tile) %}
        let w{{ r }} = {{ "word%d_%d" % (r, u) if whole else "select(vec4<u32>(), word%d_%d, lane + %du < %du)" % (r, u, u * lanes, units) }};
{% endfor %}
{% for q in range(4) %}
        let v{{ q }} = staged[{{ q * stride }}u + unit];
{% for r in range(tile) %}
{% set w = "w%d.%s" % (r, "xyzw"[q]) %}
        ones{{ r }} += dot4I8Packed({{ w }} & 0x03030303u, v{{ q }}.x);
        fours{{ r }} += dot4I8Packed({{ w }} & 0x0c0c0c0cu, v{{ q }}.y);
        sixteens{{ r }} += dot4I8Packed({{ w }} & 0x30303030u, v{{ q }}.z);
        sixteens{{ r }} += dot4I8Packed(({{ w }} >> 2u) & 0x30303030u, v{{ q }}.w);
{% endfor %}
{% endfor %}
    }
{% endfor %}
{% for r in range(tile) %}
    var total{{ r }} = ones{{ r }} + (fours{{ r }} >> 2u) + (sixteens{{ r }} >> 4u);
{% if lora and not (halves and r) %}
    let down_at{{ r }} = {{ "0u" if span == 1 else "part_of(%s) * %du" % (row_of_b if r == 0 else "n%d" % r, rank) }};
    var correction{{ r }} = {% for s in range(share_steps) %}{{ " + " if s }}dot(expand_adapters(b{{ r }}_{{ s }}), down_vector(down_at{{ r }}, piece + {{ s * share_lanes }}u)){% endfor %};
{% endif %}
{% endfor %}
{# -- the sums over lanes -- #}
{% if team %}
{% for r in range(tile) %}
{{ prelude.fold("total%d" % r, lanes) }}
{% if lora and not (halves and r) %}
{{ prelude.fold("correction%d" % r, share_lanes) }}
{% endif %}
{% endfor %}
{% if lora and halves %}
    let other = subgroupShuffleXor(correction0, {{ share_lanes }}u);
    let correction1 = select(other, correction0, lane % {{ 2 * share_lanes }}u >= {{ share_lanes }}u);
    correction0 = select(correction0, other, lane % {{ 2 * share_lanes }}u >= {{ share_lanes }}u);
{% endif %}
{% else %}
{% for r in range(tile) %}
    partial[{{ r * threads }}u + li] = total{{ r }};
{% if lora %}
    partial_lora[{{ r * threads }}u + li] = correction{{ r }};
{% endif %}
{% endfor %}
    workgroupBarrier();
{% for r in range(tile) %}
    total{{ r }} = 0;
    for (var l = 0u; l < {{ lanes }}u; l++) { total{{ r }} += partial[{{ r * threads }}u + out_group * {{ lanes }}u + (l + out_group) % {{ lanes }}u]; }
{% if lora %}
    correction{{ r }} = 0.0;
    for (var l = 0u; l < {{ share_lanes }}u; l++) { correction{{ r }} += partial_lora[{{ r * threads }}u + out_group * {{ lanes }}u + l]; }
{% endif %}
{% endfor %}
{% endif %}
{% for r in range(tile) %}
    let value{{ r }} = f32(total{{ r }} - atomicLoad(&code_sum)) / row_scale * end_scale{{ r }}{{ " + select(0.0, multiplier * end_factor%d * correction%d, slot > 0u)" % (r, r) if lora }};
{% endfor %}
    let result = {{ "before + " if accumulate }}{{ "activate(vec4<f32>(value0)).x * value1" if glu else "value0" }};
    if writes && inside { y[out_n] = result; }
{# -- a share of the next linear's first factor -- #}
{% if tail %}
    if writes { made[out_group] = select(0.0, result{{ " * out_gain" if next_gain }}, inside); }
    workgroupBarrier();
{% for s in range(tail_steps) %}
    {
        {{ "var" if tail_lanes else "let" }} share = dot(expand_adapters(a{{ s }}), vec4<f32>(made[4u * tail_quad{{ s }}], made[4u * tail_quad{{ s }} + 1u], made[4u * tail_quad{{ s }} + 2u], made[4u * tail_quad{{ s }} + 3u]));
{% if tail_lanes %}
{{ prelude.fold("share", tail_lanes) }}
        if tail_quad{{ s }} == 0u {{ "&& li + %du < %du " % (s * threads, next_width * tail_row) if (s + 1) * threads > next_width * tail_row }}{
            sums[params.out_at + wg.x * {{ next_width }}u + tail_j{{ s }}] = share;
        }
{% else %}
        tail_parts[tail_quad{{ s }} * {{ next_width }}u + tail_j{{ s }}] = share;
{% endif %}
    }
{% endfor %}
{% if not tail_lanes %}
    workgroupBarrier();
    for (var j = li; j < {{ next_width }}u; j += {{ threads }}u) {
        sums[params.out_at + wg.x * {{ next_width }}u + j] = {% for v in range(tail_quads) %}{{ " + " if v }}tail_parts[j + {{ v * next_width }}u]{% endfor %};
    }
{% endif %}
{% endif %}
}
{% if lora %}
// Four numbers of LoRA's first factor in a part that begins at `first`, zeros past its end.
fn down_vector(first: u32, piece: u32) -> vec4<f32> {
    let at = first + 4u * {{ "piece" if pieces % share_lanes == 0 else "min(piece, %du)" % (pieces - 1) }};
    let numbers = vec4<f32>(down[at], down[at + 1u], down[at + 2u], down[at + 3u]);
    return {{ "numbers" if pieces % share_lanes == 0 else "select(vec4<f32>(), numbers, piece < %du)" % pieces }};
}
{% endif %}
