{#
paged_attention: row t attends to positions 0 … positions[t] of its sequence in the cache, softmax computed online.

q, o f32 [T, H * d]; k_cache, v_cache [blocks, G, block_size, d], variant `half_cache`: f16, two to a word, else f32;
positions, sequence i32 [T]; block_tables i32 [S, max_blocks]. o is =, 0 in spare rows (position -1). d a multiple of 4.
Work: a workgroup for a tile of rows and `pack` query heads of one key/value head (attention_forward.wgsl), which walks the
context of each sequence that has rows in the tile, as far as they see. Late rows come first.
#}
{% import "prelude.wgsl" as prelude with context %}
{% import "attention_tile.wgsl" as tile with context %}
{% import "attention_forward.wgsl" as attention with context %}
{{ prelude.params("T: u32", "heads: u32", "kv_heads: u32", "last_tile: u32", "block_size: u32", "max_blocks: u32", "scale: f32") }}
{{ binding("q", "array<vec4<f32>>") }}
{{ binding("k_cache", "array<vec2<u32>>" if half_cache else "array<vec4<f32>>") }}
{{ binding("v_cache", "array<vec2<u32>>" if half_cache else "array<vec4<f32>>") }}
{{ binding("positions", "array<i32>") }}
{{ binding("sequence", "array<u32>") }}
{{ binding("block_tables", "array<u32>") }}
{{ binding("o", "array<vec4<f32>>") }}

{{ attention.declare() }}
const NONE = 0xffffffffu;
var<workgroup> smallest_sequence: atomic<u32>;
var<workgroup> largest_end: atomic<u32>;
var<workgroup> chosen: vec2<u32>;
var<private> kv_head: u32;
var<private> current: u32;

{{ prelude.functions() }}
fn query(row: u32, head: u32) -> u32 { return (min(row, params.T - 1u) * params.heads + head) * VECTORS; }
fn query_at(at: u32) -> vec4<f32> { return q[at]; }
fn cache_start(key: u32) -> u32 {
    let block = block_tables[current * params.max_blocks + key / params.block_size];
    return ((block * params.kv_heads + kv_head) * params.block_size + key % params.block_size) * VECTORS;
}
alias Raw = {{ "vec2<u32>" if half_cache else "vec4<f32>" }};
fn expand(raw: Raw) -> vec4<f32> {
    return {{ "vec4<f32>(load_f16x2(raw.x), load_f16x2(raw.y))" if half_cache else "raw" }};
}
fn key_at(key: u32, i: u32) -> Raw { return k_cache[cache_start(key) + i]; }
fn value_at(key: u32, i: u32) -> Raw { return v_cache[cache_start(key) + i]; }
// The sequence of a row, NONE for a spare one.
fn sequence_of(row: u32) -> u32 {
    if (row >= params.T || positions[row] < 0) { return NONE; }
    return sequence[row];
}
fn position_of(row: u32) -> u32 { return u32(max(positions[min(row, params.T - 1u)], 0)); }

{{ prelude.main(tile.threads) }}
    let first_head = workgroup_y(wg, grid) * {{ pack }}u;
    if first_head >= params.heads {
        return;
    }
    kv_head = first_head / (params.heads / params.kv_heads);
    let first_row = (params.last_tile - wg.x) * {{ tile.tile_rows }}u;
{{ attention.begin() }}
{% for h in range(tile.tq // 4) %}
    let sequence{{ h }} = {{ tile.of_rows("sequence_of", h) }};
    let last{{ h }} = {{ tile.of_rows("position_of", h) }};
    let used{{ h }} = sequence{{ h }} != vec4<u32>(NONE);
{% endfor %}
    var next = 0u;
    loop {
        if li == 0u {
            atomicStore(&smallest_sequence, NONE);
            atomicStore(&largest_end, 0u);
        }
        workgroupBarrier();
        for (var row = first_row + li; row < first_row + {{ tile.tile_rows }}u; row += {{ tile.threads }}u) {
            let own_sequence = sequence_of(row);
            if own_sequence >= next { atomicMin(&smallest_sequence, own_sequence); }
        }
        workgroupBarrier();
        current = atomicLoad(&smallest_sequence);
        for (var row = first_row + li; row < first_row + {{ tile.tile_rows }}u; row += {{ tile.threads }}u) {
            if sequence_of(row) == current { atomicMax(&largest_end, position_of(row) + 1u); }
        }
        workgroupBarrier();
        if li == 0u { chosen = vec2<u32>(current, atomicLoad(&largest_end)); }
        let found = workgroupUniformLoad(&chosen);
        if found.x == NONE { break; }
        current = found.x;
{% for h in range(tile.tq // 4) %}
        let start{{ h }} = select(vec4<u32>(NONE), vec4<u32>(), sequence{{ h }} == vec4<u32>(current));
{% endfor %}
{{ attention.walk("0u", "found.y") }}
        next = current + 1u;
    }
{{ attention.finish(False) }}
}
