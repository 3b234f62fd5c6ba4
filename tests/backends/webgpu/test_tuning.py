"""Tuned choices: the same results whatever is chosen, kept in a file that is checked before it is believed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from linear_cases import Case
from tritune.backends.webgpu import WebGPUBackend
from tritune.backends.webgpu.choices import CANDIDATES, head_class, linear_class, product_class
from tritune.backends.webgpu.tuning import tune
from tritune.backends.webgpu.tuning_file import load_tuning, save_tuning, tuning_path

ONE_ROW = linear_class(1, 64, 2)
SHORT = ["products, up to 64 rows", ONE_ROW, head_class(1)]


def distinct(start: str) -> list[tuple[int, ...]]:
    return sorted({choice for name, choices in CANDIDATES.items() if name.startswith(start) for choice in choices})


@pytest.fixture
def choosing(webgpu):
    """Sets the choices of the shared device; its own come back after the test."""
    before = webgpu.device.choices

    def choose(choices):
        webgpu.device.choices = choices
        return webgpu

    yield choose
    webgpu.device.choices = before


@pytest.fixture
def no_file(webgpu, monkeypatch, tmp_path):
    """A cache of the test's own, still empty."""
    monkeypatch.setenv("TRITUNE_CACHE", str(tmp_path))
    return tmp_path


def exact_linear(backend, rng, rows, inputs, outputs):
    """What a linear of integers gives, and what it should."""
    weight = rng.integers(-1, 2, (outputs, inputs)).astype(np.int8)
    codes = rng.integers(-128, 128, (rows, inputs)).astype(np.int8)
    buffers = (backend.upload(codes, "i8"), backend.upload(np.ones(rows)), backend.pack_ternary([(weight, 1.0)]))
    y = backend.empty((rows, outputs))
    batch = Case(rng, rows, 4, (4,), rank=1, pool=1).rows(backend)
    backend.linear(backend.empty((rows, inputs)), *buffers, y, batch)
    return backend.read(y), codes.astype(np.int64) @ weight.T.astype(np.int64)


@pytest.mark.parametrize("rows", [1, 5])
def test_choices_for_few_rows_give_the_same_integers(choosing, rng, rows):
    name = linear_class(rows, 76, 3)
    for choice in distinct("linear, 1 to 2" if rows == 1 else "linear, 3 to 16")[:: 2 if rows == 1 else 3]:
        found, expected = exact_linear(choosing({name: choice}), rng, rows, 192, 76)
        np.testing.assert_array_equal(found, expected, err_msg=str(choice))


@pytest.mark.parametrize("rows", [52, 70])
def test_every_tile_gives_the_same_integers(choosing, rng, rows):
    name = product_class(rows)
    for choice in CANDIDATES[name]:
        backend = choosing({name: choice})
        assert tuple(backend.plan_gemm(rows, 132, 100).tile)[:2] == (choice[0], choice[1])
        found, expected = exact_linear(backend, rng, rows, 100, 132)
        np.testing.assert_array_equal(found, expected, err_msg=str(choice))


@pytest.mark.parametrize("rows", [1, 5])
def test_every_choice_for_the_head_gives_the_same_logits(choosing, rng, rows):
    x, table = rng.normal(size=(rows, 88)).astype(np.float32), rng.normal(size=(75, 88)).astype(np.float32)
    for choice in CANDIDATES[head_class(rows)]:
        backend = choosing({head_class(rows): choice})
        out = backend.empty((rows, 75))
        backend.logits(backend.upload(x), backend.table(table, "f32"), out)
        np.testing.assert_allclose(backend.read(out), x @ table.T, rtol=2e-5, atol=2e-5, err_msg=str(choice))


def test_a_split_depth_is_chosen_for_the_workgroups_that_a_gpu_runs():
    from tritune.backends.webgpu.tiles import plan_product

    small, large = (plan_product(False, 32 << 10, 128, 2560, 6912, {"splits": (n,)}).splits for n in (16, 512))
    assert small < large


