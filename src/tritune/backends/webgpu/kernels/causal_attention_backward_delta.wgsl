// causal_attention_backward, first of three: delta[t, h] = Σ do[t, h] * o[t, h].
//
// o, do f32 [T, H * d] as vec4; delta f32 [T, H], =. Work: one thread for each row and head.

{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("count: u32", "vectors: u32") }}
{{ binding("o", "array<vec4<f32>>") }}
{{ binding("do_", "array<vec4<f32>>") }}
{{ binding("delta", "array<f32>") }}

{{ prelude.functions() }}
{{ prelude.main() }}
    let i = workgroup_1d(wg, grid) * {{ workgroup_size }}u + li;
    if i >= params.count {
        return;
    }
    var sum = 0.0;
    for (var at = i * params.vectors; at < (i + 1u) * params.vectors; at++) {
        sum += dot(o[at], do_[at]);
    }
    delta[i] = sum;
}
