"""rms_norm_quant against its definition."""

from __future__ import annotations

import numpy as np
import pytest

SIZES = [(1, 4), (3, 12), (127, 20), (129, 508), (2, 2560)]


def norm_quant(x, gain, keep=True, quant=True):
    def op(backend):
        rows, columns = x.shape
        normed = backend.empty((rows, columns)) if keep else None
        codes = backend.empty((rows, columns), "i8") if quant else None
        scales = backend.empty((rows,)) if quant else None
        backend.rms_norm_quant(
            backend.upload(x), None if gain is None else backend.upload(gain), 1e-5, normed, codes, scales
        )
        outputs = {"normed": normed, "codes": codes, "scales": scales}
        return {name: buffer for name, buffer in outputs.items() if buffer is not None}

    return op


def check(both, found, expected):
    both.close(found["normed"], expected["normed"])
    both.close(found["scales"], expected["scales"])
    both.codes_close(found["codes"], expected["codes"], expected["normed"] * expected["scales"][:, None])


@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize("with_gain", [True, False])
def test_equals_the_definition(both, rng, rows, columns, with_gain):
    x = rng.normal(size=(rows, columns)) * rng.uniform(0.01, 30, size=(rows, 1))
    gain = rng.uniform(0.5, 2, size=columns) if with_gain else None
    check(both, *both.run(norm_quant(x, gain)))


@pytest.mark.parametrize(("keep", "quant"), [(True, False), (False, True)])
def test_outputs_that_are_not_wanted_change_nothing(both, rng, keep, quant):
    x, gain = rng.normal(size=(3, 20)), rng.uniform(0.5, 2, size=20)
    found, _ = both.run(norm_quant(x, gain, keep, quant))
    whole, _ = both.run(norm_quant(x, gain))
    assert found.keys() == ({"normed"} if keep else {"codes", "scales"})
    for name, value in found.items():
        np.testing.assert_array_equal(value, whole[name])


def test_a_row_of_zeros_is_finite(both):
    found, expected = both.run(norm_quant(np.zeros((3, 8)), np.ones(8)))
    check(both, found, expected)
    np.testing.assert_allclose(found["scales"], 127 / 1e-5, rtol=1e-6)


def test_rounds_half_to_even_and_keeps_the_extremes(both):
    # The largest is 127, so the scale is 1 and the numbers are rounded as they are.
    x = np.array([[127, 0.5, 1.5, 2.5, -0.5, -1.5, -127, 3.49]])
    found, expected = both.run(norm_quant(x, None))
    np.testing.assert_array_equal(found["codes"], [[127, 0, 2, 2, 0, -2, -127, 3]])
    np.testing.assert_array_equal(expected["codes"], found["codes"])
