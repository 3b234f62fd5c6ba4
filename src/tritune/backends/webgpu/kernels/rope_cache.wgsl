// rope_cache: q = rotated q; rotated k and v go into the paged cache.
//
// qkv f32 [T, (H + 2 G) * d]; table f32 [positions, d]: cos | sin; positions, sequence i32 [T]; block_tables i32
// [S, max_blocks]; q f32 [T, H * d], =; k_cache, v_cache [blocks, G, block_size, d], variant `half_cache`: f16, two to a
// word, else f32; d a multiple of 4. Spare rows (position -1) write nothing.
// Work: one workgroup a row, one thread two neighbouring elements of a head (a word of an f16 cache): the halves of a
// rotated pair belong to different threads, so each computes its own.

{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("T: u32", "heads: u32", "kv_heads: u32", "half: u32", "block_size: u32", "max_blocks: u32", "blocks: u32") }}
{{ binding("qkv", "array<vec2<f32>>") }}
{{ binding("table", "array<vec2<f32>>") }}
{{ binding("positions", "array<i32>") }}
{{ binding("sequence", "array<i32>") }}
{{ binding("block_tables", "array<i32>") }}
{{ binding("q", "array<vec2<f32>>") }}
{{ binding("k_cache", "array<u32>" if half_cache else "array<vec2<f32>>") }}
{{ binding("v_cache", "array<u32>" if half_cache else "array<vec2<f32>>") }}

// Words w of the head at `first`, rotated by the row of the table at `angles`; a head is `half` words of two elements.
fn rotated(first: u32, w: u32, angles: u32) -> vec2<f32> {
    let quarter = params.half / 2u;
    let i = w % quarter;
    let cosine = table[angles + i];
    let sine = table[angles + quarter + i];
    let x = qkv[first + w];
    if w < quarter {
        return x * cosine - qkv[first + w + quarter] * sine;
    }
    return x * cosine + qkv[first + i] * sine;
}

{{ prelude.functions() }}
{{ prelude.main() }}
    let row = workgroup_1d(wg, grid);
    if row >= params.T || positions[row] < 0 {
        return;
    }
    let position = u32(positions[row]);
    let angles = position * params.half;
    let block = u32(block_tables[u32(sequence[row]) * params.max_blocks + position / params.block_size]);
    let all_heads = params.heads + 2u * params.kv_heads;
    for (var i = li; i < all_heads * params.half; i += {{ workgroup_size }}u) {
        let head = i / params.half;
        let w = i % params.half;
        let first = (row * all_heads + head) * params.half;
        if head < params.heads {
            q[(row * params.heads + head) * params.half + w] = rotated(first, w, angles);
        } else if block < params.blocks {
            let kv_head = (head - params.heads) % params.kv_heads;
            let at = ((block * params.kv_heads + kv_head) * params.block_size + position % params.block_size) * params.half + w;
            if head < params.heads + params.kv_heads {
                k_cache[at] = {{ "pack2x16float(rotated(first, w, angles))" if half_cache else "rotated(first, w, angles)" }};
            } else {
                v_cache[at] = {{ "pack2x16float(qkv[first + w])" if half_cache else "qkv[first + w]" }};
            }
        }
    }
}
