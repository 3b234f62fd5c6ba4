// A logit as sample.wgsl and sample_scan.wgsl weigh it; they declare logits, seen, allowed (`masked`) and params with V and
// words = ceil(V / 32).

const LOWEST = -3.4028234e38;  // of a token that is not allowed: below every finite logit

fn has_bit(word: u32, v: u32) -> bool {
    return ((word >> (v % 32u)) & 1u) == 1u;
}

// The logit after the repetition penalty and the mask.
fn penalised(row: u32, v: u32, penalty: f32) -> f32 {
    let x = logits[row * params.V + v];
    let at = row * params.words + v / 32u;
{% if masked %}
    if !has_bit(allowed[at], v) {
        return LOWEST;
    }
{% endif %}
    if has_bit(seen[at], v) {
        return select(x * penalty, x / penalty, x > 0.0);
    }
    return x;
}
