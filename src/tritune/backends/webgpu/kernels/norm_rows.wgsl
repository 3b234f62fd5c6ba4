{#
norm_quant.wgsl with a row's values held in registers, and LoRA's first factor beside it (`lora`):

    down[t, j] = Σ_k normed[t, k] * a[slot[t] - 1, j, k], zero in rows of slot 0       a f32 or (`half`) f16 [pool, width, K], slot i32 [T]

Norm and dots need only one reduction: what the row is divided by is a factor of all of them. Each row gets `groups`
workgroups, which all norm it; each makes `down_rows` of the j and writes its share of normed and codes. A thread holds
`held` vectors of the row. Outputs as in norm_quant.wgsl; with `splits` x is one more, and codes and scales are words of
one range of memory, from `codes_at` and `scales_at` on. Grid: (groups, T, 1).
#}
{% if norm %}{{ binding("gain", "array<vec4<f32>>") }}{% endif %}
{% if splits %}{{ binding("x", "array<vec4<f32>>") }}{% endif %}
{% if keep %}{{ binding("normed", "array<vec4<f32>>") }}{% endif %}
{% if quant and splits %}{{ binding("coded", "array<u32>") }}
fn put_codes(at: u32, word: u32) { coded[params.codes_at + at] = word; }
fn put_scale(row: u32, scale: f32) { coded[params.scales_at + row] = bitcast<u32>(scale); }
{% elif quant %}{{ binding("codes", "array<u32>") }}
{{ binding("scales", "array<f32>") }}
fn put_codes(at: u32, word: u32) { codes[at] = word; }
fn put_scale(row: u32, scale: f32) { scales[row] = scale; }
{% endif %}
{% if lora %}{% import "lora.wgsl" as lora_parts with context %}{{ lora_parts.vectors("a") }}
{{ binding("slot", "array<u32>") }}
{{ binding("down", "array<f32>") }}{% endif %}

{% set copies = threads // team if team else threads %}
var<workgroup> scratch_top: array<f32, {{ copies }}>;
var<workgroup> scratch_sums: array<f32, {{ (down_rows + 1) * copies }}>;

{{ prelude.functions() }}
{{ prelude.main(threads) }}
    let row = workgroup_y(wg, grid);
    if row >= params.T {
        return;
    }
{% if lora %}
    let row_slot = slot[row];
    let a_first = {{ "0u" if single else "(max(row_slot, 1u) - 1u) * params.width" }};
{% endif %}
{% for s in range(held) %}
    let i{{ s }} = li + {{ s * threads }}u;
    let inside{{ s }} = i{{ s }} < params.columns;
    let c{{ s }} = min(i{{ s }}, params.columns - 1u);
    var v{{ s }} = select(vec4<f32>(), value(row, c{{ s }}), inside{{ s }});
{% if splits %}
    let x{{ s }} = v{{ s }};
{% endif %}
{% if norm %}
    let gain{{ s }} = gain[c{{ s }}];
{% endif %}
{% endfor %}
{% if lora %}
{% for q in range(down_rows) %}
    let j{{ q }} = min(wg.x * {{ down_rows }}u + {{ q }}u, params.width - 1u);
{% for s in range(held) %}
    let a{{ q }}_{{ s }} = a[(a_first + j{{ q }}) * params.columns + c{{ s }}];
{% endfor %}
{% endfor %}
{% endif %}
    var top = 0.0;
    var sum0 = 0.0;
{% for q in range(down_rows) %}
    var sum{{ q + 1 }} = 0.0;
{% endfor %}
{% for s in range(held) %}
{% if norm %}
    sum0 += dot(v{{ s }}, v{{ s }});
    v{{ s }} *= gain{{ s }};
{% endif %}
    let size{{ s }} = abs(v{{ s }});
    top = max(top, max(max(size{{ s }}.x, size{{ s }}.y), max(size{{ s }}.z, size{{ s }}.w)));
{% for q in range(down_rows) %}
    sum{{ q + 1 }} += dot(v{{ s }}, expand_a(a{{ q }}_{{ s }}));
{% endfor %}
{% endfor %}
{% if team %}
{{ prelude.fold("top", team, op="max") }}
{% for q in range(down_rows + 1) %}
{{ prelude.fold("sum%d" % q, team) }}
{% endfor %}
    if li % {{ team }}u == 0u {
        scratch_top[li / {{ team }}u] = top;
{% for q in range(down_rows + 1) %}
        scratch_sums[{{ q * copies }}u + li / {{ team }}u] = sum{{ q }};
{% endfor %}
    }
    workgroupBarrier();
    top = scratch_top[0];
{% for i in range(1, copies) %}
    top = max(top, scratch_top[{{ i }}]);
{% endfor %}
{% for q in range(down_rows + 1) %}
    sum{{ q }} = {% for i in range(copies) %}{{ " + " if i }}scratch_sums[{{ q * copies + i }}]{% endfor %};
{% endfor %}
{% else %}
    scratch_top[li] = top;
{% for q in range(down_rows + 1) %}
    scratch_sums[{{ q * copies }}u + li] = sum{{ q }};
{% endfor %}
    workgroupBarrier();
    for (var step = {{ threads // 2 }}u; step > 0u; step >>= 1u) {
        if li < step {
            scratch_top[li] = max(scratch_top[li], scratch_top[li + step]);
{% for q in range(down_rows + 1) %}
            scratch_sums[{{ q * copies }}u + li] += scratch_sums[{{ q * copies }}u + li + step];
{% endfor %}
        }
        workgroupBarrier();
    }
    top = scratch_top[0];
{% for q in range(down_rows + 1) %}
    sum{{ q }} = scratch_sums[{{ q * copies }}u];
{% endfor %}
{% endif %}
{% if norm %}
    let inverse_rms = 1.0 / sqrt(sum0 / f32(params.columns * 4u) + params.eps);
{% else %}
    let inverse_rms = 1.0;
{% endif %}
{% if quant %}
    let scale = 127.0 / max(top * inverse_rms, 1e-5);
    if li == 0u && wg.x == 0u {
        put_scale(row, scale);
    }
{% endif %}
{% for s in range(held) %}
    if inside{{ s }} && {{ s }}u % params.groups == wg.x {
        let n = v{{ s }} * inverse_rms;
{% if splits %}
        x[row * params.columns + i{{ s }}] = x{{ s }};
{% endif %}
{% if keep %}
        normed[row * params.columns + i{{ s }}] = n;
{% endif %}
{% if quant %}
        put_codes(row * params.columns + i{{ s }}, pack_i8x4(vec4<i32>(clamp(round(n * scale), vec4<f32>(-128.0), vec4<f32>(127.0)))));
{% endif %}
    }
{% endfor %}
{% if lora %}
    if li == 0u {
{% for q in range(down_rows) %}
        if wg.x * {{ down_rows }}u + {{ q }}u < params.width {
            down[row * params.width + j{{ q }}] = select(0.0, sum{{ q + 1 }} * inverse_rms, row_slot > 0u);
        }
{% endfor %}
    }
{% endif %}
}
