// scatter_rows: out[index[r]] = x[r] where index[r] is not -1; the other rows of out were cleared before (zero).
//
// x f32 [R, D], index i32 [R] (each row of out at most once), out f32 [T, D], D a multiple of 4.
// Work: one workgroup a row of x.

{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("R: u32", "T: u32", "columns: u32") }}
{{ binding("x", "array<vec4<f32>>") }}
{{ binding("index", "array<i32>") }}
{{ binding("out", "array<vec4<f32>>") }}

{{ prelude.functions() }}
{{ prelude.main() }}
    let row = workgroup_1d(wg, grid);
    if row >= params.R {
        return;
    }
    let goal = u32(index[row]);
    if goal >= params.T {
        return;
    }
    for (var i = li; i < params.columns; i += {{ workgroup_size }}u) {
        out[goal * params.columns + i] = x[row * params.columns + i];
    }
}
