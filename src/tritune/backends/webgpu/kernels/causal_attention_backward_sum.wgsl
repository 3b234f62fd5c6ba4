// causal_attention_backward, after a split third dispatch: the k and v parts of dqkv = Σ over splits of dkv.
//
// dkv f32 [splits, T, 2 G * d], dqkv f32 [T, (H + 2 G) * d]; count = T * 2 G * d / 4, columns = 2 G * d / 4 and
// first = H * d / 4, in vec4. Work: one thread a vec4.

{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("count: u32", "columns: u32", "first: u32") }}
{{ binding("dkv", "array<vec4<f32>>") }}
{{ binding("dqkv", "array<vec4<f32>>") }}

{{ prelude.functions() }}
{{ prelude.main() }}
    let i = workgroup_1d(wg, grid) * {{ workgroup_size }}u + li;
    if i >= params.count {
        return;
    }
    var sum = dkv[i];
    for (var at = i + params.count; at < arrayLength(&dkv); at += params.count) {
        sum += dkv[at];
    }
    let row = i / params.columns;
    dqkv[row * (params.first + params.columns) + params.first + i % params.columns] = sum;
}
