// adamw: one step of Adam with decoupled weight decay, in torch's order of operations; then grads = 0.
//
// parameters, grads, m, v f32 [n]; settings f32 [8] OPTIMIZER_SETTINGS; state f32 [8] OPTIMIZER_STATE of global_norm. A
// skipped step (state.finite = 0) only clears grads: a NaN is never multiplied by the factor 0.
// Work: one thread an element, striding over the grid.

{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("n: u32") }}
{{ binding("parameters", "array<f32>") }}
{{ binding("grads", "array<f32>") }}
{{ binding("m", "array<f32>") }}
{{ binding("v", "array<f32>") }}
{{ binding("settings", "array<f32>") }}
{{ binding("state", "array<f32>") }}

{{ prelude.main() }}
    let lr = settings[0];
    let applied = state[2] != 0.0;
    for (var i = wg.x * {{ workgroup_size }}u + li; i < params.n; i += grid.x * {{ workgroup_size }}u) {
        if applied {
            let g = grads[i] * state[1];
            let first = m[i] * settings[1] + settings[6] * g;
            let second = v[i] * settings[2] + settings[7] * g * g;
            m[i] = first;
            v[i] = second;
            let decayed = parameters[i] * (1.0 - lr * settings[4]);
            parameters[i] = decayed - lr * (first / state[3]) / (sqrt(second / state[4]) + settings[3]);
        }
        grads[i] = 0.0;
    }
}
