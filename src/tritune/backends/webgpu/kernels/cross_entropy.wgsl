// cross_entropy: nll[r] = logsumexp(logits[r]) - logits[r, targets[r]]; variant `backward`: logits become their gradient,
// coefficients[r] * (softmax - onehot), in place.
//
// logits f32 [R, V]; targets i32 [R], -1 = spare row (nll 0, gradient 0); coefficients, nll f32 [R].
// Work: one workgroup a row; a pass with a running maximum and sum a thread, and one for the gradient, each with four loads
// on their way at a time: a row has far more elements than a workgroup has threads.

{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("R: u32", "V: u32") }}
{{ binding("logits", "array<f32>") }}
{{ binding("targets", "array<i32>") }}
{{ binding("nll", "array<f32>") }}
{% if backward %}{{ binding("coefficients", "array<f32>") }}{% endif %}

const LOWEST = -3.4028234e38;

var<workgroup> row_target: i32;

{{ prelude.functions() }}
{{ prelude.reduce("max", "f32") }}
{{ prelude.reduce("sum", "f32") }}
{{ prelude.main() }}
    let row = workgroup_1d(wg, grid);
    if row >= params.R {
        return;
    }
    if li == 0u {
        row_target = targets[row];
    }
    let goal = workgroupUniformLoad(&row_target);
    let first = row * params.V;
    if goal < 0 {
{% if backward %}
        for (var i = li; i < params.V; i += {{ workgroup_size }}u) {
            logits[first + i] = 0.0;
        }
{% endif %}
        if li == 0u {
            nll[row] = 0.0;
        }
        return;
    }
    var top = LOWEST;
    var total = 0.0;
    for (var i = li; i < params.V; i += {{ 4 * workgroup_size }}u) {
{% for u in range(4) %}
        var x{{ u }} = LOWEST;
        if i + {{ u * workgroup_size }}u < params.V { x{{ u }} = logits[first + i + {{ u * workgroup_size }}u]; }
{% endfor %}
        let x = vec4<f32>(x0, x1, x2, x3);
        let largest = max(max(x0, x1), max(x2, x3));
        if largest > top {
            total *= exp(top - largest);
            top = largest;
        }
        let shares = exp(x - top);
        total += shares.x + shares.y + shares.z + shares.w;
    }
    let row_top = workgroup_max_f32(top);
    let row_total = workgroup_sum_f32(total * exp(top - row_top));
    // Differences to the maximum stay exact where the sum of a large maximum and a logarithm would be rounded.
    if li == 0u {
        nll[row] = log(row_total) - (logits[first + u32(goal)] - row_top);
    }
{% if backward %}
    workgroupBarrier();  // the first thread has read the target's logit
    let coefficient = coefficients[row];
    let inverse = 1.0 / row_total;
    for (var i = li; i < params.V; i += {{ 4 * workgroup_size }}u) {
{% for u in range(4) %}
        let at{{ u }} = i + {{ u * workgroup_size }}u;
        let x{{ u }} = logits[first + min(at{{ u }}, params.V - 1u)];
{% endfor %}
{% for u in range(4) %}
        if at{{ u }} < params.V {
            let probability = exp(x{{ u }} - row_top) * inverse;
            logits[first + at{{ u }}] = coefficient * select(probability, probability - 1.0, at{{ u }} == u32(goal));
        }
{% endfor %}
    }
{% endif %}
}
