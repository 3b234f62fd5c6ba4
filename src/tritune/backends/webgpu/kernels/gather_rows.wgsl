// gather_rows: out[r] = x[index[r]], zeros where index[r] is -1.
//
// x f32 [T, D], index i32 [R], out f32 [R, D], D a multiple of 4. Work: one workgroup a row of out.

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
    let source = u32(index[row]);
    for (var i = li; i < params.columns; i += {{ workgroup_size }}u) {
        var value = vec4<f32>();
        if source < params.T {
            value = x[source * params.columns + i];
        }
        out[row * params.columns + i] = value;
    }
}
