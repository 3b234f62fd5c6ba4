// rms_norm_quant: RMS norm of each row of x and its int8 quantisation; see norm_quant.wgsl for outputs and work.
//
// x f32 [T, D], D a multiple of 4.

{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("T: u32", "columns: u32", "eps: f32") }}
{{ binding("x", "array<vec4<f32>>") }}

fn value(row: u32, i: u32) -> vec4<f32> {
    return x[row * params.columns + i];
}

{% include "norm_quant.wgsl" %}
