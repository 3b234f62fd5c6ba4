"""linear_backward against its definition, and against finite differences of linear."""

from __future__ import annotations

import numpy as np
import pytest

from linear_cases import SHAPES, Case, dropout
from tritune.errors import DeviceError


def backward(case, backend, *, dx=True, pool=True, grad=True, rate=0.0):
    lora = case.lora(backend, case.down()) if pool else None
    grads = case.grad(backend)
    dx_buffer = backend.upload(np.full(case.x.shape, 7.0)) if dx else None
    backend.linear_backward(
        backend.upload(case.dy),
        backend.upload(case.x),
        case.weight(backend),
        case.rows(backend),
        dx=dx_buffer,
        lora=lora,
        grad=grads if grad else None,
        dropout=dropout(backend, rate) if rate else None,
    )
    found = {"da": grads.a, "db": grads.b}
    return found if dx_buffer is None else {**found, "dx": dx_buffer}


@pytest.mark.parametrize("rate", [0.0, 0.3])
@pytest.mark.parametrize(("tokens", "in_features", "parts"), SHAPES)
def test_equals_the_definition(both, rng, tokens, in_features, parts, rate):
    case = Case(rng, tokens, in_features, parts, rank=5, pool=1)
    both.compare(lambda b: backward(case, b, rate=rate))


@pytest.mark.parametrize("tokens", [3, 70])
def test_without_adapter(both, rng, tokens):
    case = Case(rng, tokens, 36, (20, 8), rank=2, pool=1)
    both.compare(lambda b: backward(case, b, pool=False, grad=False))


@pytest.mark.parametrize("tokens", [3, 70])
def test_gradient_of_the_adapter_alone(both, rng, tokens):
    case = Case(rng, tokens, 36, (20, 8), rank=2, pool=1)
    both.compare(lambda b: backward(case, b, dx=False))


@pytest.mark.parametrize("tokens", [3, 70])
def test_input_gradient_through_several_adapters(both, rng, tokens):
    case = Case(rng, tokens, 36, (20, 8), rank=3, pool=3)
    both.compare(lambda b: backward(case, b, grad=False))


@pytest.mark.parametrize("rank", [1, 16, 70])
def test_any_rank(both, rng, rank):
    case = Case(rng, 66, 20, (4, 72), rank=rank, pool=1)
    both.compare(lambda b: backward(case, b))


@pytest.mark.parametrize("rate", [0.0, 0.4])
def test_finite_differences(reference, rng, rate):
    """d(dy · y) of the float64 definition of linear, along random directions of x, A and B."""
    case = Case(rng, 5, 12, (8, 4), rank=2, pool=1)

    def forward_down_and_loss():
        lora = case.lora(reference)
        y = reference.empty(case.dy.shape)
        reference.linear(
            reference.upload(case.x),
            None,
            None,
            case.weight(reference),
            y,
            case.rows(reference),
            lora=lora,
            dropout=dropout(reference, rate) if rate else None,
        )
        return np.asarray(reference.read(lora.down)), float((np.asarray(reference.read(y)) * case.dy).sum())

    down, _ = forward_down_and_loss()
    case.down = lambda: down
    grads = {name: np.asarray(reference.read(buffer)) for name, buffer in backward(case, reference, rate=rate).items()}
    grads["da"] -= case.da
    grads["db"] -= case.db
    for name, attribute in (("dx", "x"), ("da", "a"), ("db", "b")):
        start, direction = getattr(case, attribute), rng.normal(size=getattr(case, attribute).shape)
        losses = []
        for step in (1e-4, -1e-4):
            setattr(case, attribute, start + step * direction)
            losses.append(forward_down_and_loss()[1])
        setattr(case, attribute, start)
        slope = (losses[0] - losses[1]) / 2e-4
        np.testing.assert_allclose((grads[name] * direction).sum(), slope, rtol=1e-7, atol=1e-7, err_msg=name)


def test_gradients_of_adapters_in_f16_are_refused(webgpu, rng):
    case = Case(rng, 3, 20, (8,), rank=4, pool=1)
    case.round_adapters()
    with pytest.raises(DeviceError, match="expected adapters in f32, found f16"):
        backward(case, webgpu)
