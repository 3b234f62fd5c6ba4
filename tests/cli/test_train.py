"""``tritune train``: what it writes and says, what it refuses, and what Ctrl-C leaves."""

from __future__ import annotations

import json
import shlex
import signal
from pathlib import Path

import pytest

import tritune
from command_line import Cli, finish, start
from tiny_text import write_rows
from tritune.training import mean_loss


@pytest.fixture
def train(cli: Cli, tiny: Path, rows: Path, tmp_path: Path) -> Cli:
    """Two steps on the tiny model, unless other flags follow."""
    return lambda *more, **named: cli(
        "train", "--model", tiny, "--device", "numpy", "--data", rows, "--output", tmp_path / "out",
        "--max-steps", "2", "--rank", "4", *more, **named,
    )  # fmt: skip


def written(folder: Path) -> dict[str, object]:
    return json.loads((folder / "adapter_config.json").read_text())


def test_adapter_is_written_and_the_command_to_try_it_works(
    train: Cli, cli: Cli, tiny: Path, model: tritune.Model, tmp_path: Path
) -> None:
    result = train("--alpha", "8", "--target-modules", "q_proj,v_proj", "--lr", "1e-2")
    assert result.code == 0, result.err
    config = written(tmp_path / "out")
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (4, 8, ["q_proj", "v_proj"])
    assert tritune.Adapter.load(tmp_path / "out", model).num_parameters
    place, command = result.out.splitlines()
    assert place == f"adapter: {tmp_path / 'out'}"
    program, *arguments = shlex.split(command)
    assert program == "tritune"
    assert arguments[-2:] == ["--prompt", "hello 0"]
    assert cli(*arguments, "--max-tokens", "3").code == 0
    assert "trainable parameters" in result.err
    assert "I am fine." in result.err


def test_training_lowers_the_loss(train: Cli, model: tritune.Model, rows: Path, tmp_path: Path) -> None:
    train("--max-steps", "20", "--learning-rate", "2e-2", "--warmup", "0", "--schedule", "constant")
    fresh = tritune.Adapter.create(model, tritune.LoRAConfig(rank=4))
    trained = tritune.Adapter.load(tmp_path / "out", model)
    assert mean_loss(model, trained, rows) < 0.8 * mean_loss(model, fresh, rows)


def test_curves_go_to_a_tracker_and_into_a_picture(train: Cli, cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    result = train("--report-to", "tensorboard", "--log-every", "1")
    assert result.code == 0, result.err
    assert len(list((tmp_path / "out").glob("events.out.tfevents.*"))) == 1
    assert cli("plot", tmp_path / "out", "-o", tmp_path / "curves.svg").code == 0
    assert "found 'mlflow'" in train("--overwrite", "--report-to", "mlflow").error


def test_starts_from_an_adapter_and_keeps_its_settings(
    train: Cli, cli: Cli, tiny: Path, rows: Path, adapter: Path, tmp_path: Path
) -> None:
    assert "leave out rank" in train("--adapter", adapter, "--rank", str(tritune.LoRAConfig().rank)).error
    started = cli(
        "train", "-m", tiny, "--device", "cpu", "-d", rows, "-o", tmp_path / "more", "-a", adapter, "--max-steps", "1"
    )
    assert started.code == 0, started.err
    config = written(tmp_path / "more")
    assert (config["r"], config["lora_alpha"]) == (4, 8)


def test_auto_says_what_is_missing(
    cli: Cli, tiny: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tritune.cli.facts.list_adapters", list)
    monkeypatch.setattr("tritune.cli.facts.adapters_problem", lambda: "install a driver")
    monkeypatch.setattr("tritune.backends.webgpu.list_adapters", list)
    result = cli("train", "-m", tiny, "-d", rows, "-o", tmp_path / "out", "--max-steps", "1")
    assert result.code == 0
    assert "no GPU is used: there is no GPU for WebGPU (install a driver)" in result.err


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_slow_cpu_is_said_with_the_way_out(
    device: str, cli: Cli, tiny: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tritune.cli.facts.list_adapters", list)
    monkeypatch.setattr("tritune.backends.webgpu.list_adapters", list)
    for place in ("tritune.cli.facts", "tritune.backends.cpu"):
        monkeypatch.setattr(f"{place}.native_problem", lambda: "install a compiler")
    given = ["-d", rows, "-o", tmp_path / "out", "--max-steps", "1", "--device", device, "--threads", "2"]
    result = cli("train", "-m", tiny, *given)
    assert result.code == 0
    assert "the CPU computes through NumPy, slowly: install a compiler" in result.err


def test_nothing_that_is_there_is_lost(train: Cli, tmp_path: Path) -> None:
    assert train("--save-every", "1").code == 0
    assert (tmp_path / "out" / "checkpoint-1" / "adapter_config.json").is_file()
    before = (tmp_path / "out" / "adapter_model.safetensors").read_bytes()
    assert "--overwrite" in train("--seed", "7").error
    assert (tmp_path / "out" / "adapter_model.safetensors").read_bytes() == before
    assert train("--seed", "7", "--overwrite").code == 0
    assert (tmp_path / "out" / "adapter_model.safetensors").read_bytes() != before


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--rank", "abc"], ["--rank", "abc"]),
        (["--rank", "0"], ["rank", "0"]),
        (["--rnk", "4"], ["--rnk"]),
        (["--lr", "-1"], ["lr", "-1"]),
        (["--lr", "nan"], ["lr", "nan"]),
        (["--schedule", "square"], ["--schedule", "square"]),
        (["--dropout", "1"], ["dropout", "1"]),
        (["--layers", "0-"], ["--layers", "0-"]),
        (["--layers", "7"], ["layers", "7"]),
        (["--target-modules", "q_prj"], ["q_prj"]),
        (["--target-modules", ".*(q_proj"], ["regular expression"]),
        (["--start-layer", "9"], ["start_layer", "9"]),
        (["--model", "nowhere"], ["nowhere"]),
        (["--data", "nowhere.jsonl"], ["nowhere.jsonl"]),
        (["--device", "webgpu:no such gpu"], ["no such gpu"]),
        (["--device", "tpu"], ["tpu"]),
        (["--config", "nowhere.yaml"], ["nowhere.yaml"]),
        (["--max-seq-len", "3"], ["max_seq_len", "3"]),
        (["extra"], ["extra"]),
    ],
)
def test_mistakes_are_one_line_and_leave_nothing(
    train: Cli, flags: list[str], words: list[str], tmp_path: Path
) -> None:
    error = train(*flags).error
    assert all(word in error for word in words), error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["empty"]),
        ('{"instruction": "add"}\n', ["output"]),
        ('{"instruction": "add", "output": "5"}\n{"instruction": "add", "input": ""}\n', [":", "2", "output"]),
        ('{"messages": []}\n', ["line 1", "answer"]),
        ('{"messages": [\n', ["JSON"]),
        ('{"instruction": "add", "output": 5}\n', ["output"]),
    ],
)
def test_bad_rows_are_one_line_and_leave_nothing(
    train: Cli, rows: Path, text: str, words: list[str], tmp_path: Path
) -> None:
    rows.write_text(text)
    error = train().error
    assert str(rows) in error
    assert all(word in error for word in words), error
    assert not (tmp_path / "out").exists()


