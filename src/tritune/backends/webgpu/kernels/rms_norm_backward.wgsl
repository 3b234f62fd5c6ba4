// rms_norm_backward: the gradient through y = x * r * gain, r = 1 / sqrt(mean(x²) + eps).
//
//   dx = r * d - x * r³ * mean(d * x),  d = dy * gain
//
// x, dy, dx f32 [T, D], gain f32 [D], D a multiple of 4. dx is = or, variant `accumulate`, +=; variant `in_place`: dx is
// dy (each thread reads an element before it writes it). Work: one workgroup a row, one pass for both sums, one to write.

{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("T: u32", "columns: u32", "eps: f32") }}
{{ binding("x", "array<vec4<f32>>") }}
{{ binding("gain", "array<vec4<f32>>") }}
{{ binding("dy", "array<vec4<f32>>") }}
{% if not in_place %}{{ binding("dx", "array<vec4<f32>>") }}{% endif %}

{{ prelude.functions() }}
{{ prelude.reduce("sum", "f32") }}
{{ prelude.main() }}
    let row = workgroup_1d(wg, grid);
    if row >= params.T {
        return;
    }
    var squares = 0.0;
    var products = 0.0;
    for (var i = li; i < params.columns; i += {{ workgroup_size }}u) {
        let at = row * params.columns + i;
        squares += dot(x[at], x[at]);
        products += dot(dy[at] * gain[i], x[at]);
    }
    let count = f32(params.columns * 4u);
    let r = 1.0 / sqrt(workgroup_sum_f32(squares) / count + params.eps);
    let along = r * r * r * (workgroup_sum_f32(products) / count);
    for (var i = li; i < params.columns; i += {{ workgroup_size }}u) {
        let at = row * params.columns + i;
        let gradient = r * dy[at] * gain[i] - x[at] * along;
        {{ "dy" if in_place else "dx" }}[at] {{ "+=" if accumulate else "=" }} gradient;
    }
}
