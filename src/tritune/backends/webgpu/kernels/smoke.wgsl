{# y[r] = offset + sum of x[r, :] of int8 numbers, the largest and its place: tests the prelude and the dispatch convention.

x: i8 [R, D], four a word, D a multiple of 4; y: f32 [R, 3]. A workgroup per row. #}
{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("R: u32", "D: u32", "offset: f32") }}
{{ binding("x", "array<u32>") }}
{{ binding("y", "array<f32>") }}
{{ prelude.functions() }}
{{ prelude.reduce("sum", "f32") }}
{{ prelude.argmax() }}
{{ prelude.main() }}
    let row = workgroup_1d(wg, grid);
    var sum = 0.0;
    var largest = -1e30;
    var place = 0u;
    for (var i = li; row < params.R && i < params.D; i += {{ workgroup_size }}u) {
        let value = f32(load_i8x4(x[(row * params.D + i) / 4u])[i % 4u]);
        sum += value;
        if (value > largest) { largest = value; place = i; }
    }
    let total = workgroup_sum_f32(sum);
    let best = workgroup_argmax(largest, place);
    if (row < params.R && li == 0u) {
        y[row * 3u] = params.offset + total;
        y[row * 3u + 1u] = best.value;
        y[row * 3u + 2u] = f32(best.index);
    }
}
