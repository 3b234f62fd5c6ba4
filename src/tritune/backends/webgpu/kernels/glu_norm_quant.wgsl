// glu_norm_quant: z = act(gate) * up, its RMS norm (if there is a gain) and its int8 quantisation; outputs and work as in
// norm_rows.wgsl.
//
// gate_up f32 [T, 2 F], the gate in the first half, F a multiple of 4.

{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("T: u32", "columns: u32", "eps: f32", "width: u32", "groups: u32", "codes_at: u32", "scales_at: u32") }}
{{ binding("gate_up", "array<vec4<f32>>") }}

{% include "glu.wgsl" %}

fn value(row: u32, i: u32) -> vec4<f32> {
    let at = row * 2u * params.columns + i;
    return activate(gate_up[at]) * gate_up[at + params.columns];
}

{% if held %}{% include "norm_rows.wgsl" %}{% else %}{% include "norm_quant.wgsl" %}{% endif %}

