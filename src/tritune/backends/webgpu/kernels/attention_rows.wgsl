// Where the rows of a packed batch and their heads lie; shared by the causal attention kernels, which declare params (T,
// heads, kv_heads), VECTORS, qkv and positions. A row beyond T is read as the last one and always masked.

// First vec4 of a head of a row of qkv: query heads, then key heads, then value heads.
fn head_start(row: u32, head: u32) -> u32 {
    return (min(row, params.T - 1u) * (params.heads + 2u * params.kv_heads) + head) * VECTORS;
}

// First row of the row's sequence; for a spare row one that no row reaches.
fn start_of(row: u32) -> u32 {
    let position = positions[min(row, params.T - 1u)];
    return select(0xffffffffu, row - u32(position), position >= 0 && row < params.T);
}

// First row that one of the rows first … end - 1 sees; `end` when all of them are spare.
fn first_key_of(first: u32, end: u32) -> u32 {
    var lowest = end;
    for (var row = first; row < end; row++) {
        lowest = min(lowest, start_of(row));
    }
    return lowest;
}
