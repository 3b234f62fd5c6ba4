"""glu_norm_quant against its definition."""

from __future__ import annotations

import numpy as np
import pytest

from tritune.errors import DeviceError


def norm_quant(gate_up, activation, gain):
    def op(backend):
        rows, columns = gate_up.shape[0], gate_up.shape[1] // 2
        normed, codes, scales = (
            backend.empty((rows, columns)),
            backend.empty((rows, columns), "i8"),
            backend.empty((rows,)),
        )
        backend.glu_norm_quant(
            backend.upload(gate_up),
            activation,
            None if gain is None else backend.upload(gain),
            1e-5,
            normed,
            codes,
            scales,
        )
        return {"normed": normed, "codes": codes, "scales": scales}

    return op


@pytest.mark.parametrize("activation", ["relu2", "silu"])
@pytest.mark.parametrize("with_gain", [True, False])
@pytest.mark.parametrize(("rows", "columns"), [(1, 4), (3, 12), (127, 20), (129, 508), (2, 6912)])
def test_equals_the_definition(both, rng, activation, with_gain, rows, columns):
    gate_up = rng.normal(size=(rows, 2 * columns)) * rng.uniform(0.1, 10, size=(rows, 1))
    gain = rng.uniform(0.5, 2, size=columns) if with_gain else None
    found, expected = both.run(norm_quant(gate_up, activation, gain))
    both.close(found["normed"], expected["normed"])
    both.close(found["scales"], expected["scales"])
    both.codes_close(found["codes"], expected["codes"], expected["normed"] * expected["scales"][:, None])


def test_silu_of_large_gates_is_finite(both):
    gate_up = np.array([[-1e4, -200, -89, 0, 89, 200, 1e4, 1, 1, 1, 1, 1, 1, 1, 1, 1]])
    gate_up[0, 7] = -20
    found, expected = both.run(norm_quant(gate_up, "silu", None))
    both.close(found["normed"], expected["normed"])


def test_an_unknown_activation_is_an_error(webgpu):
    with pytest.raises(DeviceError, match="gelu"):
        norm_quant(np.ones((1, 8)), "gelu", None)(webgpu)
