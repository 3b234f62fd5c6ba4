{#
Attention of a tile of queries, softmax online: what causal_attention.wgsl and paged_attention.wgsl share; see
attention_tile.wgsl. The kernel defines

    fn query(row: u32, head: u32) -> u32                first vec4 of a query's vector, also for rows beyond the last
    fn query_at(at: u32) -> vec4<f32>
    alias Raw = …;  fn expand(raw: Raw) -> vec4<f32>    what is loaded of a key or value, and the numbers that it holds
    fn key_at(key: u32, i: u32) -> Raw                  vec4 i of a key; value_at likewise
#}
{% import "attention_tile.wgsl" as tile with context %}

{% macro declare() %}
const VECTORS = {{ tile.vectors }}u;
const LOWEST = -3.4028234e38;
{{ tile.operands("operands") }}
{{ tile.weights("weights") }}
var<workgroup> part: array<vec4<f32>, {{ tile.bq // 4 * tile.tx }}>;  // a number of four queries, of each column

// The joined `part`s of four queries: their maxima, their sums.
fn joined_max(four: u32) -> vec4<f32> {
    var top = part[four * {{ tile.tx }}u];
    for (var i = 1u; i < {{ tile.tx }}u; i++) { top = max(top, part[four * {{ tile.tx }}u + i]); }
    return top;
}
fn joined_sum(four: u32) -> vec4<f32> {
    var total = part[four * {{ tile.tx }}u];
    for (var i = 1u; i < {{ tile.tx }}u; i++) { total += part[four * {{ tile.tx }}u + i]; }
    return total;
}
{% endmacro %}

{# The queries of a thread, and their accumulators. #}
{% macro begin() %}
{{ tile.queries() }}
{{ tile.zero("sum") }}
{% for a in range(tile.tq) %}
    let q{{ a }} = query(row{{ a }}, head{{ a }});
{% endfor %}
{% for h in range(tile.tq // 4) %}
    var top{{ h }} = vec4<f32>(LOWEST);
    var total{{ h }} = vec4<f32>();
{% endfor %}
{% endmacro %}

{# Walk keys begin … end - 1, of which a query sees those from start{h} to last{h}: vec4<u32> of the queries 4h …. #}
{% macro walk(begin, end) %}
{{ tile.fetch("raw_key", "key_at", begin, end, "var ") }}
    for (var tile = {{ begin }}; tile < {{ end }}; tile += {{ tile.bk }}u) {
        workgroupBarrier();
{{ tile.keep("operands", "raw_key", "key_at", "tile", end) }}
        workgroupBarrier();
{{ tile.fetch("raw_value", "value_at", "tile", end, "let ") }}
{{ tile.products("score", "operands", "query_at", "q") }}
{% for b in range(tile.tk) %}
        let key{{ b }} = vec4<u32>(tile + column + {{ tile.tx * b }}u);
{% endfor %}
{% for h in range(tile.tq // 4) %}
        var tile_top{{ h }} = vec4<f32>(LOWEST);
{% for b in range(tile.tk) %}
        let seen{{ h }}_{{ b }} = (key{{ b }} >= start{{ h }}) & (key{{ b }} <= last{{ h }});
        let scaled{{ h }}_{{ b }} = params.scale * {{ tile.four("score", h, b) }};
        tile_top{{ h }} = select(tile_top{{ h }}, max(tile_top{{ h }}, scaled{{ h }}_{{ b }}), seen{{ h }}_{{ b }});
{% endfor %}
        part[(own / 4u + {{ h }}u) * {{ tile.tx }}u + column] = tile_top{{ h }};
{% endfor %}
        workgroupBarrier();
{{ tile.keep("operands", "raw_value", "value_at", "tile", end) }}
{% for h in range(tile.tq // 4) %}
        let new_top{{ h }} = max(top{{ h }}, joined_max(own / 4u + {{ h }}u));
        let shrink{{ h }} = exp(top{{ h }} - new_top{{ h }});
        top{{ h }} = new_top{{ h }};
        total{{ h }} *= shrink{{ h }};
{% for b in range(tile.tk) %}
        let weight{{ h }}_{{ b }} = select(vec4<f32>(), exp(scaled{{ h }}_{{ b }} - top{{ h }}), seen{{ h }}_{{ b }});
        weights[{{ tile.weight_at(h, b) }}] = weight{{ h }}_{{ b }};
        total{{ h }} += weight{{ h }}_{{ b }};
{% endfor %}
{% for a in range(4) %}
{% for s in range(tile.slots) %}
        sum{{ 4 * h + a }}_{{ s }} *= shrink{{ h }}.{{ "xyzw"[a] }};
{% endfor %}
{% endfor %}
{% endfor %}
        workgroupBarrier();
{{ tile.fetch("raw_key", "key_at", "tile + " ~ tile.bk ~ "u", end) }}
{{ tile.add("sum", "operands", "weights") }}
    }
{% endmacro %}

{# Write o, and with lse the log-sum-exp; used{h}: vec4<bool>, which queries have seen a key. The kernel's T bounds rows. #}
{% macro finish(lse) %}
    workgroupBarrier();
{% for h in range(tile.tq // 4) %}
    part[(own / 4u + {{ h }}u) * {{ tile.tx }}u + column] = total{{ h }};
{% endfor %}
    workgroupBarrier();
{% for h in range(tile.tq // 4) %}
    let whole{{ h }} = joined_sum(own / 4u + {{ h }}u);
    let inverse{{ h }} = select(vec4<f32>(), 1.0 / whole{{ h }}, used{{ h }});
{% if lse %}
    let log_sum{{ h }} = select(vec4<f32>(), top{{ h }} + log(whole{{ h }}), used{{ h }});
{% endif %}
{% for a in range(4 * h, 4 * h + 4) %}
{% set c = "xyzw"[a % 4] %}
    if (row{{ a }} < params.T) {
        let at = (row{{ a }} * params.heads + head{{ a }}) * VECTORS + column;
{% for s in range(tile.slots) %}
        {{ tile.if_column(s) }}{ o[at + {{ tile.tx * s }}u] = sum{{ a }}_{{ s }} * inverse{{ h }}.{{ c }}; }
{% endfor %}
{% if lse %}
        if (column == 0u) { lse[row{{ a }} * params.heads + head{{ a }}] = log_sum{{ h }}.{{ c }}; }
{% endif %}
    }
{% endfor %}
{% endfor %}
{% endmacro %}
