// paged_attention: row t attends to positions 0 … positions[t] of its sequence in the cache, softmax computed online.
//
// q, o f32 [T, H * d]; k_cache, v_cache [blocks, G, block_size, d], variant `half_cache`: f16, two to a word, else f32;
// positions, sequence i32 [T]; block_tables i32 [S, max_blocks]. o is =, 0 in spare rows (position -1). d even, at most 256.
// Work: one workgroup for each row and query head; a tile of THREADS keys at a time, one thread a key for the scores, then
// one thread a pair of o's elements (and a share of the keys, where a head has fewer pairs than there are threads). The
// number of tiles follows the row's own context.

{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("heads: u32", "kv_heads: u32", "pairs: u32", "block_size: u32", "max_blocks: u32", "scale: f32") }}
{{ binding("q", "array<vec2<f32>>") }}
{{ binding("k_cache", "array<u32>" if half_cache else "array<vec2<f32>>") }}
{{ binding("v_cache", "array<u32>" if half_cache else "array<vec2<f32>>") }}
{{ binding("positions", "array<i32>") }}
{{ binding("sequence", "array<i32>") }}
{{ binding("block_tables", "array<i32>") }}
{{ binding("o", "array<vec2<f32>>") }}

const THREADS = 128u;
const MAX_PAIRS = 128u;
const LOWEST = -3.4028234e38;

var<workgroup> row_context: u32;
var<workgroup> query: array<vec2<f32>, MAX_PAIRS>;
var<workgroup> weights: array<f32, THREADS>;
var<workgroup> key_start: array<u32, THREADS>;
var<workgroup> shares: array<vec2<f32>, THREADS>;

{{ prelude.functions() }}
fn k_pair(at: u32) -> vec2<f32> {
    return {{ "load_f16x2(k_cache[at])" if half_cache else "k_cache[at]" }};
}

fn v_pair(at: u32) -> vec2<f32> {
    return {{ "load_f16x2(v_cache[at])" if half_cache else "v_cache[at]" }};
}

// Where the key (and the value) of a position begins in the caches, in pairs.
fn cache_start(row_sequence: u32, position: u32, kv_head: u32) -> u32 {
    let block = u32(block_tables[row_sequence * params.max_blocks + position / params.block_size]);
    return ((block * params.kv_heads + kv_head) * params.block_size + position % params.block_size) * params.pairs;
}

{{ prelude.reduce("max", "f32", 128) }}
{{ prelude.reduce("sum", "f32", 128) }}
{{ prelude.main(128) }}
    let row = wg.x;
    let head = workgroup_y(wg, grid);
    if head >= params.heads {
        return;
    }
    let kv_head = head / (params.heads / params.kv_heads);
    let first = (row * params.heads + head) * params.pairs;
    if li == 0u {
        row_context = u32(max(positions[row] + 1, 0));
    }
    for (var i = li; i < params.pairs; i += THREADS) {
        query[i] = q[first + i] * params.scale;
    }
    let context = workgroupUniformLoad(&row_context);
    let row_sequence = u32(sequence[row]);
    let pair = li % params.pairs;
    let share = li / params.pairs;
    let num_shares = THREADS / params.pairs;
    var top = LOWEST;
    var thread_total = 0.0;
    var sum = vec2<f32>();
    for (var tile = 0u; tile < context; tile += THREADS) {
        let position = tile + li;
        var score = LOWEST;
        if position < context {
            let at = cache_start(row_sequence, position, kv_head);
            key_start[li] = at;
            score = 0.0;
            for (var i = 0u; i < params.pairs; i++) {
                score += dot(query[i], k_pair(at + i));
            }
        }
        let new_top = max(top, workgroup_max_f32(score));
        let shrink = exp(top - new_top);
        let weight = select(0.0, exp(score - new_top), position < context);
        weights[li] = weight;
        top = new_top;
        thread_total = thread_total * shrink + weight;
        workgroupBarrier();
        sum *= shrink;
        let tile_keys = min(THREADS, context - tile);
        if share < num_shares {
            for (var key = share; key < tile_keys; key += num_shares) {
                sum += weights[key] * v_pair(key_start[key] + pair);
            }
        }
        workgroupBarrier();
    }
    let total = workgroup_sum_f32(thread_total);
    shares[li] = sum;
    workgroupBarrier();
    if li < params.pairs {
        var whole = vec2<f32>();
        for (var i = 0u; i < num_shares; i++) {
            whole += shares[i * params.pairs + li];
        }
        o[first + li] = select(vec2<f32>(), whole / total, context > 0u);
    }
}
