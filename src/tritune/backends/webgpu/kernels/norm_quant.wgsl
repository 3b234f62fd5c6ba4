// The body that rms_norm_quant and glu_norm_quant share: RMS norm of value(row, i) and its int8 quantisation.
//
// The including file declares the params (T, columns = D / 4, eps) and `fn value(row: u32, i: u32) -> vec4<f32>`, the i-th four
// elements of a row. Variants: `norm` (gain is there), `keep` (normed is wanted), `quant` (codes and scales are).
//   gain   f32 [D]
//   normed f32 [T, D], =
//   codes  i8 [T, D], four to a word, =;  scales f32 [T] = 127 / max(max|normed|, 1e-5)
// Work: one workgroup a row, one pass over it for each reduction; values are computed again rather than kept, so D has no
// limit.

{% if norm %}{{ binding("gain", "array<vec4<f32>>") }}{% endif %}
{% if keep %}{{ binding("normed", "array<vec4<f32>>") }}{% endif %}
{% if quant %}{{ binding("codes", "array<u32>") }}
{{ binding("scales", "array<f32>") }}{% endif %}

fn normed_value(row: u32, i: u32, inverse_rms: f32) -> vec4<f32> {
    return value(row, i){% if norm %} * inverse_rms * gain[i]{% endif %};
}

{{ prelude.functions() }}
{{ prelude.reduce("sum", "f32") }}
{{ prelude.reduce("max", "f32") }}
{{ prelude.main() }}
    let row = workgroup_1d(wg, grid);
    if row >= params.T {
        return;
    }
    var inverse_rms = 1.0;
{% if norm %}
    var squares = 0.0;
    for (var i = li; i < params.columns; i += {{ workgroup_size }}u) {
        let x = value(row, i);
        squares += dot(x, x);
    }
    inverse_rms = 1.0 / sqrt(workgroup_sum_f32(squares) / f32(params.columns * 4u) + params.eps);
{% endif %}
{% if keep or quant %}
    var top = 0.0;
    for (var i = li; i < params.columns; i += {{ workgroup_size }}u) {
        let n = normed_value(row, i, inverse_rms);
{% if keep %}
        normed[row * params.columns + i] = n;
{% endif %}
        let size = abs(n);
        top = max(top, max(max(size.x, size.y), max(size.z, size.w)));
    }
{% endif %}
{% if quant %}
    let scale = 127.0 / max(workgroup_max_f32(top), 1e-5);
    for (var i = li; i < params.columns; i += {{ workgroup_size }}u) {
        let rounded = clamp(round(normed_value(row, i, inverse_rms) * scale), vec4<f32>(-128.0), vec4<f32>(127.0));
        codes[row * params.columns + i] = pack_i8x4(vec4<i32>(rounded));
    }
    if li == 0u {
        scales[row] = scale;
    }
{% endif %}
}
