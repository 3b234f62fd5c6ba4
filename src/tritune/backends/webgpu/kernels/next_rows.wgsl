// next_rows: row s of the batch takes the token drawn for sequence s, one position further on; spare rows stay.
//
// drawn i32 [S], tokens i32 [T], positions i32 [T], count = min(S, T). Work: one thread a sequence.

{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("count: u32") }}
{{ binding("drawn", "array<i32>") }}
{{ binding("tokens", "array<i32>") }}
{{ binding("positions", "array<i32>") }}

{{ prelude.functions() }}
{{ prelude.main() }}
    let row = workgroup_1d(wg, grid) * {{ workgroup_size }}u + li;
    if row < params.count && positions[row] >= 0 {
        tokens[row] = drawn[row];
        positions[row]++;
    }
}