def test_a_run_chooses_candidates_and_a_new_device_takes_them(opened, no_file):
    backend = opened()
    told = []
    timings = tune(backend, names=SHORT, seconds=3, progress=told.append)
    assert told == timings
    assert [timing.name for timing in timings] == SHORT
    for timing in timings:
        assert backend.device.choices.get(timing.name) == timing.choice
        assert timing.choice is None or timing.choice in CANDIDATES[timing.name]
        assert 0 < timing.seconds <= timing.default_seconds
    assert list(no_file.rglob("*")) == []  # the caller keeps it
    choices = {name: CANDIDATES[name][1] for name in SHORT}
    save_tuning(backend.device.info.identity, choices)
    assert opened().device.choices == choices


def test_a_device_without_timestamps_is_timed_by_the_clock(webgpu, no_file):
    info = replace(webgpu.device.info, features=webgpu.device.info.features - {"timestamp-query"})
    backend = WebGPUBackend(info)
    try:
        [timing] = tune(backend, names=[ONE_ROW], seconds=1)
    finally:
        backend.close()
    assert timing.default_seconds > 0


def test_an_interrupted_run_changes_nothing(opened, no_file):
    backend = opened()
    backend.device.choices = {ONE_ROW: CANDIDATES[ONE_ROW][2]}

    def interrupt(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune(backend, names=SHORT, seconds=1, progress=interrupt)
    assert backend.device.choices == {ONE_ROW: CANDIDATES[ONE_ROW][2]}
    backend.synchronize()


def test_without_time_everything_keeps_its_default(opened, no_file):
    backend = opened()
    assert tune(backend, seconds=0) == []
    assert backend.device.choices == {}


def changed(**fields):
    return lambda text: json.dumps(json.loads(text) | fields)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda text: text[:-9], "not JSON"),
        (lambda _: "\xff\x00", "not JSON"),
        (lambda _: "[" * 60000, "not JSON"),
        (lambda _: " " * 70000, "more than"),
        (lambda _: "[]", "expected an object"),
        (changed(driver="older"), "another driver"),
        (changed(tritune="0.0.0"), "another tritune"),
        (changed(choices=[]), "expected choices"),
        (changed(choices={ONE_ROW: [128, 8, 1, 8, 10**9]}), "no such choice"),
        (changed(choices={ONE_ROW: "64"}), "no such choice"),
        (changed(choices={"attention": [1]}), "no such choice"),
    ],
)
def test_a_file_that_cannot_be_believed_is_ignored_with_a_word(change, told, webgpu, no_file):
    device = webgpu.device.info.identity
    path = save_tuning(device, {ONE_ROW: CANDIDATES[ONE_ROW][1]})
    path.write_text(change(path.read_text()), encoding="latin-1")
    tuning = load_tuning(device)
    assert (tuning.choices, tuning.path) == ({}, None)
    assert told in tuning.problem
    assert str(path) in tuning.problem


def test_a_damaged_file_is_told_when_the_device_is_opened(opened, webgpu, no_file):
    path = save_tuning(webgpu.device.info.identity, {})
    path.write_text("{")
    with pytest.warns(UserWarning, match="this tuning is ignored"):
        backend = opened()
    assert backend.device.choices == {}


def test_without_a_folder_for_caches_a_device_has_its_defaults(webgpu, monkeypatch, tmp_path):
    device = webgpu.device.info.identity
    (tmp_path / "file").touch()
    monkeypatch.setenv("TRITUNE_CACHE", str(tmp_path / "file"))
    assert load_tuning(device) == ({}, None, None)
    for name in ("TRITUNE_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", classmethod(no_home))
    assert load_tuning(device) == ({}, None, None)


def no_home(_):
    raise RuntimeError("Could not determine home directory.")


def test_another_driver_has_a_tuning_of_its_own(webgpu, no_file):
    device = webgpu.device.info.identity
    save_tuning(device, {ONE_ROW: CANDIDATES[ONE_ROW][1]})
    other = {**device, "driver": "newer"}
    assert load_tuning(other).choices == {}
    assert tuning_path(other).parent == tuning_path(device).parent
    assert tuning_path({**device, "name": "../../x"}).parent == tuning_path(device).parent
