{#
paged_attention for few rows, its context split over workgroups, and rope_cache with it (`rope`).

q, o f32 [T, H * d], H = G * `group`; k_cache, v_cache [blocks, G, block_size, d], `half_cache`: f16, two to a word, else
f32; per_row is one range of memory with positions i32 [T], sequence i32 [T] and q_start i32 [S + 1] at `positions_at`,
`sequence_at`, `starts_at`; block_tables i32 [S, max_blocks]; scale: 1 / sqrt(d) * log2(e), for powers of two are what a GPU has.
rope: qkv f32 [T, (H + 2 G) * d] and table f32 [positions, d] (cos | sin) come in, q and the rows' keys and values go
out. Keys and values of the batch itself are taken from qkv: a row's own, and (unless `alone`, T = 1) those of the rows
before it in its sequence, which have the positions before its own.

`tail`: of what it made of o, times the next norm's `gain`, a workgroup makes a share of LoRA's first factor of the linear behind,
with a f32 or (`half`) f16 [pool, `width_a`, H * d]: sums f32 [H, splits, width_a] = Σ over a head's numbers (T = 1).

`splits` 1: o is =, 0 in spare rows (position -1). More: out is f32 [T, H, splits, d] of unnormalised sums, then
[T, H, splits, 4] of (largest score in powers of two, sum of weights, 0, 0), for attention_value of combine.wgsl.

Work: grid (T, G * ceil(group / heads), splits); a workgroup takes `heads` query heads of one key/value head, so that
they share what is loaded, and every splits-th tile of keys. It has `shares` groups of threads (lanes); a thread has `width` vectors of 4 of `keys` keys in a row
(which lie in one block) and of their values at a time; the next ones are under way meanwhile. The threads that share a
key (lanes) add up its scores, by `shuffle` where a subgroup has room for them: threads next to each other are in one
subgroup. Each such group keeps its own largest score and sums: groups are joined once, in the end.
#}
{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("T: u32", "max_blocks: u32", "scale: f32", "positions_at: u32", "sequence_at: u32", "starts_at: u32",
    "slot_at: u32") }}
{% set quads = head_dim // 4 %}
{% set lanes = quads // width %}
{% set threads = shares * lanes %}
{% set tile = shares * keys %}
{% set groups = (group + heads - 1) // heads %}
{% set row_heads = (group + 2) * kv_heads %}
{% set piece = ("vec4<u32>" if width == 2 else "vec2<u32>") if half_cache else "vec4<f32>" %}
{% set shuffle = team and team % lanes == 0 %}
{{ binding("per_row", "array<i32>") }}
{{ binding("k_cache", "array<" ~ piece ~ ">") }}
{{ binding("v_cache", "array<" ~ piece ~ ">") }}
{{ binding("block_tables", "array<i32>") }}
{{ binding("out", "array<vec4<f32>>") }}
{% if has_q %}
{{ binding("q", "array<vec4<f32>>") }}
{% endif %}
{% if rope %}
{{ binding("qkv", "array<vec4<f32>>") }}
{{ binding("table", "array<vec4<f32>>") }}
{% endif %}
{% if tail %}
{% import "lora.wgsl" as lora_parts with context %}
{{ lora_parts.vectors("a") }}
{{ binding("sums", "array<f32>") }}
{% if gain %}
{{ binding("gains", "array<vec4<f32>>") }}
{% endif %}
{# An item is one number of one head; its threads have `tail_vectors` vectors of it. #}
{% set tail_lanes = 16 if quads % 16 == 0 else 8 if quads % 8 == 0 else 4 if quads % 4 == 0 else 1 %}
{% set tail_vectors = quads // tail_lanes %}
{% set tail_steps = (width_a * tail_lanes + threads - 1) // threads %}
{% set tail_fold = team and team % tail_lanes == 0 %}
// What the workgroup made, as the next linear's norm multiplies it.
var<workgroup> made: array<vec4<f32>, {{ heads * quads }}>;
{% if not tail_fold %}
var<workgroup> tail_parts: array<f32, {{ heads * width_a * tail_lanes }}>;
{% endif %}
{% endif %}
const LOWEST = -3.4028234e38;

{% if not shuffle %}
var<workgroup> row_facts: vec2<u32>;
var<workgroup> parts: array<f32, {{ threads * keys * heads }}>;
var<workgroup> scores: array<f32, {{ shares * keys * heads }}>;
{% endif %}
var<workgroup> tops: array<f32, {{ heads * shares }}>;
var<workgroup> totals: array<f32, {{ heads * shares }}>;
var<workgroup> gathered: array<vec4<f32>, {{ heads * shares * quads }}>;

{{ prelude.functions() }}
{# Vector i of what a thread has of a key, and the reverse: vectors <name>0 … as they are in the cache. #}
{% macro expanded(name, i) %}{{ "vec4<f32>(load_f16x2(%s.%s), load_f16x2(%s.%s))" % (name, "xyzw"[2 * i], name, "xyzw"[2 * i + 1]) if half_cache else name }}{% endmacro %}
{% macro packed(name) %}{% if half_cache %}{{ piece }}({% for i in range(width) %}{{ ", " if i }}pack2x16float(rounded({{ name }}{{ i }}).xy), pack2x16float(rounded({{ name }}{{ i }}).zw){% endfor %}){% else %}{{ name }}0{% endif %}{% endmacro %}

{% if half_cache and rope %}
// Numbers of f16, as the cache will hold them. A driver may take what was packed and is unpacked at once as it was before.
fn rounded(v: vec4<f32>) -> vec4<f32> {
    let bits = bitcast<vec4<u32>>(v);
    let even = (bits >> vec4<u32>(13u)) & vec4<u32>(1u);
    let nearest = bitcast<vec4<f32>>((bits + even + vec4<u32>(0xfffu)) & vec4<u32>(0xffffe000u));
    return select(v, nearest, abs(v) < vec4<f32>(65504.0));
}
{% endif %}

// Where the key (and the value) of a position begins in the caches, in pieces.
fn cache_start(row_sequence: u32, position: u32, kv_head: u32) -> u32 {
    let block = u32(max(block_tables[row_sequence * params.max_blocks + position / {{ block_size }}u], 0));
    return ((block * {{ kv_heads }}u + kv_head) * {{ block_size }}u + position % {{ block_size }}u) * {{ lanes }}u;
}
{# Where a thread's keys of the tile at tile_from begin; of tiles behind the context, somewhere before its end. #}
{% macro find(tile_from) %}cache_start(row_sequence, min({{ tile_from }} + share * {{ keys }}u, {{ "last / %du * %du" % (keys, keys) if keys > 1 else "last" }}), kv_head) + lane{% endmacro %}

{# cosine<i> and sine<i> of a position, the sine with its sign. #}
{% macro angles(cosine, sine, position) %}
{% for i in range(width) %}
        let {{ cosine }}{{ i }} = table[{{ position }} * {{ quads }}u + vector{{ i }} % {{ quads // 2 }}u];
        let unsigned_{{ sine }}{{ i }} = table[{{ position }} * {{ quads }}u + {{ quads // 2 }}u + vector{{ i }} % {{ quads // 2 }}u];
        let {{ sine }}{{ i }} = select(unsigned_{{ sine }}{{ i }}, -unsigned_{{ sine }}{{ i }}, vector{{ i }} < {{ quads // 2 }}u);
{% endfor %}
{% endmacro %}

{# s<head>_<key>: the scores of `count` keys, of which a thread has x<key>_<i>. #}
{% macro score(count) %}
{% set pairs = count * heads %}
{% if shuffle %}
{% for r in range(heads) %}
{% for u in range(count) %}
        var s{{ r }}_{{ u }} = {% for i in range(width) %}{{ " + " if i }}dot(x{{ u }}_{{ i }}, query{{ r }}_{{ i }}){% endfor %};
{% endfor %}
{% endfor %}
{% for step in [32, 16, 8, 4, 2, 1] if step < lanes %}
{% for r in range(heads) %}
{% for u in range(count) %}
        s{{ r }}_{{ u }} += subgroupShuffleXor(s{{ r }}_{{ u }}, {{ step }}u);
{% endfor %}
{% endfor %}
{% endfor %}
{% else %}
{% for r in range(heads) %}
{% for u in range(count) %}
        parts[(share * {{ pairs }}u + {{ u * heads + r }}u) * {{ lanes }}u + lane] = {% for i in range(width) %}{{ " + " if i }}dot(x{{ u }}_{{ i }}, query{{ r }}_{{ i }}){% endfor %};
{% endfor %}
{% endfor %}
        workgroupBarrier();
        for (var p = lane; p < {{ pairs }}u; p += {{ lanes }}u) {
            let first = (share * {{ pairs }}u + p) * {{ lanes }}u;
            scores[share * {{ pairs }}u + p] = {% for j in range(lanes) %}{{ " + " if j }}parts[first + (lane + {{ j }}u) % {{ lanes }}u]{% endfor %};
        }
        workgroupBarrier();
{% for r in range(heads) %}
{% for u in range(count) %}
        var s{{ r }}_{{ u }} = scores[share * {{ pairs }}u + {{ u * heads + r }}u];
{% endfor %}
{% endfor %}
{% endif %}
{% endmacro %}

{# The softmax over what a thread has seen goes on with the `count` keys of s<head>_<key> and their values v<key>. #}
{% macro take_in(count) %}
{% for r in range(heads) %}
        let before{{ r }} = top{{ r }};
{% for u in range(count) %}
        s{{ r }}_{{ u }} = select(LOWEST, s{{ r }}_{{ u }}, inside{{ u }});
        top{{ r }} = max(top{{ r }}, s{{ r }}_{{ u }});
{% endfor %}
        let shrink{{ r }} = exp2(before{{ r }} - top{{ r }});
        total{{ r }} *= shrink{{ r }};
{% for i in range(width) %}
        sum{{ r }}_{{ i }} *= shrink{{ r }};
{% endfor %}
{% for u in range(count) %}
        s{{ r }}_{{ u }} = exp2(s{{ r }}_{{ u }} - top{{ r }});
        total{{ r }} += s{{ r }}_{{ u }};
{% endfor %}
{% endfor %}
{% for u in range(count) %}
{% for i in range(width) %}
        let y{{ u }}_{{ i }} = {{ expanded("v%d" % u, i) }};
{% for r in range(heads) %}
        sum{{ r }}_{{ i }} += s{{ r }}_{{ u }} * y{{ u }}_{{ i }};
{% endfor %}
{% endfor %}
{% endfor %}
{% endmacro %}

{{ prelude.main(threads) }}
    let row = wg.x;
    let kv_head = wg.y / {{ groups }}u;
    let in_group = (wg.y % {{ groups }}u) * {{ heads }}u;
    let split = wg.z;
    let first_head = kv_head * {{ group }}u + in_group;
    let share = li / {{ lanes }}u;
    let lane = li % {{ lanes }}u;
{% for i in range(width) %}
    let vector{{ i }} = lane * {{ width }}u + {{ i }}u;
    let partner{{ i }} = (vector{{ i }} + {{ quads // 2 }}u) % {{ quads }}u;
{% endfor %}
{% for r in range(heads) %}
    let head{{ r }} = min(first_head + {{ r }}u, (kv_head + 1u) * {{ group }}u - 1u);
{% endfor %}
    let position = per_row[params.positions_at + row];
    let row_sequence = u32(per_row[params.sequence_at + row]);
    let last = u32(max(position, 0));
{% if rope %}
    // Everything that is needed is asked for before anything is waited for.
{% for i in range(width) %}
{% for r in range(heads) %}
    let given{{ r }}_{{ i }} = qkv[(row * {{ row_heads }}u + head{{ r }}) * {{ quads }}u + vector{{ i }}];
    let paired{{ r }}_{{ i }} = qkv[(row * {{ row_heads }}u + head{{ r }}) * {{ quads }}u + partner{{ i }}];
{% endfor %}
    var given_key{{ i }}: vec4<f32>;
    var paired_key{{ i }}: vec4<f32>;
    var given_value{{ i }}: vec4<f32>;
{% endfor %}
    let own_split = split == {{ splits - 1 }}u;  // which has a tile less than others, or as many
    if own_split {
        let own_at = (row * {{ row_heads }}u + {{ group * kv_heads }}u + kv_head) * {{ quads }}u;
{% for i in range(width) %}
        given_key{{ i }} = qkv[own_at + vector{{ i }}];
        paired_key{{ i }} = qkv[own_at + partner{{ i }}];
        given_value{{ i }} = qkv[own_at + {{ kv_heads * quads }}u + vector{{ i }}];
{% endfor %}
    }
    let first_row = {{ "row" if alone else "u32(per_row[params.starts_at + row_sequence])" }};
    let cached = max(last, row - first_row) - (row - first_row);
{% else %}
    let cached = u32(max(position + 1, 0));
{% endif %}
    var tile_from = split * {{ tile }}u;
    var start = {{ find("tile_from") }};
{% for u in range(keys) %}
    var k{{ u }} = k_cache[start + {{ u * lanes }}u];
{% endfor %}
{% for u in range(keys) %}
    var v{{ u }} = v_cache[start + {{ u * lanes }}u];
{% endfor %}
    start = {{ find("tile_from + %du" % (splits * tile)) }};
{% if tail %}
    let entry = {{ "0u" if single else "u32(max(per_row[params.slot_at + row], 1)) - 1u" }};
{% for s in range(tail_steps) %}
    let tail_item{{ s }} = min(li + {{ s * threads }}u, {{ width_a * tail_lanes - 1 }}u);
    let tail_j{{ s }} = tail_item{{ s }} / {{ tail_lanes }}u;
    let tail_lane{{ s }} = tail_item{{ s }} % {{ tail_lanes }}u;
{% for r in range(heads) %}
{% for v in range(tail_vectors) %}
    let a{{ r }}_{{ s }}_{{ v }} = a[((entry * {{ width_a }}u + tail_j{{ s }}) * {{ group * kv_heads }}u + head{{ r }}) * {{ quads }}u + tail_lane{{ s }} + {{ v * tail_lanes }}u];
{% endfor %}
{% endfor %}
{% endfor %}
{% if gain %}
    let gain = gains[min(first_head * {{ quads }}u + li, {{ group * kv_heads * quads - 1 }}u)];
{% endif %}
{% endif %}
{% if rope %}
    var own_start = 0u;
    if own_split {
        own_start = cache_start(row_sequence, last, kv_head) + lane;
    }
{{ angles("cosine", "sine", "last") }}
{% for r in range(heads) %}
{% for i in range(width) %}
    let turned{{ r }}_{{ i }} = given{{ r }}_{{ i }} * cosine{{ i }} + paired{{ r }}_{{ i }} * sine{{ i }};
    let query{{ r }}_{{ i }} = turned{{ r }}_{{ i }} * params.scale;
{% endfor %}
{% endfor %}
{% if has_q %}
    if position >= 0 && split == 0u && share == 0u {
{% for r in range(heads) %}
{% for i in range(width) %}
        q[(row * {{ group * kv_heads }}u + head{{ r }}) * {{ quads }}u + vector{{ i }}] = turned{{ r }}_{{ i }};
{% endfor %}
{% endfor %}
    }
{% endif %}
{% else %}
{% for r in range(heads) %}
{% for i in range(width) %}
    let query{{ r }}_{{ i }} = q[(row * {{ group * kv_heads }}u + head{{ r }}) * {{ quads }}u + vector{{ i }}] * params.scale;
{% endfor %}
{% endfor %}
{% endif %}
{% set others = rope and not alone %}
{% if shuffle %}
    let end = cached;
    let real = position >= 0;
{{ "    let begin_row = first_row;" if others }}
{% else %}
    // Barriers need what decides about them to be the same for the whole workgroup beyond doubt.
    if li == 0u { row_facts = vec2<u32>(select(0u, cached + 1u, position >= 0), {{ "first_row" if others else "0u" }}); }
    let facts = workgroupUniformLoad(&row_facts);
    let end = max(facts.x, 1u) - 1u;
    let real = facts.x > 0u;
{{ "    let begin_row = facts.y;" if others }}
{% endif %}
{% for r in range(heads) %}
    var top{{ r }} = LOWEST;
    var total{{ r }} = 0.0;
{% for i in range(width) %}
    var sum{{ r }}_{{ i }} = vec4<f32>();
{% endfor %}
{% endfor %}
{% if rope %}
    var own_key: {{ piece }};
    var own_value: {{ piece }};
    if real && own_split {
{% for i in range(width) %}
        let turned_key{{ i }} = given_key{{ i }} * cosine{{ i }} + paired_key{{ i }} * sine{{ i }};
{% endfor %}
        own_key = {{ packed("turned_key") }};
        own_value = {{ packed("given_value") }};
{% for i in range(width) %}
        let x0_{{ i }} = {{ expanded("own_key", i) }};
{% endfor %}
{{ score(1) }}
        if share == 0u {
{% for r in range(heads) %}
            top{{ r }} = s{{ r }}_0;
            total{{ r }} = 1.0;
{% for i in range(width) %}
            sum{{ r }}_{{ i }} = {{ expanded("own_value", i) }};
{% endfor %}
{% endfor %}
        }
{% if others %}
        for (var from_row = begin_row; from_row < row; from_row += {{ shares }}u) {
            let one = min(from_row + share, row);
            let inside0 = one < row;
            let its_position = last - (row - one);
            let its_key = (one * {{ row_heads }}u + {{ group * kv_heads }}u + kv_head) * {{ quads }}u;
{{ angles("its_cosine", "its_sine", "its_position") }}
{% for i in range(width) %}
            let key{{ i }} = qkv[its_key + vector{{ i }}] * its_cosine{{ i }} + qkv[its_key + partner{{ i }}] * its_sine{{ i }};
            let value{{ i }} = qkv[its_key + {{ kv_heads * quads }}u + vector{{ i }}];
{% endfor %}
            let k0 = {{ packed("key") }};
            let v0 = {{ packed("value") }};
{% for i in range(width) %}
            let x0_{{ i }} = {{ expanded("k0", i) }};
{% endfor %}
{{ score(1) }}
{{ take_in(1) }}
        }
{% endif %}
    }
{% endif %}
    while tile_from < end {
{% for u in range(keys) %}
        let inside{{ u }} = tile_from + share * {{ keys }}u + {{ u }}u < end;
{% for i in range(width) %}
        let x{{ u }}_{{ i }} = {{ expanded("k%d" % u, i) }};
{% endfor %}
        v{{ u }} = select({{ piece }}(), v{{ u }}, inside{{ u }});  // behind the context may be anything
        var next_v{{ u }}: {{ piece }};
{% endfor %}
        tile_from += {{ splits * tile }}u;
        if tile_from < end {
{% for u in range(keys) %}
            k{{ u }} = k_cache[start + {{ u * lanes }}u];
            next_v{{ u }} = v_cache[start + {{ u * lanes }}u];
{% endfor %}
            start = {{ find("tile_from + %du" % (splits * tile)) }};
        }
{{ score(keys) }}
{{ take_in(keys) }}
{% for u in range(keys) %}
        v{{ u }} = next_v{{ u }};
{% endfor %}
    }
    if lane == 0u {
{% for r in range(heads) %}
        tops[{{ r * shares }}u + share] = top{{ r }};
        totals[{{ r * shares }}u + share] = total{{ r }};
{% endfor %}
    }
{% for r in range(heads) %}
{% for i in range(width) %}
    gathered[{{ r * shares * quads }}u + share * {{ quads }}u + vector{{ i }}] = sum{{ r }}_{{ i }};
{% endfor %}
{% endfor %}
    workgroupBarrier();
    for (var at = li; at < {{ heads * quads }}u; at += {{ threads }}u) {
        let i = at % {{ quads }}u;
        let r = at / {{ quads }}u;
        if in_group + r >= {{ group }}u { continue; }
        let first = r * {{ shares }}u;
{% for j in range(shares) %}
        let top{{ j }} = tops[first + {{ j }}u];
{% endfor %}
        var top = top0;
{% for j in range(1, shares) %}
        top = max(top, top{{ j }});
{% endfor %}
        var whole = vec4<f32>();
        var total = 0.0;
{% for j in range(shares) %}
        {
            let weight = exp2(top{{ j }} - top);
            total += weight * totals[first + {{ j }}u];
            whole += weight * gathered[(first + {{ j }}u) * {{ quads }}u + i];
        }
{% endfor %}
        let head = row * {{ group * kv_heads }}u + first_head + r;
{% if splits == 1 %}
        whole = select(vec4<f32>(), whole / total, real);
        out[head * {{ quads }}u + i] = whole;
{% else %}
        out[(head * {{ splits }}u + split) * {{ quads }}u + i] = whole;
        if i == 0u {
            out[params.T * {{ group * kv_heads * splits * quads }}u + head * {{ splits }}u + split] = vec4<f32>(top, total, 0.0, 0.0);
        }
{% endif %}
{% if tail %}
        made[at] = whole{{ (" * gain" if heads * quads <= threads else " * gains[first_head * %du + at]" % quads) if gain }};
{% endif %}
    }
{% if tail %}
    workgroupBarrier();
{% for s in range(tail_steps) %}
{% for r in range(heads) %}
    {
        {{ "var" if tail_fold else "let" }} share_of_a = {% for v in range(tail_vectors) %}{{ " + " if v }}dot(expand_a(a{{ r }}_{{ s }}_{{ v }}), made[{{ r * quads + v * tail_lanes }}u + tail_lane{{ s }}]){% endfor %};
{% if tail_fold %}
{{ prelude.fold("share_of_a", tail_lanes) }}
        if tail_lane{{ s }} == 0u && in_group + {{ r }}u < {{ group }}u{{ " && li + %du < %du" % (s * threads, width_a * tail_lanes) if (s + 1) * threads > width_a * tail_lanes }} {
            sums[(head{{ r }} * {{ splits }}u + split) * {{ width_a }}u + tail_j{{ s }}] = share_of_a;
        }
{% else %}
        tail_parts[{{ r * width_a * tail_lanes }}u + tail_item{{ s }}] = share_of_a;
{% endif %}
    }
{% endfor %}
{% endfor %}
{% if not tail_fold %}
    workgroupBarrier();
    for (var j = li; j < {{ heads * width_a }}u; j += {{ threads }}u) {
        let in_head = j / {{ width_a }}u;
        if in_group + in_head >= {{ group }}u { continue; }
        sums[((first_head + in_head) * {{ splits }}u + split) * {{ width_a }}u + j % {{ width_a }}u] = {% for l in range(tail_lanes) %}{{ " + " if l }}tail_parts[j * {{ tail_lanes }}u + {{ l }}u]{% endfor %};
    }
{% endif %}
{% endif %}
{% if rope %}
    if real && own_split && share == 0u && in_group == 0u {
        k_cache[own_start] = own_key;
        v_cache[own_start] = own_value;
    }
{% endif %}
}