def test_data_is_required(cli: Cli) -> None:
    assert "--data" in cli("train").error


def test_output_that_cannot_be_is_one_line(train: Cli, rows: Path) -> None:
    assert "is a file" in train("--output", rows).error
    error = train("--output", rows / "below").error
    assert str(rows / "below") in error
    assert "Not a directory" in error


def wait_for_step(folder: Path, process: object) -> None:
    log = folder / "log.jsonl"
    while process.poll() is None:  # type: ignore[attr-defined]
        if log.exists() and '"event": "step"' in log.read_text():
            return
    raise AssertionError(finish(process))  # type: ignore[arg-type]


def test_ctrl_c_saves_and_says_so(tiny: Path, model: tritune.Model, tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = start(
        "train", "-m", tiny, "--device", "numpy", "-d", write_rows(tmp_path / "rows.jsonl"), "-o", out,
        "--max-steps", "100000", "--log-every", "1", "--warmup", "0",
    )  # fmt: skip
    wait_for_step(out, process)
    process.send_signal(signal.SIGINT)
    result = finish(process)
    assert result.code == 130
    assert result.out == ""
    assert "Traceback" not in result.err
    last = result.err.splitlines()[-1]
    assert last.startswith("stopped; the adapter after ")
    assert last.endswith(f"saved in {out}; go on with --resume auto")
    saved = tritune.Adapter.load(out, model)
    fresh = tritune.Adapter.create(model, tritune.LoRAConfig(), seed=42)
    assert (saved.parameters != fresh.parameters).any()


def test_ctrl_c_before_the_first_step_says_that_nothing_is_saved(
    train: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tritune, "load", interrupted)
    result = train()
    assert (result.code, result.out) == (130, "")
    assert "nothing is saved" in result.err
    assert not (tmp_path / "out").exists()


def test_pairs_are_trained_with_dpo(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"hello {n}", "chosen": " I am fine.", "rejected": " It's a story."} for n in range(4)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    flags = (
        "-m",
        tiny,
        "-d",
        tmp_path / "pairs.jsonl",
        "-o",
        tmp_path / "out",
        "--device",
        "numpy",
        "--max-steps",
        "2",
    )
    assert "method dpo" in cli("train", *flags).error
    result = cli("train", *flags, "--method", "dpo", "--dpo-beta", "0.2", "--max-steps", "2", "--log-every", "1")
    assert result.code == 0, result.err
    assert "accuracy 0." in result.err
    assert (tmp_path / "out" / "adapter_model.safetensors").is_file()
