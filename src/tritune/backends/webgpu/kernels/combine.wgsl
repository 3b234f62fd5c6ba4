// The splits of paged_attention_rows joined: attention_value(row, i) is the i-th vec4 of o. The including file declares
// `partial` (out of that kernel) and params with T and columns = H * d / 4. Variants: splits, quads = d / 4.

fn attention_value(row: u32, i: u32) -> vec4<f32> {
    let head = (row * params.columns + i) / {{ quads }}u;
    let stats = params.T * params.columns * {{ splits }}u + head * {{ splits }}u;
{% for s in range(splits) %}
    let stat{{ s }} = partial[stats + {{ s }}u];
    let sum{{ s }} = partial[(head * {{ splits }}u + {{ s }}u) * {{ quads }}u + i % {{ quads }}u];
{% endfor %}
    var top = stat0.x;
{% for s in range(1, splits) %}
    top = max(top, stat{{ s }}.x);
{% endfor %}
    var total = 0.0;
    var whole = vec4<f32>();
{% for s in range(splits) %}
    {
        let weight = exp2(stat{{ s }}.x - top);
        total += weight * stat{{ s }}.y;
        whole += weight * sum{{ s }};
    }
{% endfor %}
    return select(vec4<f32>(), whole / total, total > 0.0);
}
