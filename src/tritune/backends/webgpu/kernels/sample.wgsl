// sample: draw one token from each sequence's logits, by thresholds and a Gumbel-max; ops/sample.py is the definition.
//
// logits f32 [S, V]; settings f32 [S, 4] SAMPLE_SETTINGS; state u32 [S, 4] SAMPLE_STATE (draw += 1); seen, allowed u32
// [S, ceil(V / 32)], bit v % 32 of word v / 32 (the drawn token is added to seen; variant `masked`: allowed is there);
// token i32 [S], =; logprob f32 [S], = the token's log-softmax in the unchanged logits.
// Work: one workgroup a sequence, passes over V; the first of them is sample_scan.wgsl's, in `pieces` workgroups, if it is
// not 0. The k-th largest logit is found by four passes over bytes of a key that sorts like the float, top-p's threshold
// by bisection of that key, `cuts` places at a time. Thresholds are found before the division by the temperature, which
// changes no order. At least 256 threads: llvmpipe ends all loops of a thread after 65535 steps together, which 64 threads
// would reach at a vocabulary of 128 thousand.

{% import "prelude.wgsl" as prelude with context %}
{# Thresholds that a pass tries at once, where a pass takes long. #}
{% set cuts = 7 if pieces else 1 %}
{% set threads = 1024 if pieces and not software and limits["max-compute-invocations-per-workgroup"] >= 1024 else 256 %}
{{ prelude.params("S: u32", "V: u32", "words: u32") }}
{{ binding("logits", "array<f32>") }}
{{ binding("settings", "array<vec4<f32>>") }}
{{ binding("state", "array<vec4<u32>>") }}
{{ binding("seen", "array<u32>") }}
{{ binding("token", "array<i32>") }}
{{ binding("logprob", "array<f32>") }}
{% if masked %}{{ binding("allowed", "array<u32>") }}{% endif %}

{% if pieces %}{{ binding("scanned", "array<vec4<f32>>") }}{% endif %}

const THREADS = {{ threads }}u;

var<workgroup> row_settings: vec4<f32>;
var<workgroup> row_state: vec4<u32>;
var<workgroup> histogram: array<atomic<u32>, 256>;
var<workgroup> found: vec2<u32>;

{{ prelude.functions() }}
{{ prelude.reduce("max", "f32", threads) }}
{{ prelude.reduce("sum", "f32", threads) }}
{{ prelude.argmax(threads) }}

{% include "sample_logit.wgsl" %}

// An unsigned number that sorts like the float.
fn key_of(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    return select(bits | 0x80000000u, ~bits, bits >= 0x80000000u);
}

fn hash_u32(x: u32) -> u32 {
    let state = x * 747796405u + 2891336453u;
    let word = ((state >> ((state >> 28u) + 4u)) ^ state) * 277803737u;
    return (word >> 22u) ^ word;
}

// -log(-log(u)) with u = (n + 1/2) / 2^24, n the hash's upper 24 bits. Near u = 1 a float cannot hold u, and log is too
// coarse: there -log(u) is the series of w = 1 - u, which is exact.
fn gumbel(hash: u32) -> f32 {
    let n = hash >> 8u;
    let w = (f32(0xffffffu - n) + 0.5) * 5.9604645e-8;
    var exponential = w * (1.0 + w * (0.5 + w * (0.33333333 + w * (0.25 + w * (0.2 + w * 0.16666667)))));
    if w > 0.03 {
        exponential = -log((f32(n) + 0.5) * 5.9604645e-8);
    }
    return -log(exponential);
}

// The key of the k-th largest logit (0 < k <= V).
fn top_k_key(row: u32, li: u32, penalty: f32, k: u32) -> u32 {
    var prefix = 0u;
    var rank = k;
    for (var digit = 0u; digit < 4u; digit++) {
        let shift = 24u - 8u * digit;
        for (var i = li; i < 256u; i += THREADS) {
            atomicStore(&histogram[i], 0u);
        }
        workgroupBarrier();
        for (var v = li; v < params.V; v += THREADS) {
            let key = key_of(penalised(row, v, penalty));
            if digit == 0u || (key >> (shift + 8u)) == prefix {
                atomicAdd(&histogram[(key >> shift) & 255u], 1u);
            }
        }
        workgroupBarrier();
        if li == 0u {
            var bin = 255u;
            var count = atomicLoad(&histogram[bin]);
            while count < rank && bin > 0u {
                rank -= count;
                bin -= 1u;
                count = atomicLoad(&histogram[bin]);
            }
            found = vec2<u32>(bin, rank);
        }
        let digit_found = workgroupUniformLoad(&found);
        prefix = (prefix << 8u) | digit_found.x;
        rank = digit_found.y;
    }
    return prefix;
}

// Σ exp((logit - top) / temperature) over the tokens at or above a key.
fn mass_from(row: u32, li: u32, penalty: f32, key: u32, top: f32, temperature: f32) -> f32 {
    var mass = 0.0;
    for (var v = li; v < params.V; v += THREADS) {
        let x = penalised(row, v, penalty);
        if x > LOWEST && key_of(x) >= key {
            mass += exp((x - top) / temperature);
        }
    }
    return workgroup_sum_f32(mass);
}

// The largest key from which on the mass reaches top_p of that from `lowest` on.
fn top_p_key(row: u32, li: u32, penalty: f32, lowest: u32, top: f32, temperature: f32, top_p: f32) -> u32 {
    let goal = top_p * mass_from(row, li, penalty, lowest, top, temperature);
    // Logits 80 temperatures below the top weigh e^-80: the search need not begin below them.
    var low = max(lowest, key_of(max(top - 80.0 * temperature, LOWEST)));
    var high = key_of(top) + 1u;
    while high - low > 1u {
        let step = max((high - low) / {{ cuts + 1 }}u, 1u);
{% for c in range(cuts) %}
        let cut{{ c }} = low + step * {{ c + 1 }}u;
        var mass{{ c }} = 0.0;
{% endfor %}
        for (var v = li; v < params.V; v += THREADS) {
            let x = penalised(row, v, penalty);
            let key = key_of(x);
            if x > LOWEST && key >= cut0 {
                let weight = exp((x - top) / temperature);
{% for c in range(cuts) %}
                mass{{ c }} += select(0.0, weight, key >= cut{{ c }});
{% endfor %}
            }
        }
{% for c in range(cuts) %}
        let total{{ c }} = workgroup_sum_f32(mass{{ c }});
{% endfor %}
{% for c in range(cuts) %}
        if cut{{ c }} < high {
            if total{{ c }} >= goal { low = cut{{ c }}; } else { high = cut{{ c }}; }
        }
{% endfor %}
    }
    return low;
}

// The smallest key that top-k, top-p and min-p keep.
fn kept_key(row: u32, li: u32, top: f32, chosen: vec4<f32>, top_k: u32) -> u32 {
    var lowest = 0u;
    if top_k > 0u && top_k < params.V {
        lowest = top_k_key(row, li, chosen.w, top_k);
    }
    if chosen.y < 1.0 {
        lowest = top_p_key(row, li, chosen.w, lowest, top, chosen.x, chosen.y);
    }
    if chosen.z > 0.0 {
        lowest = max(lowest, key_of(min(top, top + chosen.x * log(chosen.z))));
    }
    return lowest;
}

{{ prelude.main(threads) }}
    let row = workgroup_1d(wg, grid);
    if row >= params.S {
        return;
    }
    if li == 0u {
        row_settings = settings[row];
        row_state = state[row];
    }
    let chosen = workgroupUniformLoad(&row_settings);  // temperature, top_p, min_p, repetition_penalty
    let drawn = workgroupUniformLoad(&row_state);      // top_k, seed, draw
    var raw_top = LOWEST;
    var raw_total = 0.0;
    var thread_top = LOWEST;
{% if pieces %}
    var greedy = LOWEST;
    var greedy_token = 0xffffffffu;
    for (var i = li; i < {{ pieces }}u; i += THREADS) {
        let piece = scanned[row * {{ pieces }}u + i];
        let new_top = max(raw_top, piece.x);
        raw_total = raw_total * exp(raw_top - new_top) + piece.y * exp(piece.x - new_top);
        raw_top = new_top;
        thread_top = max(thread_top, piece.z);
        if piece.z > greedy || greedy_token == 0xffffffffu {
            greedy = piece.z;
            greedy_token = u32(piece.w);
        }
    }
{% else %}
    for (var v = li; v < params.V; v += THREADS) {
        let x = logits[row * params.V + v];
        if x > raw_top {
            raw_total *= exp(raw_top - x);
            raw_top = x;
        }
        raw_total += exp(x - raw_top);
        thread_top = max(thread_top, penalised(row, v, chosen.w));
    }
{% endif %}
    let all_top = workgroup_max_f32(raw_top);
    let total = workgroup_sum_f32(raw_total * exp(raw_top - all_top));
    let top = workgroup_max_f32(thread_top);

    let random = chosen.x > 0.0;
    var lowest = 0u;
    if random {
        lowest = kept_key(row, li, top, chosen, drawn.x);
    }
    let stream = hash_u32(hash_u32(drawn.y) + drawn.z);
    var best = LOWEST;
    var best_token = 0xffffffffu;
{% if pieces %}
    // A greedy draw is the best of the pieces: no pass over the logits is left.
    if !random {
        best = greedy;
        best_token = greedy_token;
    }
    let passes = select(0u, params.V, random);
{% else %}
    let passes = params.V;
{% endif %}
    for (var v = li; v < passes; v += THREADS) {
        var x = penalised(row, v, chosen.w);
        if x > LOWEST && key_of(x) >= lowest {
            if random {
                x = x / chosen.x + gumbel(hash_u32(stream + v));
            }
            if x > best || best_token == 0xffffffffu {
                best = x;
                best_token = v;
            }
        }
    }
    let winner = workgroup_argmax(best, best_token);
    if li == 0u {
        let drawn_token = min(winner.index, params.V - 1u);
        token[row] = i32(drawn_token);
        logprob[row] = (logits[row * params.V + drawn_token] - all_top) - log(total);
        let at = row * params.words + drawn_token / 32u;
        seen[at] |= 1u << (drawn_token % 32u);
        state[row].z += 1u;
    }
}
