"""Saving is atomic: at every moment the directory loads as the old adapter, as the new one, or not at all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tiny_adapters import Base, random_adapter, same, tiny_base
from tritune.errors import AdapterError
from tritune.lora import Adapter, LoRAConfig

BASE = tiny_base()
OLD = random_adapter(BASE, LoRAConfig(rank=2, alpha=8), seed=1)
NEW = {
    "the same settings": random_adapter(BASE, LoRAConfig(rank=2, alpha=8), seed=2),
    # Both could load with the other's config: only the scale would be wrong.
    "another alpha": random_adapter(BASE, LoRAConfig(rank=2, alpha=3), seed=2),
    "another rank": random_adapter(BASE, LoRAConfig(rank=4, alpha=8, target_modules=["q_proj"]), seed=2),
}
FILES = ["adapter_config.json", "adapter_model.safetensors"]


def names(path: Path) -> list[str]:
    return sorted(entry.name for entry in path.iterdir())


@pytest.mark.parametrize("kind", NEW)
def test_an_adapter_is_replaced_and_nothing_else_is_touched(kind: str, tmp_path: Path) -> None:
    OLD.save(tmp_path)
    (tmp_path / "README.md").write_text("notes")
    NEW[kind].save(str(tmp_path))
    assert same(Adapter.load(tmp_path, BASE), NEW[kind])
    assert names(tmp_path) == ["README.md", *FILES]


@pytest.mark.parametrize("kind", NEW)
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize(("owner", "call"), [(os, "fsync"), (Path, "replace")])
def test_an_error_at_any_step_leaves_an_adapter(
    kind: str, error: BaseException, owner: object, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, failed = getattr(owner, call), 0
    for fail_at in range(1, 9):
        steps = iter(range(1, 100))

        def fail(*arguments: object, steps: Iterator[int] = steps, fail_at: int = fail_at) -> object:
            if next(steps) == fail_at:
                raise error
            return original(*arguments)

        OLD.save(tmp_path)
        wanted = [NEW[kind]]
        with monkeypatch.context() as patch:
            patch.setattr(owner, call, fail)
            try:
                NEW[kind].save(tmp_path)
            except AdapterError as caught:
                assert str(caught) == f"{tmp_path}: the adapter cannot be saved: No space left on device"
                wanted, failed = [OLD], failed + 1
            except KeyboardInterrupt:  # before the last rename or after it
                wanted, failed = [OLD, NEW[kind]], failed + 1
        assert any(same(Adapter.load(tmp_path, BASE), adapter) for adapter in wanted), fail_at
        assert names(tmp_path) == FILES
    assert failed >= 1


KILL = """
import os, sys
from pathlib import Path
sys.path[:0] = {paths!r}
from test_peft_save import BASE, NEW, OLD, Adapter, AdapterError, same

STEPS = ("open", "os.rename", "os.link", "os.remove", "os.mkdir")


def save_until(step, adapter, path):
    count = 0

    def watch(event, arguments):
        nonlocal count
        if event in STEPS and str(root) in str(arguments[0]):
            count += 1
            if count == step:
                os._exit(9)

    child = os.fork()
    if child == 0:
        sys.addaudithook(watch)
        adapter.save(path)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0


def loaded(path):
    try:
        return Adapter.load(path, BASE)
    except AdapterError:
        return None


root = Path({root!r})
for kind, new in NEW.items():
    for step in range(1, 100):
        fresh, used = root / f"fresh {{kind}} {{step}}", root / f"used {{kind}} {{step}}"
        OLD.save(used)
        killed = save_until(step, new, fresh), save_until(step, new, used)
        one, two = loaded(fresh), loaded(used)
        assert one is None or same(one, new), (kind, step)
        assert two is not None and (same(two, OLD) or same(two, new)), (kind, step)
        assert any(killed) or (one is not None and same(two, new)), (kind, step)
        for path in (fresh, used):
            new.save(path)  # the next save puts all in order
            assert same(Adapter.load(path, BASE), new), (kind, step)
            assert sorted(p.name for p in path.iterdir()) == ["adapter_config.json", "adapter_model.safetensors"]
        if not any(killed):
            print(kind, step)
            break
    else:
        raise SystemExit("never finished")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_killed_at_any_step(tmp_path: Path) -> None:
    paths = [str(Path(__file__).parent), *sys.path]
    script = KILL.format(paths=paths, root=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    # Several steps were tried for each kind of change.
    assert [int(line.rpartition(" ")[2]) > 5 for line in done.stdout.splitlines()] == [True] * len(NEW), done.stdout


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_not_saved(value: float, tmp_path: Path) -> None:
    OLD.save(tmp_path / "old")
    bad = OLD.copy()
    bad.layers[1].projections["v_proj"].b[2, 1] = value
    for path in (tmp_path / "old", tmp_path / "new"):
        with pytest.raises(
            AdapterError, match=r"not saved: tensor .*1\.self_attn\.v_proj\.lora_B\.weight holds a value"
        ):
            bad.save(path)
    assert same(Adapter.load(tmp_path / "old", BASE), OLD)
    assert not (tmp_path / "new").exists()


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(AdapterError, match=r"file: cannot save an adapter there: it is a file; expected a directory"):
        OLD.save(tmp_path / "file")
    with pytest.raises(AdapterError, match=r"file/below: the adapter cannot be saved: "):
        OLD.save(tmp_path / "file" / "below")
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(AdapterError, match="the adapter cannot be saved: File name too long"):
        OLD.save("x" * 5000)


def test_any_name_of_a_base_can_be_written(tmp_path: Path) -> None:
    base = Base(BASE.config, "é\udcff\n/base")
    Adapter.create(base, LoRAConfig(rank=2)).save(tmp_path)
    assert Adapter.load(tmp_path, base).base_model == base.name


def test_a_config_without_weights_never_becomes_half_of_an_adapter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    OLD.save(tmp_path)
    (tmp_path / "adapter_model.safetensors").unlink()
    original, calls = Path.replace, 0

    def fail(source: Path, target: Path) -> Path:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt
        return original(source, target)

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(KeyboardInterrupt):
        NEW["another alpha"].save(tmp_path)
    with pytest.raises(AdapterError):
        Adapter.load(tmp_path, BASE)
