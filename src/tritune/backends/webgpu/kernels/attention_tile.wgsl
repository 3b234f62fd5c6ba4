{#
Attention of a tile of queries, softmax online: macros that causal_attention.wgsl and paged_attention.wgsl share. A query is
a row and a head; `pack` query heads of a key/value head are in one tile, so that they share its keys and values.

Variants: `head_dim` d, a multiple of 4; `shape` = (queries of a thread, columns of threads, keys of a thread): 8 groups of
`columns` threads; `pack`. A thread computes the scores of its queries and of every columns-th key of a tile, then adds to
its queries and every columns-th vec4 of o. Keys, and after them values, lie in workgroup memory; accumulators are named
variables (see gemm.wgsl). The kernel declares LOWEST and defines

    fn query(row: u32, head: u32) -> u32                first vec4 of a query's vector; row clamped by the kernel
    fn query_at(at: u32) -> vec4<f32>
    fn key_at(key: u32, i: u32) -> vec4<f32>            vec4 i of a key (value_at likewise), called for keys before the end
#}
{% set tq, tx, tk = shape %}
{% set bq = 8 * tq %}
{% set bk = tx * tk %}
{% set vectors = head_dim // 4 %}
{% set slots = (vectors + tx - 1) // tx %}
{% set threads = 8 * tx %}
{% set tile_rows = bq // pack %}

{% macro declare() %}
const VECTORS = {{ vectors }}u;
const LOWEST = -3.4028234e38;
var<workgroup> operands: array<vec4<f32>, {{ [vectors * (bk + 1), bk * vectors] | max }}>;  // keys by vec4, or values by key
var<workgroup> weights: array<vec4<f32>, {{ bk * (bq // 4 + 1) }}>;                          // of four queries, by key
var<workgroup> part: array<vec4<f32>, {{ bq // 4 * tx }}>;                                   // of four queries, by column

// The joined `part`s of four queries: their maxima, their sums.
fn joined_max(four: u32) -> vec4<f32> {
    var top = part[four * {{ tx }}u];
    for (var i = 1u; i < {{ tx }}u; i++) { top = max(top, part[four * {{ tx }}u + i]); }
    return top;
}
fn joined_sum(four: u32) -> vec4<f32> {
    var total = part[four * {{ tx }}u];
    for (var i = 1u; i < {{ tx }}u; i++) { total += part[four * {{ tx }}u + i]; }
    return total;
}
{% endmacro %}

{# Names of a thread's queries: row{a}, head{a}, and accumulators. first_row and first_head are in scope. #}
{% macro begin() %}
    let column = li % {{ tx }}u;
    let own = li / {{ tx }}u * {{ tq }}u;
{% for a in range(tq) %}
    let row{{ a }} = first_row + (own + {{ a }}u) / {{ pack }}u;
    let head{{ a }} = first_head + (own + {{ a }}u) % {{ pack }}u;
    let q{{ a }} = query(row{{ a }}, head{{ a }});
{% for s in range(slots) %}
    var sum{{ a }}_{{ s }} = vec4<f32>();
{% endfor %}
{% endfor %}
{% for h in range(tq // 4) %}
    var top{{ h }} = vec4<f32>(LOWEST);
    var total{{ h }} = vec4<f32>();
{% endfor %}
{% endmacro %}

{# vec4<u32> of fn(row) of queries 4h … 4h + 3. #}
{% macro of_rows(fn, h) %}
vec4<u32>({{ fn }}(row{{ 4 * h }}), {{ fn }}(row{{ 4 * h + 1 }}), {{ fn }}(row{{ 4 * h + 2 }}), {{ fn }}(row{{ 4 * h + 3 }}))
{%- endmacro %}

{# Walk keys begin … end - 1, of which a query sees those from start{h} to last{h}: vec4<u32> of the queries 4h …. #}
{% macro walk(begin, end) %}
    for (var tile = {{ begin }}; tile < {{ end }}; tile += {{ bk }}u) {
        workgroupBarrier();
        for (var v = li; v < {{ bk * vectors }}u; v += {{ threads }}u) {
            var four = vec4<f32>();
            if (tile + v / VECTORS < {{ end }}) { four = key_at(tile + v / VECTORS, v % VECTORS); }
            operands[v % VECTORS * {{ bk + 1 }}u + v / VECTORS] = four;
        }
        workgroupBarrier();
{% for b in range(tk) %}
        let key{{ b }} = tile + column + {{ tx * b }}u;
{% for a in range(tq) %}
        var score{{ a }}_{{ b }} = 0.0;
{% endfor %}
{% endfor %}
        for (var i = 0u; i < VECTORS; i++) {
{% for b in range(tk) %}
            let at{{ b }} = operands[i * {{ bk + 1 }}u + column + {{ tx * b }}u];
{% endfor %}
{% for a in range(tq) %}
            let query{{ a }} = query_at(q{{ a }} + i);
{% for b in range(tk) %}
{% for c in "xyzw" %}
            score{{ a }}_{{ b }} = fma(query{{ a }}.{{ c }}, at{{ b }}.{{ c }}, score{{ a }}_{{ b }});
{% endfor %}
{% endfor %}
{% endfor %}
        }
{% for h in range(tq // 4) %}
        var tile_top{{ h }} = vec4<f32>(LOWEST);
{% for b in range(tk) %}
        let seen{{ h }}_{{ b }} = (vec4<u32>(key{{ b }}) >= start{{ h }}) & (vec4<u32>(key{{ b }}) <= last{{ h }});
        let scaled{{ h }}_{{ b }} = params.scale * vec4<f32>(score{{ 4 * h }}_{{ b }}, score{{ 4 * h + 1 }}_{{ b }}, score{{ 4 * h + 2 }}_{{ b }}, score{{ 4 * h + 3 }}_{{ b }});
        tile_top{{ h }} = select(tile_top{{ h }}, max(tile_top{{ h }}, scaled{{ h }}_{{ b }}), seen{{ h }}_{{ b }});
{% endfor %}
        part[(own / 4u + {{ h }}u) * {{ tx }}u + column] = tile_top{{ h }};
{% endfor %}
        workgroupBarrier();
        for (var v = li; v < {{ bk * vectors }}u; v += {{ threads }}u) {
            var four = vec4<f32>();
            if (tile + v / VECTORS < {{ end }}) { four = value_at(tile + v / VECTORS, v % VECTORS); }
            operands[v] = four;
        }
{% for h in range(tq // 4) %}
        let new_top{{ h }} = max(top{{ h }}, joined_max(own / 4u + {{ h }}u));
        let shrink{{ h }} = exp(top{{ h }} - new_top{{ h }});
        top{{ h }} = new_top{{ h }};
        total{{ h }} *= shrink{{ h }};
{% for b in range(tk) %}
        let weight{{ h }}_{{ b }} = select(vec4<f32>(), exp(scaled{{ h }}_{{ b }} - top{{ h }}), seen{{ h }}_{{ b }});
        weights[(column + {{ tx * b }}u) * {{ bq // 4 + 1 }}u + own / 4u + {{ h }}u] = weight{{ h }}_{{ b }};
        total{{ h }} += weight{{ h }}_{{ b }};
{% endfor %}
{% for a in range(4) %}
{% for s in range(slots) %}
        sum{{ 4 * h + a }}_{{ s }} *= shrink{{ h }}.{{ "xyzw"[a] }};
{% endfor %}
{% endfor %}
{% endfor %}
        workgroupBarrier();
        for (var key = 0u; key < {{ bk }}u; key++) {
{% for h in range(tq // 4) %}
            let weight{{ h }} = weights[key * {{ bq // 4 + 1 }}u + own / 4u + {{ h }}u];
{% endfor %}
{% for s in range(slots) %}
            {% if vectors % tx and loop.last %}if (column < {{ vectors % tx }}u) {% endif %}{
                let value = operands[key * VECTORS + column + {{ tx * s }}u];
{% for a in range(tq) %}
                sum{{ a }}_{{ s }} = fma(vec4<f32>(weight{{ a // 4 }}.{{ "xyzw"[a % 4] }}), value, sum{{ a }}_{{ s }});
{% endfor %}
            }
{% endfor %}
        }
    }
{% endmacro %}

{# Write o, and with lse the log-sum-exp; used{h}: vec4<bool>, which queries have seen a key. The kernel's T bounds rows. #}
{% macro finish(lse) %}
    workgroupBarrier();
{% for h in range(tq // 4) %}
    part[(own / 4u + {{ h }}u) * {{ tx }}u + column] = total{{ h }};
{% endfor %}
    workgroupBarrier();
{% for h in range(tq // 4) %}
    let whole{{ h }} = joined_sum(own / 4u + {{ h }}u);
    let inverse{{ h }} = select(vec4<f32>(), 1.0 / whole{{ h }}, used{{ h }});
{% for a in range(4 * h, 4 * h + 4) %}
    if (row{{ a }} < params.T) {
        let at = (row{{ a }} * params.heads + head{{ a }}) * VECTORS + column;
{% for s in range(slots) %}
        {% if vectors % tx and loop.last %}if (column < {{ vectors % tx }}u) {% endif %}{ o[at + {{ tx * s }}u] = sum{{ a }}_{{ s }} * inverse{{ h }}.{{ "xyzw"[a % 4] }}; }
{% endfor %}
{% if lse %}
        if (column == 0u) {
            lse[row{{ a }} * params.heads + head{{ a }}] = select(0.0, top{{ h }}.{{ "xyzw"[a % 4] }} + log(whole{{ h }}.{{ "xyzw"[a % 4] }}), used{{ h }}.{{ "xyzw"[a % 4] }});
        }
{% endif %}
    }
{% endfor %}
{% endfor %}
{% endmacro %}
