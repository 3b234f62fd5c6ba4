{#
causal_attention_backward, second of its dispatches: dq, with the probabilities computed again from lse.

  P = exp(q kᵀ * scale - lse);  dS = P * (do vᵀ - delta) * scale;  dq = dS k

qkv, dqkv f32 [T, (H + 2 G) * d]; do f32 [T, H * d]; lse, delta f32 [T, H]; positions i32 [T]. The q part of dqkv is =, 0 in
spare rows. d a multiple of 4.
Work: as causal_attention; of a tile of keys first the values, then the keys lie in workgroup memory.
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "attention_tile.wgsl" as tile with context %}
{% import "attention_queries.wgsl" as queries with context %}
{{ prelude.params("T: u32", "heads: u32", "kv_heads: u32", "last_tile: u32", "scale: f32") }}
{{ binding("qkv", "array<vec4<f32>>") }}
{{ binding("positions", "array<i32>") }}
{{ binding("do_", "array<vec4<f32>>") }}
{{ binding("lse", "array<f32>") }}
{{ binding("delta", "array<f32>") }}
{{ binding("dqkv", "array<vec4<f32>>") }}

const VECTORS = {{ tile.vectors }}u;
{{ tile.operands("operands") }}
{{ tile.weights("slopes") }}
{{ queries.declare() }}

{{ prelude.functions() }}
{% include "attention_rows.wgsl" %}
fn query_at(at: u32) -> vec4<f32> { return qkv[at]; }
fn gradient_at(at: u32) -> vec4<f32> { return do_[at]; }
{{ queries.keys() }}

{{ prelude.main(tile.threads) }}
{{ queries.begin() }}
{{ tile.queries() }}
{{ tile.zero("sum") }}
{% for a in range(tile.tq) %}
    let q{{ a }} = head_start(row{{ a }}, head{{ a }});
    let of_head{{ a }} = min(row{{ a }}, params.T - 1u) * params.heads + head{{ a }};
    let gradient{{ a }} = of_head{{ a }} * VECTORS;
{% endfor %}
{% for h in range(tile.tq // 4) %}
    let start{{ h }} = {{ tile.of_rows("start_of", h) }};
    let last{{ h }} = vec4<u32>(row{{ 4 * h }}, row{{ 4 * h + 1 }}, row{{ 4 * h + 2 }}, row{{ 4 * h + 3 }});
{% for name in ("lse", "delta") %}
    let {{ name }}{{ h }} = vec4<f32>({{ name }}[of_head{{ 4 * h }}], {{ name }}[of_head{{ 4 * h + 1 }}], {{ name }}[of_head{{ 4 * h + 2 }}], {{ name }}[of_head{{ 4 * h + 3 }}]);
{% endfor %}
{% endfor %}
{{ tile.fetch("raw_value", "value_at", "begin", "end", "var ") }}
    for (var walked = begin; walked < end; walked += {{ tile.bk }}u) {
        workgroupBarrier();
{{ tile.keep("operands", "raw_value", "value_at", "walked", "end") }}
        workgroupBarrier();
{{ tile.fetch("raw_key", "key_at", "walked", "end", "let ") }}
{{ tile.products("slope", "operands", "gradient_at", "gradient") }}
        workgroupBarrier();
{{ tile.keep("operands", "raw_key", "key_at", "walked", "end") }}
        workgroupBarrier();
{{ tile.fetch("raw_value", "value_at", "walked + " ~ tile.bk ~ "u", "end") }}
{{ tile.products("score", "operands", "query_at", "q") }}
{% for b in range(tile.tk) %}
        let key{{ b }} = vec4<u32>(walked + column + {{ tile.tx * b }}u);
{% for h in range(tile.tq // 4) %}
        let weight{{ h }}_{{ b }} = exp({{ tile.four("score", h, b) }} * params.scale - lse{{ h }});
        slopes[{{ tile.weight_at(h, b) }}] = select(
            vec4<f32>(),
            weight{{ h }}_{{ b }} * ({{ tile.four("slope", h, b) }} - delta{{ h }}) * params.scale,
            (key{{ b }} >= start{{ h }}) & (key{{ b }} <= last{{ h }}),
        );
{% endfor %}
{% endfor %}
        workgroupBarrier();
{{ tile.add("sum", "operands", "slopes") }}
    }
{% for a in range(tile.tq) %}
    if row{{ a }} < params.T {
{% for s in range(tile.slots) %}
        {{ tile.if_column(s) }}{ dqkv[q{{ a }} + column + {{ tile.tx * s }}u] = sum{{ a }}_{{ s }}; }
{% endfor %}
    }
{% endfor %}
}
