// The first pass of sample.wgsl over the logits, by many workgroups: of each piece of a row the largest logit, the sum of
// exp(logit - largest), the largest logit after penalty and mask, and its token (the lowest of equals).
//
// logits, settings, seen, allowed as there; scanned vec4<f32> [S, pieces], =, the token as a number (it is below 2^24). Grid: (pieces, S, 1).

{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("S: u32", "V: u32", "words: u32", "piece: u32") }}
{{ binding("logits", "array<f32>") }}
{{ binding("settings", "array<vec4<f32>>") }}
{{ binding("seen", "array<u32>") }}
{{ binding("scanned", "array<vec4<f32>>") }}
{% if masked %}{{ binding("allowed", "array<u32>") }}{% endif %}

{% include "sample_logit.wgsl" %}

{{ prelude.functions() }}
{{ prelude.reduce("max", "f32") }}
{{ prelude.reduce("sum", "f32") }}
{{ prelude.argmax() }}
{{ prelude.main() }}
    let row = workgroup_y(wg, grid);
    if row >= params.S {
        return;
    }
    let penalty = settings[row].w;
    let end = min((wg.x + 1u) * params.piece, params.V);
    var top = LOWEST;
    var total = 0.0;
    var best = LOWEST;
    var best_token = 0xffffffffu;
    for (var v = wg.x * params.piece + li; v < end; v += {{ workgroup_size }}u) {
        let x = logits[row * params.V + v];
        let new_top = max(top, x);
        total = total * exp(top - new_top) + exp(x - new_top);
        top = new_top;
        let y = penalised(row, v, penalty);
        if y > best || best_token == 0xffffffffu {
            best = y;
            best_token = v;
        }
    }
    let piece_top = workgroup_max_f32(top);
    let piece_total = workgroup_sum_f32(total * exp(top - piece_top));
    let winner = workgroup_argmax(best, best_token);
    if li == 0u {
        scanned[row * grid.x + wg.x] = vec4<f32>(piece_top, piece_total, winner.value, f32(winner.index));
    }
}
