// causal_attention: row t of a packed batch attends to rows t - positions[t] … t (its sequence so far), softmax online.
//
// qkv f32 [T, (H + 2 G) * d], q and k rotated; positions i32 [T], -1 = spare row; o f32 [T, H * d], =; lse f32 [T, H] = the
// log-sum-exp of the row's scores, =; both 0 in spare rows. d a multiple of 4, known when the kernel is rendered
// (`head_dim`): a thread's share of o is in named variables.
// Work: one workgroup for 8 * `rows` rows and a query head. It walks the keys that its rows see in tiles of 32; a thread
// computes the scores of `rows` rows and 4 keys, then adds to these rows and every eighth vec4 of o. Late rows, which see
// most, come first.

{% import "prelude.wgsl" as prelude with context %}
{% set vectors = head_dim // 4 %}
{% set slots = (vectors + 7) // 8 %}
{{ prelude.params("T: u32", "heads: u32", "kv_heads: u32", "scale: f32") }}
{{ binding("qkv", "array<vec4<f32>>") }}
{{ binding("positions", "array<i32>") }}
{{ binding("o", "array<vec4<f32>>") }}
{{ binding("lse", "array<f32>") }}

const VECTORS = {{ vectors }}u;
const LOWEST = -3.4028234e38;

var<workgroup> first_key: u32;
var<workgroup> part: array<f32, {{ 64 * rows }}>;      // a number of each row and column of threads
var<workgroup> weights: array<f32, {{ 256 * rows }}>;  // of each row and key of the tile

{{ prelude.functions() }}
{% include "attention_rows.wgsl" %}

// The joined `part`s of a row: its maximum, its sum.
fn row_max(row: u32) -> f32 {
    var top = part[row * 8u];
    for (var i = 1u; i < 8u; i++) {
        top = max(top, part[row * 8u + i]);
    }
    return top;
}

fn row_sum(row: u32) -> f32 {
    var total = 0.0;
    for (var i = 0u; i < 8u; i++) {
        total += part[row * 8u + i];
    }
    return total;
}

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
    var top{{ a }} = LOWEST;
    var total{{ a }} = 0.0;
{% for s in range(slots) %}
    var sum{{ a }}_{{ s }} = vec4<f32>();
{% endfor %}
{% endfor %}
    for (var tile = begin; tile < end; tile += 32u) {
{% for b in range(4) %}
        let key{{ b }} = tile + column + {{ 8 * b }}u;
        let k{{ b }} = head_start(key{{ b }}, params.heads + kv_head);
{% for a in range(rows) %}
        var score{{ a }}_{{ b }} = 0.0;
{% endfor %}
{% endfor %}
        for (var i = 0u; i < VECTORS; i++) {
{% for a in range(rows) %}
            let query{{ a }} = qkv[q{{ a }} + i];
{% endfor %}
{% for b in range(4) %}
            let at{{ b }} = qkv[k{{ b }} + i];
{% for a in range(rows) %}
            score{{ a }}_{{ b }} += dot(query{{ a }}, at{{ b }});
{% endfor %}
{% endfor %}
        }
{% for a in range(rows) %}
{% for b in range(4) %}
        let seen{{ a }}_{{ b }} = key{{ b }} >= start{{ a }} && key{{ b }} <= row{{ a }};
        score{{ a }}_{{ b }} = select(LOWEST, score{{ a }}_{{ b }} * params.scale, seen{{ a }}_{{ b }});
{% endfor %}
        part[(own + {{ a }}u) * 8u + column] = max(max(score{{ a }}_0, score{{ a }}_1), max(score{{ a }}_2, score{{ a }}_3));
{% endfor %}
        workgroupBarrier();
{% for a in range(rows) %}
        let new_top{{ a }} = max(top{{ a }}, row_max(own + {{ a }}u));
        let shrink{{ a }} = exp(top{{ a }} - new_top{{ a }});
        top{{ a }} = new_top{{ a }};
        total{{ a }} *= shrink{{ a }};
{% for b in range(4) %}
        let weight{{ a }}_{{ b }} = select(0.0, exp(score{{ a }}_{{ b }} - top{{ a }}), seen{{ a }}_{{ b }});
        weights[(own + {{ a }}u) * 32u + column + {{ 8 * b }}u] = weight{{ a }}_{{ b }};
        total{{ a }} += weight{{ a }}_{{ b }};
{% endfor %}
{% for s in range(slots) %}
        sum{{ a }}_{{ s }} *= shrink{{ a }};
{% endfor %}
{% endfor %}
        workgroupBarrier();
        let keys = min(32u, end - tile);
        for (var key = 0u; key < keys; key++) {
            let v = head_start(tile + key, params.heads + params.kv_heads + kv_head) + column;
{% for a in range(rows) %}
            let weight{{ a }} = weights[(own + {{ a }}u) * 32u + key];
{% endfor %}
{% for s in range(slots) %}
            {% if vectors % 8 and loop.last %}if column < {{ vectors % 8 }}u {% endif %}{
                let value = qkv[v + {{ 8 * s }}u];
{% for a in range(rows) %}
                sum{{ a }}_{{ s }} += weight{{ a }} * value;
{% endfor %}
            }
{% endfor %}
        }
    }
{% for a in range(rows) %}
    part[(own + {{ a }}u) * 8u + column] = total{{ a }};
{% endfor %}
    workgroupBarrier();
{% for a in range(rows) %}
    if row{{ a }} < params.T {
        let used = start{{ a }} <= row{{ a }};
        let whole = row_sum(own + {{ a }}u);
        let inverse = select(0.0, 1.0 / whole, used);
        let at = (row{{ a }} * params.heads + head) * VECTORS + column;
{% for s in range(slots) %}
        {% if vectors % 8 and loop.last %}if column < {{ vectors % 8 }}u {% endif %}{
            o[at + {{ 8 * s }}u] = sum{{ a }}_{{ s }} * inverse;
        }
{% endfor %}
        if column == 0u {
            lse[row{{ a }} * params.heads + head] = select(0.0, top{{ a }} + log(whole), used);
        }
    }
{% endfor %}
}
