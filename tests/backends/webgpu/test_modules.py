"""Shaders without run-time checks: the driver still keeps them within what is bound."""

from __future__ import annotations

import numpy as np
import pytest

from tritune.backends.webgpu.prepare import Dispatch
from tritune.errors import DeviceError

PAST_THE_END = """
@group(0) @binding(0) var<uniform> params: vec4<u32>;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    y[id.x] = x[id.x];
    y[id.x + 1000000u] = 7.0;
}
"""


def test_reading_past_a_binding_shows_nothing_of_its_neighbours(webgpu):
    """Two buffers of one device buffer, 64 numbers each; 128 threads read and write from the first number on."""
    bound, secret = webgpu.empty_together(((64,), "f32"), ((64,), "f32"))
    out = webgpu.empty((128,))
    webgpu.write(bound, np.ones(64, np.float32))
    webgpu.write(secret, np.full(64, 5, np.float32))
    preparer = webgpu._preparer
    pipeline = preparer.shaders._compile("past_the_end", {}, PAST_THE_END, 2)
    group, offsets = preparer._group(bytes(16), (bound, out))
    webgpu._runner.run_now(Dispatch("past_the_end", pipeline, group, offsets, (2, 1, 1), (bound, out)))
    found = np.asarray(webgpu.read(out))
    assert (found[:64] == 1).all()
    assert (found[64:] != 5).all()
    np.testing.assert_array_equal(webgpu.read(secret), np.full(64, 5, np.float32))


def test_a_mistake_in_a_shader_names_it_and_the_line(webgpu):
    with pytest.raises(DeviceError, match=r"compiling kernel broken .*wgsl:2"):
        webgpu._preparer.shaders._compile("broken", {}, "fn f() {}\nnonsense", 1)
