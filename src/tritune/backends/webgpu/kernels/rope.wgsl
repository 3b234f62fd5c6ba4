// rope: rotate the q and k heads of each row by its position, in place; sign -1 turns gradients back (rope_backward).
//
//   pair (i, i + d/2):  low' = low cos - high sin,  high' = high cos + low sin
//
// qkv f32 [T, (H + 2 G) * d] (stride = its columns, heads = H + G of them are rotated); table f32 [positions, d]: cos | sin;
// positions i32 [T], -1 = spare row, left as it is. Work: one workgroup a row, one thread a pair.

{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("T: u32", "heads: u32", "half: u32", "stride: u32", "sign: f32") }}
{{ binding("qkv", "array<f32>") }}
{{ binding("table", "array<f32>") }}
{{ binding("positions", "array<i32>") }}

{{ prelude.functions() }}
{{ prelude.main() }}
    let row = workgroup_1d(wg, grid);
    if row >= params.T || positions[row] < 0 {
        return;
    }
    let angles = u32(positions[row]) * 2u * params.half;
    for (var pair = li; pair < params.heads * params.half; pair += {{ workgroup_size }}u) {
        let i = pair % params.half;
        let at = row * params.stride + (pair / params.half) * 2u * params.half + i;
        let cosine = table[angles + i];
        let sine = params.sign * table[angles + params.half + i];
        let low = qkv[at];
        let high = qkv[at + params.half];
        qkv[at] = low * cosine - high * sine;
        qkv[at + params.half] = high * cosine + low * sine;
    }
}
