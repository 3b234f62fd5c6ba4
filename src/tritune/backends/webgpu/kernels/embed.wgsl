// embed: x[t] = table[tokens[t]], of the rows that this shard of the table holds.
//
// tokens i32 [T]; shard [rows, D] in the file's own format, as words of one f32 or two 16-bit elements; x f32 [T, D].
// Variant `format`: "f32", "f16" or "bf16" (the upper half of an f32, so a shift expands it).
// Work: one workgroup a row. A row whose id lies in another shard is left alone; ids outside of the whole table give
// zeros, written with the first shard (first_row = 0).

{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("T: u32", "words: u32", "first_row: u32", "rows: u32", "table_rows: u32") }}
{{ binding("tokens", "array<i32>") }}
{{ binding("shard", "array<u32>") }}
{{ binding("x", "array<f32>" if format == "f32" else "array<vec2<f32>>") }}

{{ prelude.functions() }}
{{ prelude.main() }}
    let row = workgroup_1d(wg, grid);
    if row >= params.T {
        return;
    }
    let token = u32(tokens[row]);
    let unknown = token >= params.table_rows;
    if token - params.first_row >= params.rows && !(unknown && params.first_row == 0u) {
        return;
    }
    for (var i = li; i < params.words; i += {{ workgroup_size }}u) {
        var word = 0u;
        if !unknown {
            word = shard[(token - params.first_row) * params.words + i];
        }
{% if format == "f32" %}
        x[row * params.words + i] = bitcast<f32>(word);
{% elif format == "f16" %}
        x[row * params.words + i] = load_f16x2(word);
{% else %}
        x[row * params.words + i] = load_bf16x2(word);
{% endif %}
    }
}
