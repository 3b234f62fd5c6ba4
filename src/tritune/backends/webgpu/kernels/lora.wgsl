{#
What the LoRA kernels share: the part of an output, an adapter's matrix, and dropout's mask.

Parts: the linear's N outputs are parts stacked one after the other (at most 4); `ends0` … `ends2` are the first outputs
of parts 1 … 3, 0xffffffff where there is none.
Dropout: element t * K + k of the input is kept where hash(seed, step, module, element) >= threshold, and multiplied by
1 / (1 - rate); state u32 [2] holds seed and step. The hash is PCG's RXS-M-XS (O'Neill 2014; Jarzynski and Olano 2020).
#}
{% macro part_of() %}
fn part_of(n: u32) -> u32 {
    return u32(n >= params.ends0) + u32(n >= params.ends1) + u32(n >= params.ends2);
}
// The first output of a part; beyond the last part a number larger than any output.
fn part_start(part: u32) -> u32 {
    if (part == 0u) { return 0u; }
    if (part == 1u) { return params.ends0; }
    if (part == 2u) { return params.ends1; }
    return select(0xffffffffu, params.ends2, part == 3u);
}
{% endmacro %}

{# A matrix of adapters, f32 or (`half`) f16, two to a word: in vectors of 4, or one by one. expand_<name> makes numbers of
   what is loaded from the first, <name>_at(i) is element i of the second. #}
{% macro vectors(name) %}
{{ binding(name, "array<vec2<u32>>" if half else "array<vec4<f32>>") }}
{% if half %}
fn expand_{{ name }}(raw: vec2<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(raw.x), unpack2x16float(raw.y)); }
{% else %}
fn expand_{{ name }}(raw: vec4<f32>) -> vec4<f32> { return raw; }
{% endif %}
{% endmacro %}
{% macro numbers(name) %}
{{ binding(name, "array<u32>" if half else "array<f32>") }}
fn {{ name }}_at(i: u32) -> f32 { return {{ "unpack2x16float(%s[i / 2u])[i %% 2u]" % name if half else name ~ "[i]" }}; }
{% endmacro %}

{% macro dropout_functions() %}
{% if dropout %}
var<private> dropout_prefix: u32;
fn hash_u32(x: u32) -> u32 {
    let state = x * 747796405u + 2891336453u;
    let word = ((state >> ((state >> 28u) + 4u)) ^ state) * 277803737u;
    return (word >> 22u) ^ word;
}
fn dropout_factor(element: u32) -> f32 {
    return select(0.0, params.keep_scale, hash_u32(dropout_prefix + element) >= params.threshold);
}
{% else %}
fn dropout_factor(element: u32) -> f32 { return 1.0; }
{% endif %}
fn dropout_factors(e: u32) -> vec4<f32> {
    return vec4<f32>(dropout_factor(e), dropout_factor(e + 1u), dropout_factor(e + 2u), dropout_factor(e + 3u));
}
{% endmacro %}

{% macro dropout_setup() %}
{% if dropout %}
dropout_prefix = hash_u32(hash_u32(hash_u32(state[0]) + state[1]) + params.linear_index);
{% endif %}
{% endmacro %}
