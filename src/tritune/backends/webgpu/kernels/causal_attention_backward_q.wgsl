// causal_attention_backward, second of three: dq, with the probabilities computed again from lse.
//
//   P = exp(q kᵀ * scale - lse);  dS = P * (do vᵀ - delta) * scale;  dq = dS k
//
// qkv, dqkv f32 [T, (H + 2 G) * d]; do f32 [T, H * d]; lse, delta f32 [T, H]; positions i32 [T]. The q part of dqkv is =, 0 in
// spare rows. d a multiple of 4 (`head_dim`).
// Work: as causal_attention: one workgroup for 8 * `rows` rows and a query head, tiles of 32 keys.

{% import "prelude.wgsl" as prelude with context %}
{% set vectors = head_dim // 4 %}
{% set slots = (vectors + 7) // 8 %}
{{ prelude.params("T: u32", "heads: u32", "kv_heads: u32", "scale: f32") }}
{{ binding("qkv", "array<vec4<f32>>") }}
{{ binding("positions", "array<i32>") }}
{{ binding("do_", "array<vec4<f32>>") }}
{{ binding("lse", "array<f32>") }}
{{ binding("delta", "array<f32>") }}
{{ binding("dqkv", "array<vec4<f32>>") }}

const VECTORS = {{ vectors }}u;

var<workgroup> first_key: u32;
var<workgroup> slopes: array<f32, {{ 256 * rows }}>;  // dS of each row and key of the tile

{{ prelude.functions() }}
{% include "attention_rows.wgsl" %}

{{ prelude.main(64) }}
    let head = workgroup_y(wg, grid);
    if head >= params.heads {
        return;
    }
    let kv_head = head / (params.heads / params.kv_heads);
    let first_row = (grid.x - 1u - wg.x) * {{ 8 * rows }}u;
    let end = min(first_row + {{ 8 * rows }}u, params.T);
    if li == 0u {
        first_key = first_key_of(first_row, end);
    }
    let begin = workgroupUniformLoad(&first_key);
    let own = li / 8u * {{ rows }}u;
    let column = li % 8u;
{% for a in range(rows) %}
    let row{{ a }} = first_row + own + {{ a }}u;
    let start{{ a }} = start_of(row{{ a }});
    let q{{ a }} = head_start(row{{ a }}, head);
    let of_head{{ a }} = min(row{{ a }}, params.T - 1u) * params.heads + head;
    let lse{{ a }} = lse[of_head{{ a }}];
    let delta{{ a }} = delta[of_head{{ a }}];
{% for s in range(slots) %}
    var sum{{ a }}_{{ s }} = vec4<f32>();
{% endfor %}
{% endfor %}
    for (var tile = begin; tile < end; tile += 32u) {
{% for b in range(4) %}
        let key{{ b }} = tile + column + {{ 8 * b }}u;
        let k{{ b }} = head_start(key{{ b }}, params.heads + kv_head);
        let v{{ b }} = head_start(key{{ b }}, params.heads + params.kv_heads + kv_head);
{% for a in range(rows) %}
        var score{{ a }}_{{ b }} = 0.0;
        var slope{{ a }}_{{ b }} = 0.0;
{% endfor %}
{% endfor %}
        for (var i = 0u; i < VECTORS; i++) {
{% for a in range(rows) %}
            let query{{ a }} = qkv[q{{ a }} + i];
            let gradient{{ a }} = do_[of_head{{ a }} * VECTORS + i];
{% endfor %}
{% for b in range(4) %}
            let at_k{{ b }} = qkv[k{{ b }} + i];
            let at_v{{ b }} = qkv[v{{ b }} + i];
{% for a in range(rows) %}
            score{{ a }}_{{ b }} += dot(query{{ a }}, at_k{{ b }});
            slope{{ a }}_{{ b }} += dot(gradient{{ a }}, at_v{{ b }});
{% endfor %}
{% endfor %}
        }
{% for a in range(rows) %}
{% for b in range(4) %}
        let seen{{ a }}_{{ b }} = key{{ b }} >= start{{ a }} && key{{ b }} <= row{{ a }};
        let weight{{ a }}_{{ b }} = exp(score{{ a }}_{{ b }} * params.scale - lse{{ a }});
        slopes[(own + {{ a }}u) * 32u + column + {{ 8 * b }}u] =
            select(0.0, weight{{ a }}_{{ b }} * (slope{{ a }}_{{ b }} - delta{{ a }}) * params.scale, seen{{ a }}_{{ b }});
{% endfor %}
{% endfor %}
        workgroupBarrier();
        let keys = min(32u, end - tile);
        for (var key = 0u; key < keys; key++) {
            let k = head_start(tile + key, params.heads + kv_head) + column;
{% for a in range(rows) %}
            let slope{{ a }} = slopes[(own + {{ a }}u) * 32u + key];
{% endfor %}
{% for s in range(slots) %}
            {% if vectors % 8 and loop.last %}if column < {{ vectors % 8 }}u {% endif %}{
                let value = qkv[k + {{ 8 * s }}u];
{% for a in range(rows) %}
                sum{{ a }}_{{ s }} += slope{{ a }} * value;
{% endfor %}
            }
{% endfor %}
        }
        workgroupBarrier();
    }
{% for a in range(rows) %}
    if row{{ a }} < params.T {
{% for s in range(slots) %}
        {% if vectors % 8 and loop.last %}if column < {{ vectors % 8 }}u {% endif %}{
            dqkv[q{{ a }} + column + {{ 8 * s }}u] = sum{{ a }}_{{ s }};
        }
{% endfor %}
    }
{% endfor %}
}
