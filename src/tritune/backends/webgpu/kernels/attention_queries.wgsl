{#
What causal_attention and the dq part of its backward share: a workgroup for a tile of rows and `pack` query heads of one
key/value head, whose keys and values lie in qkv. Late rows, which see most, come first.
#}
{% import "attention_tile.wgsl" as tile with context %}
{% macro declare() %}
var<workgroup> first_key: u32;
var<private> kv_head: u32;
{% endmacro %}
{# Keys and values of packed rows; after attention_rows.wgsl. #}
{% macro keys() %}
alias Raw = vec4<f32>;
fn expand(raw: Raw) -> vec4<f32> { return raw; }
fn key_at(key: u32, i: u32) -> Raw { return qkv[head_start(key, params.heads + kv_head) + i]; }
fn value_at(key: u32, i: u32) -> Raw { return qkv[head_start(key, params.heads + params.kv_heads + kv_head) + i]; }
{% endmacro %}
{# The workgroup's heads, its rows first_row … end - 1, and the first key that one of them sees. #}
{% macro begin() %}
    let first_head = workgroup_y(wg, grid) * {{ pack }}u;
    if first_head >= params.heads {
        return;
    }
    kv_head = first_head / (params.heads / params.kv_heads);
    let first_row = (params.last_tile - wg.x) * {{ tile.tile_rows }}u;
    let end = min(first_row + {{ tile.tile_rows }}u, params.T);
    if li == 0u {
        first_key = first_key_of(first_row, end);
    }
    let begin = workgroupUniformLoad(&first_key);
{% endmacro %}
