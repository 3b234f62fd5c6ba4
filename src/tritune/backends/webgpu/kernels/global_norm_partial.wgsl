// global_norm, first pass: partial[w] = Σ g² of the elements that workgroup w strides over.
//
// grads f32 [n]; partial f32 [number of workgroups], =. Two passes and no atomics: the same sum every time.

{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("n: u32") }}
{{ binding("grads", "array<f32>") }}
{{ binding("partial", "array<f32>") }}

{{ prelude.reduce("sum", "f32") }}
{{ prelude.main() }}
    var squares = 0.0;
    for (var i = wg.x * {{ workgroup_size }}u + li; i < params.n; i += grid.x * {{ workgroup_size }}u) {
        squares += grads[i] * grads[i];
    }
    let total = workgroup_sum_f32(squares);
    if li == 0u {
        partial[wg.x] = total;
    }
}
