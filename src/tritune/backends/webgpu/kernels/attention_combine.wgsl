// o f32 [T, H * d] = the splits of paged_attention_rows joined. Grid: (ceil(T * H * d / 4 / workgroup_size), 1, 1).

{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("T: u32", "columns: u32") }}
{{ binding("partial", "array<vec4<f32>>") }}
{{ binding("o", "array<vec4<f32>>") }}
{% include "combine.wgsl" %}

{{ prelude.functions() }}
{{ prelude.main() }}
    let i = workgroup_1d(wg, grid) * {{ workgroup_size }}u + li;
    if i < params.T * params.columns {
        o[i] = attention_value(i / params.columns, i % params.columns);
    }
}
