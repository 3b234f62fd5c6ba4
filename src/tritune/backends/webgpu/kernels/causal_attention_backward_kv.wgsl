// causal_attention_backward, third of three: dk and dv, with the probabilities computed again from lse.
//
//   P = exp(q kᵀ * scale - lse);  dv = Pᵀ do;  dS = P * (do vᵀ - delta) * scale;  dk = dSᵀ q
//
// Buffers as in causal_attention_backward_q; sequence i32 [T], q_start i32 [S + 1]. The k and v parts of dqkv are =, 0 in
// spare rows.
// Work: one workgroup for 8 * `rows` keys and a key/value head. It walks the query heads of the group and the rows from its first
// key to the end of its last key's sequence, in tiles of 32; so a key's sum is one workgroup's and needs no atomics. Early
// keys, which most rows see, come first.

{% import "prelude.wgsl" as prelude with context %}
{% set vectors = head_dim // 4 %}
{% set slots = (vectors + 7) // 8 %}
{{ prelude.params("T: u32", "heads: u32", "kv_heads: u32", "scale: f32") }}
{{ binding("qkv", "array<vec4<f32>>") }}
{{ binding("positions", "array<i32>") }}
{{ binding("sequence", "array<i32>") }}
{{ binding("q_start", "array<i32>") }}
{{ binding("do_", "array<vec4<f32>>") }}
{{ binding("lse", "array<f32>") }}
{{ binding("delta", "array<f32>") }}
{{ binding("dqkv", "array<vec4<f32>>") }}

const VECTORS = {{ vectors }}u;

var<workgroup> last_row: u32;
var<workgroup> weights: array<f32, {{ 256 * rows }}>;  // P of each key and row of the tile
var<workgroup> slopes: array<f32, {{ 256 * rows }}>;   // dS likewise

{{ prelude.functions() }}
{% include "attention_rows.wgsl" %}

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
    for (var i = 0u; i < {{ 8 * rows }}u; i++) {
        last = max(last, end_of(first + i));
    }
    return min(last, params.T);
}

{{ prelude.main(64) }}
    let kv_head = workgroup_y(wg, grid);
    if kv_head >= params.kv_heads {
        return;
    }
    let group = params.heads / params.kv_heads;
    let first_key = wg.x * {{ 8 * rows }}u;
    if li == 0u {
        last_row = last_row_of(first_key);
    }
    let end = workgroupUniformLoad(&last_row);
    let own = li / 8u * {{ rows }}u;
    let column = li % 8u;
{% for a in range(rows) %}
    let key{{ a }} = first_key + own + {{ a }}u;
    let end{{ a }} = end_of(key{{ a }});
    let k{{ a }} = head_start(key{{ a }}, params.heads + kv_head);
    let v{{ a }} = head_start(key{{ a }}, params.heads + params.kv_heads + kv_head);
{% for s in range(slots) %}
    var dk{{ a }}_{{ s }} = vec4<f32>();
    var dv{{ a }}_{{ s }} = vec4<f32>();
{% endfor %}
{% endfor %}
    for (var head = kv_head * group; head < (kv_head + 1u) * group; head++) {
        for (var tile = first_key; tile < end; tile += 32u) {
{% for b in range(4) %}
            let row{{ b }} = tile + column + {{ 8 * b }}u;
            let q{{ b }} = head_start(row{{ b }}, head);
            let of_head{{ b }} = min(row{{ b }}, params.T - 1u) * params.heads + head;
{% for a in range(rows) %}
            var score{{ a }}_{{ b }} = 0.0;
            var slope{{ a }}_{{ b }} = 0.0;
{% endfor %}
{% endfor %}
            for (var i = 0u; i < VECTORS; i++) {
{% for a in range(rows) %}
                let at_k{{ a }} = qkv[k{{ a }} + i];
                let at_v{{ a }} = qkv[v{{ a }} + i];
{% endfor %}
{% for b in range(4) %}
                let query{{ b }} = qkv[q{{ b }} + i];
                let gradient{{ b }} = do_[of_head{{ b }} * VECTORS + i];
{% for a in range(rows) %}
                score{{ a }}_{{ b }} += dot(query{{ b }}, at_k{{ a }});
                slope{{ a }}_{{ b }} += dot(gradient{{ b }}, at_v{{ a }});
{% endfor %}
{% endfor %}
            }
{% for b in range(4) %}
            let lse{{ b }} = lse[of_head{{ b }}];
            let delta{{ b }} = delta[of_head{{ b }}];
{% for a in range(rows) %}
            let weight{{ a }}_{{ b }} = select(
                0.0,
                exp(score{{ a }}_{{ b }} * params.scale - lse{{ b }}),
                row{{ b }} >= key{{ a }} && row{{ b }} < end{{ a }},
            );
            weights[(own + {{ a }}u) * 32u + column + {{ 8 * b }}u] = weight{{ a }}_{{ b }};
            slopes[(own + {{ a }}u) * 32u + column + {{ 8 * b }}u] =
                weight{{ a }}_{{ b }} * (slope{{ a }}_{{ b }} - delta{{ b }}) * params.scale;
{% endfor %}
{% endfor %}
            workgroupBarrier();
            let tile_rows = min(32u, end - tile);
            for (var row = 0u; row < tile_rows; row++) {
                let q = head_start(tile + row, head) + column;
                let gradient = ((tile + row) * params.heads + head) * VECTORS + column;
{% for a in range(rows) %}
                let weight{{ a }} = weights[(own + {{ a }}u) * 32u + row];
                let slope{{ a }} = slopes[(own + {{ a }}u) * 32u + row];
{% endfor %}
{% for s in range(slots) %}
                {% if vectors % 8 and loop.last %}if column < {{ vectors % 8 }}u {% endif %}{
                    let at_do = do_[gradient + {{ 8 * s }}u];
                    let at_q = qkv[q + {{ 8 * s }}u];
{% for a in range(rows) %}
                    dv{{ a }}_{{ s }} += weight{{ a }} * at_do;
                    dk{{ a }}_{{ s }} += slope{{ a }} * at_q;
{% endfor %}
                }
{% endfor %}
            }
            workgroupBarrier();
        }
    }
{% for a in range(rows) %}
    if key{{ a }} < params.T {
{% for s in range(slots) %}
        {% if vectors % 8 and loop.last %}if column < {{ vectors % 8 }}u {% endif %}{
            dqkv[k{{ a }} + column + {{ 8 * s }}u] = dk{{ a }}_{{ s }};
            dqkv[v{{ a }} + column + {{ 8 * s }}u] = dv{{ a }}_{{ s }};
        }
{% endfor %}
    }
{% endfor %}
}
