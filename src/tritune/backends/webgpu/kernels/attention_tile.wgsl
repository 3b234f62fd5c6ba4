{#
What the attention kernels of many rows share: macros for a tile of queries (or, for dk and dv, of keys), a workgroup's own,
that walks vectors of the other side through workgroup memory. A query is a row and a head; `pack` query heads of a
key/value head are in one tile, so that they share its keys and values.

Variants: `head_dim` d, a multiple of 4; `shape` = (own vectors of a thread, columns of threads, walked vectors of a thread,
pipelined), see attention_tiles.py: 8 groups of `columns` threads. A thread multiplies its own vectors with every columns-th of those walked; then it adds to
its own vectors, of which it has every columns-th vec4. Accumulators are named variables (see gemm.wgsl).
#}
{% set tq, tx, tk, pipelined = shape %}
{% set bq = 8 * tq %}
{% set bk = tx * tk %}
{% set vectors = head_dim // 4 %}
{% set slots = (vectors + tx - 1) // tx %}
{% set threads = 8 * tx %}
{% set tile_rows = bq // pack %}
{% set apart = vectors + 1 %}
{# Loops over vec4 and over walked vectors are unrolled by this much, so that loads are on their way together. #}
{% set unroll = 4 if pipelined and vectors % 4 == 0 else 1 %}
{# Loads of a thread for a tile of walked vectors, if these are on their way in registers while others are worked on. #}
{% set ahead = bk * vectors // threads if pipelined and bk * vectors % threads == 0 else 0 %}

{# Workgroup memory: vectors that are walked, one vec4 further apart so that neighbours hit different banks; numbers of four
   own vectors for each walked one. #}
{% macro operands(name) %}
var<workgroup> {{ name }}: array<vec4<f32>, {{ bk * apart }}>;
{% endmacro %}
{% macro weights(name) %}
var<workgroup> {{ name }}: array<vec4<f32>, {{ bk * (bq // 4 + 1) }}>;
{% endmacro %}

{# Walked vectors on their way: fetch loads them, keep puts them into workgroup memory. fn(index, i) -> Raw loads vec4 i of
   walked vector `index`, of which those at and beyond `end` count for nothing: the last one is read instead. expand(Raw)
   makes numbers of it. declare: "var " at the first fetch of `raw`, else "". Where nothing is ahead, keep does all. #}
{% macro fetch(raw, fn, first, end, declare="") %}
{% for t in range(ahead) %}
        {{ declare }}{{ raw }}{{ t }} = {{ fn }}(min({{ first }} + (li + {{ t * threads }}u) / VECTORS, max({{ end }}, 1u) - 1u), (li + {{ t * threads }}u) % VECTORS);
{% endfor %}
{% endmacro %}
{% macro keep(name, raw, fn, first, end) %}
{% for t in range(ahead) %}
        {{ name }}[(li + {{ t * threads }}u) / VECTORS * {{ apart }}u + (li + {{ t * threads }}u) % VECTORS] = expand({{ raw }}{{ t }});
{% endfor %}
{% if not ahead %}
        for (var v = li; v < {{ bk * vectors }}u; v += {{ threads }}u) {
            {{ name }}[v / VECTORS * {{ apart }}u + v % VECTORS] = expand({{ fn }}(min({{ first }} + v / VECTORS, {{ end }} - 1u), v % VECTORS));
        }
{% endif %}
{% endmacro %}

{# result{a}_{b}: own vector a, read by fn(base{a} + i), times walked vector b of `name`. #}
{% macro products(result, name, fn, base) %}
{% for a in range(tq) %}
{% for b in range(tk) %}
        var {{ result }}{{ a }}_{{ b }} = 0.0;
{% endfor %}
{% endfor %}
        for (var i = 0u; i < VECTORS; i += {{ unroll }}u) {
{% for u in range(unroll) %}
{% for b in range(tk) %}
            let walked{{ u }}_{{ b }} = {{ name }}[(column + {{ tx * b }}u) * {{ apart }}u + i + {{ u }}u];
{% endfor %}
{% for a in range(tq) %}
            let mine{{ u }}_{{ a }} = {{ fn }}({{ base }}{{ a }} + i + {{ u }}u);
{% endfor %}
{% endfor %}
{% for u in range(unroll) %}
{% for a in range(tq) %}
{% for b in range(tk) %}
{% for c in "xyzw" %}
            {{ result }}{{ a }}_{{ b }} = fma(mine{{ u }}_{{ a }}.{{ c }}, walked{{ u }}_{{ b }}.{{ c }}, {{ result }}{{ a }}_{{ b }});
{% endfor %}
{% endfor %}
{% endfor %}
{% endfor %}
        }
{% endmacro %}

{# The numbers name{4h}_{b} … as a vec4. #}
{% macro four(name, h, b) %}
vec4<f32>({{ name }}{{ 4 * h }}_{{ b }}, {{ name }}{{ 4 * h + 1 }}_{{ b }}, {{ name }}{{ 4 * h + 2 }}_{{ b }}, {{ name }}{{ 4 * h + 3 }}_{{ b }})
{%- endmacro %}

{# The place of own vectors 4h … for walked vector b in an array of `weights`. #}
{% macro weight_at(h, b) %}
(column + {{ tx * b }}u) * {{ bq // 4 + 1 }}u + own / 4u + {{ h }}u
{%- endmacro %}

{# sum{a}_{s} += Σ over the walked vectors of weight * vec4 s of the vector. #}
{% macro add(sum, name, weights) %}
        for (var each = 0u; each < {{ bk }}u; each += {{ unroll }}u) {
{% for u in range(unroll) %}
{% for h in range(tq // 4) %}
            let factor{{ u }}_{{ h }} = {{ weights }}[(each + {{ u }}u) * {{ bq // 4 + 1 }}u + own / 4u + {{ h }}u];
{% endfor %}
{% for s in range(slots) %}
            {{ if_column(s) }}{
                let value = {{ name }}[(each + {{ u }}u) * {{ apart }}u + column + {{ tx * s }}u];
{% for a in range(tq) %}
                {{ sum }}{{ a }}_{{ s }} = fma(vec4<f32>(factor{{ u }}_{{ a // 4 }}.{{ "xyzw"[a % 4] }}), value, {{ sum }}{{ a }}_{{ s }});
{% endfor %}
            }
{% endfor %}
{% endfor %}
        }
{% endmacro %}

{# A condition where vec4 s of some columns lies beyond the vector. #}
{% macro if_column(s) %}{% if (s + 1) * tx > vectors %}if (column < {{ vectors - s * tx }}u) {% endif %}{% endmacro %}

{% macro zero(sum) %}
{% for a in range(tq) %}
{% for s in range(slots) %}
    var {{ sum }}{{ a }}_{{ s }} = vec4<f32>();
{% endfor %}
{% endfor %}
{% endmacro %}

{# column, own, and of each own query its row{a} and head{a}; first_row and first_head are in scope. #}
{% macro queries() %}
    let column = li % {{ tx }}u;
    let own = li / {{ tx }}u * {{ tq }}u;
{% for a in range(tq) %}
    let row{{ a }} = first_row + (own + {{ a }}u) / {{ pack }}u;
    let head{{ a }} = first_head + (own + {{ a }}u) % {{ pack }}u;
{% endfor %}
{% endmacro %}

{# vec4 of fn(row) of the own vectors 4h … #}
{% macro of_rows(fn, h, type="u32") %}
vec4<{{ type }}>({{ fn }}(row{{ 4 * h }}), {{ fn }}(row{{ 4 * h + 1 }}), {{ fn }}(row{{ 4 * h + 2 }}), {{ fn }}(row{{ 4 * h + 3 }}))
{%- endmacro %}
