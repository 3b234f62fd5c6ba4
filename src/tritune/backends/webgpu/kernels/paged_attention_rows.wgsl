{#
paged_attention for few rows, its context split over workgroups, and for one row rope_cache with it (`rope`).

q, o f32 [T, H * d]; k_cache, v_cache [blocks, G, block_size, d], `half_cache`: f16, two to a word, else f32; per_row is
one range of memory with positions i32 [T] and sequence i32 [T] at `positions_at`, `sequence_at`; block_tables i32
[S, max_blocks]. rope: qkv f32 [1, (H + 2 G) * d] and table f32 [positions, d] (cos | sin) come in, q and the row's key
and value go out, and the row attends to them without reading them back.

`splits` 1: o is =, 0 in spare rows (position -1). More: out is f32 [T, H, splits, d] of unnormalised sums, then
[T, H, splits, 4] of (largest score, sum of weights, 0, 0), for attention_value of combine.wgsl.

Work: grid (T, G * ceil(H / G / heads), splits); a workgroup takes `heads` query heads of one key/value head, so that they
share what is loaded. A thread has `width` vectors of 4 of `keys` keys and of their values at a time, all loads of which
are under way together; the threads that share a key (lanes) add up its scores, and each such group keeps its own largest
score and sums: groups are joined once, in the end.
#}
{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("T: u32", "H: u32", "G: u32", "max_blocks: u32", "scale: f32", "positions_at: u32", "sequence_at: u32") }}
{% set quads = head_dim // 4 %}
{% set lanes = quads // width %}
{% set shares = threads // lanes %}
{% set tile = shares * keys %}
{% set pairs = keys * heads %}
{% set piece = ("vec4<u32>" if width == 2 else "vec2<u32>") if half_cache else "vec4<f32>" %}
{% set together = heads if limits["max-compute-workgroup-storage-size"] >= 32768 else 1 %}
{{ binding("q", "array<vec4<f32>>") }}
{{ binding("k_cache", "array<" ~ piece ~ ">") }}
{{ binding("v_cache", "array<" ~ piece ~ ">") }}
{{ binding("per_row", "array<i32>") }}
{{ binding("block_tables", "array<i32>") }}
{{ binding("out", "array<vec4<f32>>") }}
{% if rope %}
{{ binding("qkv", "array<vec4<f32>>") }}
{{ binding("table", "array<vec4<f32>>") }}
{% endif %}
const LOWEST = -3.4028234e38;

var<workgroup> row_context: u32;
var<workgroup> parts: array<f32, {{ threads * pairs }}>;
var<workgroup> scores: array<f32, {{ shares * pairs }}>;
var<workgroup> tops: array<f32, {{ heads * shares }}>;
var<workgroup> totals: array<f32, {{ heads * shares }}>;
var<workgroup> gathered: array<vec4<f32>, {{ together * shares * quads }}>;
{% if rope %}
var<workgroup> query: array<vec4<f32>, {{ heads * quads }}>;
var<workgroup> new_key: array<vec4<f32>, {{ quads }}>;
var<workgroup> new_value: array<vec4<f32>, {{ quads }}>;

// Vector i of a rotated head that begins at `first`.
fn rotated(first: u32, i: u32, position: u32) -> vec4<f32> {
    let half = i % {{ quads // 2 }}u;
    let cosine = table[position * {{ quads }}u + half];
    let sine = table[position * {{ quads }}u + {{ quads // 2 }}u + half];
    let x = qkv[first + i];
    let partner = qkv[first + select(half, half + {{ quads // 2 }}u, i < {{ quads // 2 }}u)];
    return x * cosine + select(partner, -partner, i < {{ quads // 2 }}u) * sine;
}
{% endif %}

{{ prelude.functions() }}
{# Vector i of what a thread has of a key, and what is kept of the vectors named in a list. #}
{% macro expanded(name, i) %}{{ "vec4<f32>(load_f16x2(%s.%s), load_f16x2(%s.%s))" % (name, "xyzw"[2 * i], name, "xyzw"[2 * i + 1]) if half_cache else name }}{% endmacro %}
{% macro packed(names) %}{% if half_cache %}{{ piece }}({% for name in names %}{{ ", " if not loop.first }}pack2x16float({{ name }}.xy), pack2x16float({{ name }}.zw){% endfor %}){% else %}{{ names[0] }}{% endif %}{% endmacro %}

// Where the key (and the value) of a position begins in the caches, in pieces.
fn cache_start(row_sequence: u32, position: u32, kv_head: u32) -> u32 {
    let block = u32(block_tables[row_sequence * params.max_blocks + position / {{ block_size }}u]);
    return ((block * params.G + kv_head) * {{ block_size }}u + position % {{ block_size }}u) * {{ lanes }}u;
}

{# Loads of the keys of the tile that begins at tile_from, and of the values of the same. #}
{% macro load_keys() %}
{% for u in range(keys) %}
        start{{ u }} = cache_start(row_sequence, min(tile_from + share + {{ u * shares }}u, last), kv_head) + lane;
{% endfor %}
{% for u in range(keys) %}
        k{{ u }} = k_cache[start{{ u }}];
{% endfor %}
{% endmacro %}
{% macro load_values() %}
{% for u in range(keys) %}
        v{{ u }} = v_cache[start{{ u }}];
{% endfor %}
{% endmacro %}

{{ prelude.main(threads) }}
    let row = wg.x;
    let groups = (params.H / params.G + {{ heads - 1 }}u) / {{ heads }}u;
    let kv_head = wg.y / groups;
    let in_group = (wg.y % groups) * {{ heads }}u;
    let split = wg.z;
    let first_head = kv_head * (params.H / params.G) + in_group;
    let used_heads = min({{ heads }}u, params.H / params.G - in_group);
    let position = per_row[params.positions_at + row];
    let row_sequence = u32(per_row[params.sequence_at + row]);
    let share = li / {{ lanes }}u;
    let lane = li % {{ lanes }}u;
    let last = u32(max(position, 0));
    let own_context = u32(max(position + 1, 0));
    let chunk = max((own_context + {{ splits - 1 }}u) / {{ splits }}u, {{ tile }}u);
    let begin = min(split * chunk, own_context);
    var tile_from = begin;
{% for u in range(keys) %}
    var start{{ u }}: u32;
    var k{{ u }}: {{ piece }};
    var v{{ u }}: {{ piece }};
{% endfor %}
    // What is asked for first is under way while the query is made ready. A spare row has no block that could be read.
    if position >= 0 {
{{ load_keys() }}
{{ load_values() }}
    }
{% if not rope %}
{% for r in range(heads) %}
{% for i in range(width) %}
    let query{{ r }}_{{ i }} = q[(row * params.H + first_head + min({{ r }}u, used_heads - 1u)) * {{ quads }}u + lane * {{ width }}u + {{ i }}u] * params.scale;
{% endfor %}
{% endfor %}
{% endif %}
    if li == 0u { row_context = own_context; }
    let context = workgroupUniformLoad(&row_context);
{% if rope %}
    // Query heads, then the key, then the value.
    for (var i = li; i < {{ (heads + 2) * lanes }}u && context > 0u; i += {{ threads }}u) {
        let item = i / {{ lanes }}u;
        let piece = i % {{ lanes }}u;
        let source = select(select(params.H + params.G + kv_head, params.H + kv_head, item == {{ heads }}u), first_head + min(item, used_heads - 1u), item < {{ heads }}u) * {{ quads }}u;
        let vector = piece * {{ width }}u;
        let here = cache_start(row_sequence, last, kv_head) + piece;
        let writes = split == 0u && in_group == 0u;
{% set names = ["turned0", "turned1"][:width] %}
        if item <= {{ heads }}u {
{% for i in range(width) %}
            let turned{{ i }} = rotated(source, vector + {{ i }}u, last);
{% endfor %}
            if item == {{ heads }}u {
                let k = {{ packed(names) }};
{% for i in range(width) %}
                new_key[vector + {{ i }}u] = {{ expanded("k", i) }};
{% endfor %}
                if writes { k_cache[here] = k; }
            } else {
{% for i in range(width) %}
                query[item * {{ quads }}u + vector + {{ i }}u] = turned{{ i }} * params.scale;
                if split == 0u && item < used_heads { q[(first_head + item) * {{ quads }}u + vector + {{ i }}u] = turned{{ i }}; }
{% endfor %}
            }
        } else {
{% for i in range(width) %}
            let turned{{ i }} = qkv[source + vector + {{ i }}u];
{% endfor %}
            let v = {{ packed(names) }};
{% for i in range(width) %}
            new_value[vector + {{ i }}u] = {{ expanded("v", i) }};
{% endfor %}
            if writes { v_cache[here] = v; }
        }
    }
    workgroupBarrier();
{% for r in range(heads) %}
{% for i in range(width) %}
    let query{{ r }}_{{ i }} = query[{{ r * quads }}u + lane * {{ width }}u + {{ i }}u];
{% endfor %}
{% endfor %}
{% endif %}
    let end = min(begin + chunk, context);
{% for r in range(heads) %}
    var top{{ r }} = LOWEST;
    var total{{ r }} = 0.0;
{% for i in range(width) %}
    var sum{{ r }}_{{ i }} = vec4<f32>();
{% endfor %}
{% endfor %}
    while tile_from < end {
{% for u in range(keys) %}
        let key{{ u }} = tile_from + share + {{ u * shares }}u;
        let inside{{ u }} = key{{ u }} < end;
        {
{% for i in range(width) %}
            var x{{ i }} = {{ expanded("k%d" % u, i) }};
{% if rope %}
            x{{ i }} = select(x{{ i }}, new_key[lane * {{ width }}u + {{ i }}u], key{{ u }} + 1u == context);
{% endif %}
{% endfor %}
            if share < {{ shares }}u {
{% for r in range(heads) %}
                parts[(share * {{ pairs }}u + {{ u * heads + r }}u) * {{ lanes }}u + lane] = {% for i in range(width) %}{{ " + " if i }}dot(x{{ i }}, query{{ r }}_{{ i }}){% endfor %};
{% endfor %}
            }
        }
{% endfor %}
        tile_from += {{ tile }}u;
        if tile_from < end {
{{ load_keys() }}
        }
        workgroupBarrier();
        if share < {{ shares }}u {
            for (var p = lane; p < {{ pairs }}u; p += {{ lanes }}u) {
                let first = (share * {{ pairs }}u + p) * {{ lanes }}u;
                scores[share * {{ pairs }}u + p] = {% for j in range(lanes) %}{{ " + " if j }}parts[first + (lane + {{ j }}u) % {{ lanes }}u]{% endfor %};
            }
        }
        workgroupBarrier();
        if share < {{ shares }}u {
{% for r in range(heads) %}
{% for u in range(keys) %}
            let s{{ r }}_{{ u }} = select(LOWEST, scores[share * {{ pairs }}u + {{ u * heads + r }}u], inside{{ u }});
{% endfor %}
            let before{{ r }} = top{{ r }};
{% for u in range(keys) %}
            top{{ r }} = max(top{{ r }}, s{{ r }}_{{ u }});
{% endfor %}
            let shrink{{ r }} = exp(before{{ r }} - top{{ r }});
            total{{ r }} *= shrink{{ r }};
{% for i in range(width) %}
            sum{{ r }}_{{ i }} *= shrink{{ r }};
{% endfor %}
{% endfor %}
{% for u in range(keys) %}
            if inside{{ u }} {
{% for i in range(width) %}
                var x{{ i }} = {{ expanded("v%d" % u, i) }};
{% if rope %}
                x{{ i }} = select(x{{ i }}, new_value[lane * {{ width }}u + {{ i }}u], key{{ u }} + 1u == context);
{% endif %}
{% endfor %}
{% for r in range(heads) %}
                let weight{{ r }} = exp(s{{ r }}_{{ u }} - top{{ r }});
                total{{ r }} += weight{{ r }};
{% for i in range(width) %}
                sum{{ r }}_{{ i }} += weight{{ r }} * x{{ i }};
{% endfor %}
{% endfor %}
            }
{% endfor %}
        }
        if tile_from < end {
{{ load_values() }}
        }
    }
    if share < {{ shares }}u && lane == 0u {
{% for r in range(heads) %}
        tops[{{ r * shares }}u + share] = top{{ r }};
        totals[{{ r * shares }}u + share] = total{{ r }};
{% endfor %}
    }
{% for first in range(0, heads, together) %}
    if share < {{ shares }}u {
{% for r in range(first, first + together) %}
{% for i in range(width) %}
        gathered[{{ (r - first) * shares * quads }}u + share * {{ quads }}u + lane * {{ width }}u + {{ i }}u] = sum{{ r }}_{{ i }};
{% endfor %}
{% endfor %}
    }
    workgroupBarrier();
    for (var at = li; at < {{ together * quads }}u; at += {{ threads }}u) {
        let i = at % {{ quads }}u;
        let in_pass = at / {{ quads }}u;
        let r = {{ first }}u + in_pass;
        if r >= used_heads { continue; }
        var top = tops[r * {{ shares }}u];
{% for j in range(1, shares) %}
        top = max(top, tops[r * {{ shares }}u + {{ j }}u]);
{% endfor %}
        var whole = vec4<f32>();
        var total = 0.0;
{% for j in range(shares) %}
        {
            let weight = exp(tops[r * {{ shares }}u + {{ j }}u] - top);
            total += weight * totals[r * {{ shares }}u + {{ j }}u];
            whole += weight * gathered[(in_pass * {{ shares }}u + {{ j }}u) * {{ quads }}u + i];
        }
{% endfor %}
        let head = row * params.H + first_head + r;
{% if splits == 1 %}
        out[head * {{ quads }}u + i] = select(vec4<f32>(), whole / total, context > 0u);
{% else %}
        out[(head * {{ splits }}u + split) * {{ quads }}u + i] = whole;
        if i == 0u {
            out[params.T * params.H * {{ splits * quads }}u + head * {{ splits }}u + split] = vec4<f32>(top, total, 0.0, 0.0);
        }
{% endif %}
    }
{% if first + together < heads %}
    workgroupBarrier();
{% endif %}
{% endfor %}
}
