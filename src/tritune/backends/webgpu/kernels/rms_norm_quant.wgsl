// rms_norm_quant: RMS norm of each row of x and its int8 quantisation; see norm_rows.wgsl for outputs and work.
//
// x f32 [T, D], D a multiple of 4; or (`splits` > 0) what paged_attention_rows left of it, from which x is made too.

{% import "prelude.wgsl" as prelude with context %}
{{ prelude.params("T: u32", "columns: u32", "eps: f32", "width: u32", "groups: u32", "codes_at: u32", "scales_at: u32") }}
{% if splits %}
{{ binding("partial", "array<vec4<f32>>") }}
{% include "combine.wgsl" %}
fn value(row: u32, i: u32) -> vec4<f32> { return attention_value(row, i); }
{% else %}
{{ binding("x", "array<vec4<f32>>") }}
fn value(row: u32, i: u32) -> vec4<f32> { return x[row * params.columns + i]; }
{% endif %}

{% if held %}{% include "norm_rows.wgsl" %}{% else %}{% include "norm_quant.wgsl" %}{% endif %}

