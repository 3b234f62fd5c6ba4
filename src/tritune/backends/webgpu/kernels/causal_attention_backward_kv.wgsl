{#
causal_attention_backward, third of its dispatches: dk and dv, with the probabilities computed again from lse.

  P = exp(q kᵀ * scale - lse);  dv = Pᵀ do;  dS = P * (do vᵀ - delta) * scale;  dk = dSᵀ q

Buffers as in causal_attention_backward_q; sequence i32 [T], q_start i32 [S + 1]. The k and v parts of dqkv are =, 0 in
spare rows; with `partial` the sums of each split of the group's query heads go to `dkv` f32 [splits, T, 2 G * d], which
causal_attention_backward_sum adds up.
Work: one workgroup for a tile of keys, a key/value head and a split. It walks the split's query heads and the rows from its
first key to the end of its last key's sequence, so that a key's sum is one workgroup's and needs no atomics; queries and
gradients of a tile of rows lie in workgroup memory. Early keys, which most rows see, come first.
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "attention_tile.wgsl" as tile with context %}
{{ prelude.params("T: u32", "heads: u32", "kv_heads: u32", "first_tile: u32", "scale: f32", "splits: u32") }}
{{ binding("qkv", "array<vec4<f32>>") }}
{{ binding("positions", "array<i32>") }}
{{ binding("sequence", "array<i32>") }}
{{ binding("q_start", "array<i32>") }}
{{ binding("do_", "array<vec4<f32>>") }}
{{ binding("lse", "array<f32>") }}
{{ binding("delta", "array<f32>") }}
{{ binding("dkv", "array<vec4<f32>>") }}

const VECTORS = {{ tile.vectors }}u;
{{ tile.operands("queries") }}
{{ tile.operands("gradients") }}
{{ tile.weights("weights") }}
{{ tile.weights("slopes") }}
var<workgroup> last_row: u32;
var<private> head: u32;
var<private> tile_head: u32;  // of the tile that is on its way

{{ prelude.functions() }}
{% include "attention_rows.wgsl" %}
fn own_at(at: u32) -> vec4<f32> { return qkv[at]; }
fn of_head(row: u32) -> u32 { return min(row, params.T - 1u) * params.heads + head; }
alias Raw = vec4<f32>;
fn expand(raw: Raw) -> vec4<f32> { return raw; }
fn query_at(row: u32, i: u32) -> Raw { return qkv[head_start(row, tile_head) + i]; }
fn gradient_at(row: u32, i: u32) -> Raw { return do_[(row * params.heads + tile_head) * VECTORS + i]; }

// The row after the last one that sees the key; 0 for a spare row.
fn end_of(key: u32) -> u32 {
    let row = min(key, params.T - 1u);
    if key >= params.T || positions[row] < 0 {
        return 0u;
    }
    return u32(q_start[sequence[row] + 1]);
}

fn last_row_of(first: u32) -> u32 {
    var last = 0u;
    for (var i = 0u; i < {{ tile.bq }}u; i++) {
        last = max(last, end_of(first + i));
    }
    return min(last, params.T);
}

{{ prelude.main(tile.threads) }}
    let index = workgroup_y(wg, grid);
    let kv_head = index / params.splits;
    let split = index % params.splits;
    if kv_head >= params.kv_heads {
        return;
    }
    let heads_of_split = params.heads / params.kv_heads / params.splits;
    let first_head = (kv_head * params.splits + split) * heads_of_split;
    let first_key = (params.first_tile + wg.x) * {{ tile.bq }}u;
    if li == 0u {
        last_row = last_row_of(first_key);
    }
    let end = workgroupUniformLoad(&last_row);
    let column = li % {{ tile.tx }}u;
    let own = li / {{ tile.tx }}u * {{ tile.tq }}u;
{% for a in range(tile.tq) %}
    let row{{ a }} = first_key + own + {{ a }}u;
    let k{{ a }} = head_start(row{{ a }}, params.heads + kv_head);
    let v{{ a }} = head_start(row{{ a }}, params.heads + params.kv_heads + kv_head);
{% endfor %}
{% for h in range(tile.tq // 4) %}
    let key{{ h }} = vec4<u32>(row{{ 4 * h }}, row{{ 4 * h + 1 }}, row{{ 4 * h + 2 }}, row{{ 4 * h + 3 }});
    let end{{ h }} = {{ tile.of_rows("end_of", h) }};
{% endfor %}
{{ tile.zero("dk") }}
{{ tile.zero("dv") }}
    let tiles = (end - min(first_key, end) + {{ tile.bk - 1 }}u) / {{ tile.bk }}u;
    tile_head = first_head;
{{ tile.fetch("raw_query", "query_at", "first_key", "end", "var ") }}
{{ tile.fetch("raw_gradient", "gradient_at", "first_key", "end", "var ") }}
    for (var step = 0u; step < tiles * heads_of_split; step++) {
        head = first_head + step / tiles;
        let walked = first_key + step % tiles * {{ tile.bk }}u;
        tile_head = head;
        workgroupBarrier();
{{ tile.keep("queries", "raw_query", "query_at", "walked", "end") }}
{{ tile.keep("gradients", "raw_gradient", "gradient_at", "walked", "end") }}
        workgroupBarrier();
        tile_head = min(first_head + (step + 1u) / tiles, first_head + heads_of_split - 1u);
        let next = first_key + (step + 1u) % tiles * {{ tile.bk }}u;
{{ tile.products("score", "queries", "own_at", "k") }}
{{ tile.products("slope", "gradients", "own_at", "v") }}
{% for b in range(tile.tk) %}
        let at{{ b }} = walked + column + {{ tile.tx * b }}u;
        let lse{{ b }} = lse[of_head(at{{ b }})];
        let delta{{ b }} = delta[of_head(at{{ b }})];
{% for h in range(tile.tq // 4) %}
        let weight{{ h }}_{{ b }} = select(
            vec4<f32>(),
            exp({{ tile.four("score", h, b) }} * params.scale - lse{{ b }}),
            (vec4<u32>(at{{ b }}) >= key{{ h }}) & (vec4<u32>(at{{ b }}) < end{{ h }}),
        );
        weights[{{ tile.weight_at(h, b) }}] = weight{{ h }}_{{ b }};
        slopes[{{ tile.weight_at(h, b) }}] =
            weight{{ h }}_{{ b }} * ({{ tile.four("slope", h, b) }} - delta{{ b }}) * params.scale;
{% endfor %}
{% endfor %}
        workgroupBarrier();
{{ tile.fetch("raw_query", "query_at", "next", "end") }}
{{ tile.fetch("raw_gradient", "gradient_at", "next", "end") }}
{{ tile.add("dv", "gradients", "weights") }}
{{ tile.add("dk", "queries", "slopes") }}
    }
{% for a in range(tile.tq) %}
    if row{{ a }} < params.T {
{% if partial %}
        let to_k = ((split * params.T + row{{ a }}) * 2u * params.kv_heads + kv_head) * VECTORS + column;
        let to_v = to_k + params.kv_heads * VECTORS;
{% else %}
        let to_k = k{{ a }} + column;
        let to_v = v{{ a }} + column;
{% endif %}
{% for s in range(tile.slots) %}
        {{ tile.if_column(s) }}{
            dkv[to_k + {{ tile.tx * s }}u] = dk{{ a }}_{{ s }};
            dkv[to_v + {{ tile.tx * s }}u] = dv{{ a }}_{{ s }};
        }
{% endfor %}
    }
{% endfor %}
}
