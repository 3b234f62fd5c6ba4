// add_loss: totals.step_loss += Σ coefficients * nll, totals.step_tokens += Σ coefficients.
//
// nll, coefficients f32 [R]; totals f32 [4], LOSS_TOTALS. Work: one workgroup.

{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("R: u32") }}
{{ binding("nll", "array<f32>") }}
{{ binding("coefficients", "array<f32>") }}
{{ binding("totals", "array<f32>") }}

{{ prelude.reduce("sum", "f32") }}
{{ prelude.main() }}
    var loss = 0.0;
    var count = 0.0;
    for (var i = li; i < params.R; i += {{ workgroup_size }}u) {
        loss += coefficients[i] * nll[i];
        count += coefficients[i];
    }
    let step_loss = workgroup_sum_f32(loss);
    let step_tokens = workgroup_sum_f32(count);
    if li == 0u {
        totals[0] += step_loss;
        totals[1] += step_tokens;
    }
}
