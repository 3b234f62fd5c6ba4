// What the ternary products of few rows share: the numbers of a word (`wide`: of four), and the scale of a part. The including
// file declares params with scale0 … scale3.

// A word's 16 numbers as 2-bit two's complements: codes 0, 1, 2 become 3, 0, 1.
fn signed(word: {{ "vec4<u32>" if wide else "u32" }}) -> {{ "vec4<u32>" if wide else "u32" }} {
{% if wide %}
    return ~(word | ((word << vec4<u32>(1u)) & vec4<u32>(0xaaaaaaaau)));
{% else %}
    return ~(word | ((word << 1u) & 0xaaaaaaaau));
{% endif %}
}

fn scale_of(part: u32) -> f32 {
    return select(select(params.scale0, params.scale1, part == 1u), select(params.scale2, params.scale3, part == 3u), part > 1u);
}
