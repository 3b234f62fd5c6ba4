// global_norm, second pass: the norm of the step's mean gradient, clip factor, finite check, bias corrections, counters.
//
// partial f32 [count] of global_norm_partial; totals f32 [4] LOSS_TOTALS; settings f32 [8] OPTIMIZER_SETTINGS; state f32
// [8] OPTIMIZER_STATE. Work: one workgroup; its first thread writes the few numbers.

{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("count: u32") }}
{{ binding("partial", "array<f32>") }}
{{ binding("totals", "array<f32>") }}
{{ binding("settings", "array<f32>") }}
{{ binding("state", "array<f32>") }}

const CLIP_EPS = 1e-6;

// A compiler may assume that no float is NaN or infinite, so the exponent's bits are looked at.
fn is_finite(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7f800000u) != 0x7f800000u;
}

fn finish(squares: f32) {
    let tokens = totals[1];
    let clip = settings[5];
    let norm = sqrt(squares) / max(tokens, 1.0);
    let finite = is_finite(squares) && is_finite(norm) && is_finite(totals[0]) && is_finite(tokens) && tokens > 0.0;
    state[0] = norm;
    state[2] = select(0.0, 1.0, finite);
    if finite {
        state[1] = select(1.0, min(1.0, clip / (norm + CLIP_EPS)), clip > 0.0) / tokens;
        state[3] = settings[1] * state[3] + settings[6];
        state[4] = settings[2] * state[4] + settings[7];
        state[6] = 0.0;
        state[7] += 1.0;
        totals[2] += totals[0];
        totals[3] += tokens;
    } else {
        state[1] = 0.0;
        state[5] += 1.0;
        state[6] += 1.0;
    }
    totals[0] = 0.0;
    totals[1] = 0.0;
}

{{ prelude.reduce("sum", "f32") }}
{{ prelude.main() }}
    var sum = 0.0;
    for (var i = li; i < params.count; i += {{ workgroup_size }}u) {
        sum += partial[i];
    }
    let squares = workgroup_sum_f32(sum);
    if li == 0u {
        finish(squares);
    }
}
