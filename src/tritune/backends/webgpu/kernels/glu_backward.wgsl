// glu_backward: the gradient through the sub-norm (variant `norm`) and z = act(gate) * up.
//
//   dz = dy, or as in rms_norm_backward with x = z;  dup = dz * act(gate);  dgate = dz * up * act'(gate)
//
// gate_up, dgate_up f32 [T, 2 F] (gate first), gain f32 [F], dy f32 [T, F], F a multiple of 4. dgate_up is =; variant
// `in_place`: it is gate_up (each thread reads its gate and up before it writes them). z is computed again, not stored.
// Work: one workgroup a row.

{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("T: u32", "columns: u32", "eps: f32") }}
{{ binding("gate_up", "array<vec4<f32>>") }}
{% if norm %}{{ binding("gain", "array<vec4<f32>>") }}{% endif %}
{{ binding("dy", "array<vec4<f32>>") }}
{% if not in_place %}{{ binding("dgate_up", "array<vec4<f32>>") }}{% endif %}

{% include "glu.wgsl" %}

{{ prelude.functions() }}
{{ prelude.reduce("sum", "f32") }}
{{ prelude.main() }}
    let row = workgroup_1d(wg, grid);
    if row >= params.T {
        return;
    }
    let first = row * 2u * params.columns;
{% if norm %}
    var squares = 0.0;
    var products = 0.0;
    for (var i = li; i < params.columns; i += {{ workgroup_size }}u) {
        let z = activate(gate_up[first + i]) * gate_up[first + params.columns + i];
        squares += dot(z, z);
        products += dot(dy[row * params.columns + i] * gain[i], z);
    }
    let count = f32(params.columns * 4u);
    let r = 1.0 / sqrt(workgroup_sum_f32(squares) / count + params.eps);
    let along = r * r * r * (workgroup_sum_f32(products) / count);
{% endif %}
    for (var i = li; i < params.columns; i += {{ workgroup_size }}u) {
        let gate = gate_up[first + i];
        let up = gate_up[first + params.columns + i];
        let act = activate(gate);
        var dz = dy[row * params.columns + i];
{% if norm %}
        dz = r * dz * gain[i] - act * up * along;
{% endif %}
        {{ "gate_up" if in_place else "dgate_up" }}[first + i] = dz * up * activate_slope(gate);
        {{ "gate_up" if in_place else "dgate_up" }}[first + params.columns + i] = dz * act;
    }
}
