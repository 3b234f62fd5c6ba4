// The activation of the GLU and its slope, shared by glu_norm_quant and glu_backward. Variant `activation`.

{% if activation == "relu2" %}
fn activate(gate: vec4<f32>) -> vec4<f32> {
    let positive = max(gate, vec4<f32>());
    return positive * positive;
}

fn activate_slope(gate: vec4<f32>) -> vec4<f32> {
    return 2.0 * max(gate, vec4<f32>());
}
{% elif activation == "silu" %}
fn sigmoid(x: vec4<f32>) -> vec4<f32> {
    // exp of a large number may be infinite or undefined: e^-|x| never is.
    let small = exp(-abs(x));
    return select(small, vec4<f32>(1.0), x >= vec4<f32>()) / (1.0 + small);
}

fn activate(gate: vec4<f32>) -> vec4<f32> {
    return gate * sigmoid(gate);
}

fn activate_slope(gate: vec4<f32>) -> vec4<f32> {
    let s = sigmoid(gate);
    return s * (1.0 + gate * (1.0 - s));
}
{% endif %}
