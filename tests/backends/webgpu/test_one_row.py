"""Linears of one row in the same dispatch as the norm before them, the GLU and the next linear's LoRA."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from linear_cases import Case
from tiny_chat import make_chat_model, open_chat_model, strong_adapter
from tritune.backends.numpy import NumpyBackend
from tritune.backends.webgpu.held_linear import row_shape
from tritune.lora import AdapterPool
from tritune.models.batch import Piece
from tritune.models.cache import KVCache
from tritune.models.inference import InferenceState

SEQUENCES = ([5, 9, 3, 70, 41], [12, 44, 7, 81, 30], [66, 21, 8, 15, 77])
SOME = ["q_proj", "up_proj", "down_proj"]

BITNET = {"hidden": 128, "ffn": 192, "heads": 4, "kv_heads": 2, "layers": 3}
LLAMA = BITNET | {"model_type": "llama", "linear_class": "bitlinear", "ffn": 320, "kv_heads": 1}
MODELS = {
    "bitnet": BITNET,
    "silu, parts that share a workgroup": BITNET | {"act": "silu", "kv_heads": 1, "head_dim": 40, "heads": 8},
    "no sub-norms": LLAMA,
    "columns that are no multiple of 64": BITNET | {"hidden": 96, "heads": 3, "kv_heads": 1},
}


class Decoder:
    """Decodes tokens one by one, and keeps the hidden state after the last block."""

    def __init__(self, path, backend, adapters, slot, multiplier=1.0, dtype="f32", tokens=SEQUENCES[0]):
        model = open_chat_model(path, backend)
        made = [strong_adapter(model, seed, **config) for seed, config in enumerate(adapters)]
        pool = AdapterPool.for_adapters(backend, made, rounded=dtype == "f16") if made else None
        cache = KVCache(backend, model.config, 4, "f32")
        self.state = InferenceState(model.device_model, cache, max_rows=8, adapters=pool)
        hidden = []
        for position, token in enumerate(tokens):
            self.state.forward([Piece([token], position, slot, multiplier, blocks=(2,))])
            hidden.append(np.asarray(backend.read(self.state._x))[0])
        self.hidden = np.array(hidden, np.float64)

    @property
    def kernels(self):
        return Counter(dispatch.kernel for dispatch in self.state._forward_program(1).dispatches)


OPTIONS = [
    {},
    {"subgroups": False},
    {"attention_splits": 3, "workgroup_size": 128},
    {"dynamic_offsets": False},
    {"team": 8, "attention_splits": 2},
]


@pytest.fixture(params=OPTIONS, ids=str)
def one_row(request, opened):
    options = dict(request.param)
    team = options.pop("team", None)
    backend = opened(one_row=True, **options)
    if options:
        backend.device.max_bindings = 16
    if team is not None and backend.device.info.software:  # on hardware that path is taken anyway
        if not any(width in backend.device.info.name for width in ("256 bits", "512 bits")):
            pytest.skip("subgroups of less than 8")
        backend.device.smallest_subgroup = team
    return backend


@pytest.fixture
def decoded(tmp_path):
    """What a backend decodes, held to what NumPy does.

    Two roundings to int8 may differ where a value lies between, and then all that follows does a little; but not in
    each of some sequences.
    """

    def decode(backend, sizes, adapters=(), slot=1, multiplier=1.0):
        path = make_chat_model(tmp_path / "model", **sizes)
        for tokens in SEQUENCES:
            found, expected = (
                Decoder(path, where, adapters, slot, multiplier, tokens=tokens) for where in (backend, NumpyBackend())
            )
            error = np.linalg.norm(found.hidden - expected.hidden) / np.linalg.norm(expected.hidden)
            assert error < 2e-2
            if error < 1e-5:
                return found
        pytest.fail(f"an error of {error}")

    return decode


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rank", [None, 8])
def test_decoding_equals_the_definition(one_row, decoded, name, rank):
    sizes = MODELS[name]
    found = decoded(one_row, sizes, [{"rank": rank}] if rank else [])
    assert found.kernels["linear_row"] == sizes["layers"] * (4 if sizes["hidden"] % 64 == 0 else 1)


@pytest.mark.parametrize(
    "adapters",
    [
        [{"rank": 4, "target_modules": SOME}],
        [{"rank": 12}, {"rank": 8, "target_modules": SOME}],
        [{"rank": 6}],
        [{"rank": 64}],
        [{"rank": 160}],
    ],
    ids=["some linears", "two adapters", "a rank that is no multiple of 4", "a large rank", "a larger one"],
)
def test_adapters_of_all_kinds(one_row, decoded, adapters):
    for slot in range(len(adapters) + 1):
        decoded(one_row, BITNET, adapters, slot, multiplier=0.7)


def test_norms_and_the_glu_need_no_dispatch_of_their_own(opened, decoded):
    one_row = opened(one_row=True, attention_splits=3, workgroup_size=128)
    one_row.device.max_bindings = 16
    layers = BITNET["layers"]
    plain = decoded(one_row, BITNET).kernels
    assert plain["linear_row"] == 4 * layers
    assert plain["paged_attention_rows"] == layers
    rope = {"rope_cache"} if one_row.device.info.software else set()
    assert set(plain) == {"embed", *rope, "paged_attention_rows", "linear_row"}
    adapted = decoded(one_row, BITNET, [{"rank": 8}]).kernels
    assert adapted["linear_row"] == 4 * layers
    assert adapted["rms_norm_quant"] == 1  # the very first
    assert set(adapted) == {*plain, "rms_norm_quant"}


@pytest.mark.parametrize("dynamic", [True, False])
def test_layers_share_bind_groups_and_parameters(opened, tmp_path, dynamic):
    """Of their own, they cost the host time for each dispatch, and the device: they are in no cache then."""
    backend = opened(one_row=True, dynamic_offsets=dynamic)
    backend.device.max_bindings = 16
    slots, recorded = backend._preparer.parameters.slot, list[tuple[int, int]]()
    for layers in (3, 6):
        path = make_chat_model(tmp_path / str(layers), **{**BITNET, "layers": layers})
        blocks = set[bytes]()
        backend._preparer.parameters.slot = lambda block, blocks=blocks: (blocks.add(block), slots(block))[1]
        program = Decoder(path, backend, [{"rank": 8}], 1).state._forward_program(1)
        recorded.append((len({id(dispatch.group) for dispatch in program.dispatches}), len(blocks)))
    (few, parameters), (many, more_parameters) = recorded
    assert many == few if dynamic else many > 1.5 * few
    assert more_parameters == parameters


@pytest.mark.parametrize("adapters", [[{"rank": 8}], []])
@pytest.mark.parametrize("fused", [True, False])
def test_a_profile_counts_attention_as_itself(opened, decoded, fused, adapters):
    """It is recorded late, by the linear behind it or by the norm between them, which itself waited for the linear."""
    backend = opened(one_row=fused, attention_splits=2 if fused else 1)
    backend.device.max_bindings = 16
    state, layers = decoded(backend, BITNET, adapters).state, BITNET["layers"]
    with backend.profile() as profile:
        state.forward([Piece([1], 5, len(adapters), 1.0, blocks=(2,))])
    ops = profile.ops
    assert (ops["paged_attention"].calls, set(ops["paged_attention"].kernels)) == (layers, {"paged_attention_rows"})
    assert "paged_attention_rows" not in ops["linear"].kernels
    assert ops["paged_attention"].nbytes > 0


def test_adapters_in_f16(one_row, tmp_path):
    backend = one_row
    backend.f16_adapters = True
    path = make_chat_model(tmp_path / "model", **BITNET)
    found, exact = (Decoder(path, backend, [{"rank": 8}], 1, dtype=dtype) for dtype in ("f16", "f32"))
    assert found.state.adapters.flat.dtype == "f16"
    assert found.kernels["linear_row"] == 4 * BITNET["layers"]
    error = np.linalg.norm(found.hidden - exact.hidden) / np.linalg.norm(exact.hidden)
    assert 0 < error < 2e-2


def test_what_others_may_read_is_written(opened, rng):
    """Buffers are transient only where somebody said so: here nobody did."""
    backend, case = opened(one_row=True), Case(rng, 1, 64, (64, 64), rank=4, pool=1)
    case.slot[:] = 1
    x, gain = backend.upload(case.x), backend.upload(np.ones(64))
    codes, scales = backend.empty_together(((1, 64), "i8"), ((1,), "f32"))
    normed, lora, y = backend.empty((1, 64)), case.lora(backend), backend.upload(case.y)
    with backend.record() as program:
        backend.rms_norm_quant(x, gain, 1e-5, normed, codes, scales)
        backend.linear(normed, codes, scales, case.weight(backend), y, case.rows(backend), lora=lora)
    program.run()
    expected = case.x / np.sqrt(np.mean(case.x**2) + 1e-5)
    np.testing.assert_allclose(backend.read(normed), expected, rtol=1e-5)
    np.testing.assert_allclose(backend.read(lora.down), expected @ case.a[0].T, rtol=1e-4)


def test_a_software_renderer_keeps_its_dispatches_apart(opened, decoded):
    backend = opened()
    assert (decoded(backend, BITNET).kernels["linear_row"] == 0) == backend.device.info.software


@pytest.mark.parametrize("team", [0, 4, 8, 16, 32, 64])
@pytest.mark.parametrize("most_threads", [128, 256, 1024])
def test_a_workgroup_fits_the_device(most_threads, team):
    for columns in (256, 2560, 6912):
        shape = row_shape(columns, most_threads, team)
        assert 64 <= shape.threads <= most_threads
        assert shape.outputs % 4 == 0
        assert shape.threads % shape.team == 0 if shape.team else shape.threads.bit_count() == 1


def test_a_device_with_little_workgroup_memory_keeps_its_dispatches_apart(opened, decoded):
    backend = opened(one_row=True)
    backend.device.info.limits["max-compute-workgroup-storage-size"], before = 4096, dict(backend.device.info.limits)
    try:
        assert decoded(backend, BITNET, [{"rank": 8}]).kernels["linear_row"] == 0
    finally:
        backend.device.info.limits.update(before)
