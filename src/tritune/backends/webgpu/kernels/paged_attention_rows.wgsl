{#
paged_attention for few rows, its context split over workgroups, and for one row rope_cache with it (`rope`).

q, o f32 [T, H * d]; k_cache, v_cache [blocks, G, block_size, d], `half_cache`: f16, two to a word, else f32; per_row is
one range of memory with positions i32 [T] and sequence i32 [T] at `positions_at`, `sequence_at`; block_tables i32
[S, max_blocks]. rope: qkv f32 [1, (H + 2 G) * d] and table f32 [positions, d] (cos | sin) come in, q and the row's key
and value go out, and the row attends to them without reading them back.

`splits` 1: o is =, 0 in spare rows (position -1). More: out is f32 [T, H, splits, d] of unnormalised sums, then
[T, H, splits, 4] of (largest score, sum of weights, 0, 0), for attention_value of combine.wgsl.

Work: grid (T, G * ceil(H / G / heads), splits); a workgroup takes `heads` query heads of one key/value head, so that they
share what is loaded, and a tile of THREADS / 4 keys at a time. Four threads a key for the scores; a thread a vec4 of o
and a share of the keys for the values, of which it finds the largest score and the weights by itself: shares are joined
once, in the end. All loads of a tile are under way together.
#}
{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("T: u32", "H: u32", "G: u32", "max_blocks: u32", "scale: f32", "positions_at: u32", "sequence_at: u32") }}
{% set quads = head_dim // 4 %}
{{ binding("q", "array<vec4<f32>>") }}
{{ binding("k_cache", "array<vec2<u32>>" if half_cache else "array<vec4<f32>>") }}
{{ binding("v_cache", "array<vec2<u32>>" if half_cache else "array<vec4<f32>>") }}
{{ binding("per_row", "array<i32>") }}
{{ binding("block_tables", "array<i32>") }}
{{ binding("out", "array<vec4<f32>>") }}
{% if rope %}
{{ binding("qkv", "array<vec4<f32>>") }}
{{ binding("table", "array<vec4<f32>>") }}
{% endif %}
{% set tile = threads // 4 %}
{% set shares = [threads // quads, tile] | min %}
{% set share_keys = (tile + shares - 1) // shares %}
{% set together = 2 if heads > 1 and limits["max-compute-workgroup-storage-size"] >= 32768 else 1 %}
const LOWEST = -3.4028234e38;

var<workgroup> row_context: u32;
var<workgroup> query: array<vec4<f32>, {{ heads * quads }}>;
var<workgroup> parts: array<vec4<f32>, {{ heads * tile }}>;
var<workgroup> tops: array<f32, {{ heads * shares }}>;
var<workgroup> totals: array<f32, {{ heads * shares }}>;
var<workgroup> gathered: array<vec4<f32>, {{ threads * together }}>;
{% if rope %}
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
{% if half_cache %}
fn expand(word: vec2<u32>) -> vec4<f32> { return vec4<f32>(load_f16x2(word.x), load_f16x2(word.y)); }
fn shrink(x: vec4<f32>) -> vec2<u32> { return vec2<u32>(pack2x16float(x.xy), pack2x16float(x.zw)); }
{% else %}
fn expand(x: vec4<f32>) -> vec4<f32> { return x; }
fn shrink(x: vec4<f32>) -> vec4<f32> { return x; }
{% endif %}

// Where the key (and the value) of a position begins in the caches, in vectors.
fn cache_start(row_sequence: u32, position: u32, kv_head: u32) -> u32 {
    let block = u32(block_tables[row_sequence * params.max_blocks + position / {{ block_size }}u]);
    return ((block * params.G + kv_head) * {{ block_size }}u + position % {{ block_size }}u) * {{ quads }}u;
}

{# Loads of the tile that begins at tile_from: the thread's share of a key and its vector of some values. #}
{% set steps = (quads + 3) // 4 %}
{% macro load_tile() %}
    {
        let k_first = cache_start(row_sequence, min(tile_from + key, last), kv_head);
{% for u in range(steps) %}
        k{{ u }} = k_cache[k_first + min(part + {{ 4 * u }}u, {{ quads - 1 }}u)];
{% endfor %}
{% for u in range(share_keys) %}
        v{{ u }} = v_cache[cache_start(row_sequence, min(tile_from + share + {{ u * shares }}u, last), kv_head) + v_at];
{% endfor %}
    }
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
    let key = li / 4u;
    let part = li % 4u;
    let share = li / {{ quads }}u;
    let v_at = li % {{ quads }}u;
    let last = u32(max(position, 0));
    let own_context = u32(max(position + 1, 0));
    let chunk = max((own_context + {{ splits - 1 }}u) / {{ splits }}u, {{ tile }}u);
    let begin = min(split * chunk, own_context);
    var tile_from = begin;
{% for u in range(steps) %}
    var k{{ u }}: {{ "vec2<u32>" if half_cache else "vec4<f32>" }};
{% endfor %}
{% for u in range(share_keys) %}
    var v{{ u }}: {{ "vec2<u32>" if half_cache else "vec4<f32>" }};
{% endfor %}
    // What is asked for first is under way while the query is made ready. A spare row has no block that could be read.
    if position >= 0 {
{{ load_tile() }}
    }
    if li == 0u { row_context = own_context; }
    let context = workgroupUniformLoad(&row_context);
{% if rope %}
    // Query heads, then the key, then the value.
    for (var i = li; i < {{ (heads + 2) * quads }}u && context > 0u; i += {{ threads }}u) {
        let item = i / {{ quads }}u;
        let vector = i % {{ quads }}u;
        let source = select(select(params.H + params.G + kv_head, params.H + kv_head, item == {{ heads }}u), first_head + min(item, used_heads - 1u), item < {{ heads }}u);
        let plain = qkv[source * {{ quads }}u + vector];
        let turned = rotated(source * {{ quads }}u, vector, last);
        let here = cache_start(row_sequence, last, kv_head) + vector;
        let writes = split == 0u && in_group == 0u;
        if item < {{ heads }}u {
            query[i] = turned * params.scale;
            if split == 0u && item < used_heads { q[(first_head + item) * {{ quads }}u + vector] = turned; }
        } else if item == {{ heads }}u {
            let k = shrink(turned);
            new_key[vector] = expand(k);
            if writes { k_cache[here] = k; }
        } else {
            let v = shrink(plain);
            new_value[vector] = expand(v);
            if writes { v_cache[here] = v; }
        }
    }
{% else %}
    for (var i = li; i < {{ heads * quads }}u; i += {{ threads }}u) {
        let head = min(i / {{ quads }}u, used_heads - 1u);
        query[i] = q[(row * params.H + first_head + head) * {{ quads }}u + i % {{ quads }}u] * params.scale;
    }
{% endif %}
    let end = min(begin + chunk, context);
    workgroupBarrier();
{% for r in range(heads) %}
    var top{{ r }} = LOWEST;
    var total{{ r }} = 0.0;
    var sum{{ r }} = vec4<f32>();
{% endfor %}
    while tile_from < end {
        let count = min({{ tile }}u, end - tile_from);
{% for r in range(heads) %}
        var dot{{ r }} = 0.0;
{% endfor %}
{% for u in range(steps) %}
        {
            let i = part + {{ 4 * u }}u;
            var k = expand(k{{ u }});
{% if rope %}
            k = select(k, new_key[min(i, {{ quads - 1 }}u)], tile_from + key + 1u == context);
{% endif %}
            if i < {{ quads }}u {
{% for r in range(heads) %}
                dot{{ r }} += dot(k, query[{{ r * quads }}u + i]);
{% endfor %}
            }
        }
{% endfor %}
{% for r in range(heads) %}
        parts[{{ r * tile }}u + key][part] = dot{{ r }};
{% endfor %}
        workgroupBarrier();
{% for u in range(share_keys) %}
        let at{{ u }} = share + {{ u * shares }}u;
{% if rope %}
        let value{{ u }} = select(expand(v{{ u }}), new_value[v_at], tile_from + at{{ u }} + 1u == context);
{% else %}
        let value{{ u }} = expand(v{{ u }});
{% endif %}
{% endfor %}
        if share < {{ shares }}u {
{% for r in range(heads) %}
{% for u in range(share_keys) %}
            let s{{ r }}_{{ u }} = select(LOWEST, dot(parts[{{ r * tile }}u + min(at{{ u }}, {{ tile - 1 }}u)], vec4<f32>(1.0)), at{{ u }} < count);
{% endfor %}
            let before{{ r }} = top{{ r }};
{% for u in range(share_keys) %}
            top{{ r }} = max(top{{ r }}, s{{ r }}_{{ u }});
{% endfor %}
            let shrink{{ r }} = exp(before{{ r }} - top{{ r }});
            total{{ r }} *= shrink{{ r }};
            sum{{ r }} *= shrink{{ r }};
{% for u in range(share_keys) %}
            let weight{{ r }}_{{ u }} = select(0.0, exp(s{{ r }}_{{ u }} - top{{ r }}), at{{ u }} < count);
            total{{ r }} += weight{{ r }}_{{ u }};
            sum{{ r }} += select(vec4<f32>(), weight{{ r }}_{{ u }} * value{{ u }}, at{{ u }} < count);
{% endfor %}
{% endfor %}
        }
        tile_from += {{ tile }}u;
        if tile_from < end {
{{ load_tile() }}
        }
        workgroupBarrier();
    }
    if share < {{ shares }}u && v_at == 0u {
{% for r in range(heads) %}
        tops[{{ r * shares }}u + share] = top{{ r }};
        totals[{{ r * shares }}u + share] = total{{ r }};
{% endfor %}
    }
{% for first in range(0, heads, together) %}
{% for r in range(first, [first + together, heads] | min) %}
    gathered[{{ (r - first) * threads }}u + li] = sum{{ r }};
{% endfor %}
    workgroupBarrier();
    for (var at = li; at < {{ together * quads }}u; at += {{ threads }}u) {
        let i = at % {{ quads }}u;
        let in_pair = at / {{ quads }}u;
        let r = {{ first }}u + in_pair;
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
            whole += weight * gathered[in_pair * {{ threads }}u + {{ j * quads }}u + i];
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
