{#
causal_attention: row t of a packed batch attends to rows t - positions[t] … t (its sequence so far), softmax online.

qkv f32 [T, (H + 2 G) * d], q and k rotated; positions i32 [T], -1 = spare row; o f32 [T, H * d], =; lse f32 [T, H] = the
log-sum-exp of the row's scores, =; both 0 in spare rows. d a multiple of 4.
Work: a workgroup for a tile of rows and `pack` query heads of one key/value head: see attention_forward.wgsl. Late rows, which
see most, come first.
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "attention_tile.wgsl" as tile with context %}
{% import "attention_queries.wgsl" as queries with context %}
{% import "attention_forward.wgsl" as attention with context %}
{{ prelude.params("T: u32", "heads: u32", "kv_heads: u32", "last_tile: u32", "scale: f32") }}
{{ binding("qkv", "array<vec4<f32>>") }}
{{ binding("positions", "array<i32>") }}
{{ binding("o", "array<vec4<f32>>") }}
{{ binding("lse", "array<f32>") }}

{{ attention.declare() }}
{{ queries.declare() }}

{{ prelude.functions() }}
{% include "attention_rows.wgsl" %}
fn query(row: u32, head: u32) -> u32 { return head_start(row, head); }
fn query_at(at: u32) -> vec4<f32> { return qkv[at]; }
{{ queries.keys() }}

{{ prelude.main(tile.threads) }}
{{ queries.begin() }}
{{ attention.begin() }}
{% for h in range(tile.tq // 4) %}
    let start{{ h }} = {{ tile.of_rows("start_of", h) }};
    let last{{ h }} = vec4<u32>(row{{ 4 * h }}, row{{ 4 * h + 1 }}, row{{ 4 * h + 2 }}, row{{ 4 * h + 3 }});
    let used{{ h }} = start{{ h }} <= last{{ h }};
{% endfor %}
{{ attention.walk("begin", "end") }}
{{ attention.finish(True) }}
}
