"""The flags of ``train`` and the file of ``-c``: one source of defaults, every name, flags win, mistakes are named."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest

import tritune
from command_line import Cli
from tritune import LoRAConfig, TrainConfig
from tritune.cli.settings import LORA, TRAIN
from tritune.cli.train import train as command

# Another value for every setting, as a flag's text.
OTHER = {
    "rank": ("3", 3),
    "alpha": ("5.5", 5.5),
    "target_modules": ("q_proj, up_proj", ("q_proj", "up_proj")),
    "dropout": ("0.25", 0.25),
    "rslora": (None, True),
    "layers": ("0-2,5", (0, 1, 2, 5)),
    "method": ("dpo", "dpo"),
    "dpo_beta": ("0.3", 0.3),
    "dpo_label_smoothing": ("0.2", 0.2),
    "lr": ("1e-3", 1e-3),
    "epochs": ("2.5", 2.5),
    "max_steps": ("7", 7),
    "batch_tokens": ("99", 99),
    "grad_accumulation": ("4", 4),
    "max_seq_len": ("77", 77),
    "schedule": ("linear", "linear"),
    "warmup": ("12", 12.0),
    "weight_decay": ("0.5", 0.5),
    "clip": ("2", 2.0),
    "beta1": ("0.8", 0.8),
    "beta2": ("0.95", 0.95),
    "eps": ("1e-6", 1e-6),
    "packing": (None, False),
    "prompt_style": ("alpaca", "alpaca"),
    "system": ("be kind", "be kind"),
    "train_on": ("last", "last"),
    "seed": ("9", 9),
    "log_every": ("3", 3),
    "save_every": ("4", 4),
    "rank_pattern": ("q_proj=8", {"q_proj": 8}),
    "alpha_pattern": ("layers.0.mlp.up_proj=2.5", {"layers.0.mlp.up_proj": 2.5}),
    "micro_batch_tokens": ("32", 32),
    "keep": ("1", 1),
    "eval_every": ("6", 6),
    "eval_split": ("0.1", 0.1),
    "patience": ("2", 2),
    "sample_prompts": ("hello", ("hello",)),
    "sample_tokens": ("5", 5),
    "lora_plus_ratio": ("16", 16.0),
    "neftune_alpha": ("5", 5.0),
    "start_layer": ("1", 1),
    "recompute": (None, False),
}
FLAGS = [(setting.field, flag) for setting in (*LORA, *TRAIN) for flag in setting.flags]
Parse = Callable[..., dict[str, Any]]


@pytest.fixture
def parse(cli: Cli, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Parse:
    """What the library is called with for some flags, by field."""

    def run(*flags: str | Path) -> dict[str, Any]:
        calls: list[dict[str, Any]] = []

        def fake_train(model: Any, rows: Any, lora: LoRAConfig, config: TrainConfig, **rest: Any) -> None:
            calls.append({**vars(lora), **vars(config), **rest, "loaded": model, "rows": rows})

        monkeypatch.setattr(tritune, "train", fake_train)
        monkeypatch.setattr(tritune, "load", lambda *loaded, **more: (loaded, more))
        result = cli("train", "--data", rows, "--output", tmp_path / "out", *flags)
        assert result.code == 0, result.err
        return calls[0]

    return run


def test_every_setting_has_a_flag() -> None:
    named = {setting.field for setting in (*LORA, *TRAIN)}
    every = {field.name for config in (LoRAConfig, TrainConfig) for field in fields(config)}
    assert every == named


def test_defaults_are_the_dataclasses(parse: Parse) -> None:
    called = parse()
    expected = {**vars(LoRAConfig()), **vars(TrainConfig())}
    assert {name: called[name] for name in expected} == expected


def test_help_shows_the_dataclasses_defaults(cli: Cli) -> None:
    shown = " ".join(cli("train", "--help").out.split())
    expected = {**vars(LoRAConfig()), **vars(TrainConfig())}
    for setting in (*LORA, *TRAIN):
        default = expected[setting.field]
        if default == "" or isinstance(default, (dict, tuple)):  # those may be given repeatedly, and begin with none
            continue
        if isinstance(default, bool):
            positive = setting.flags[0].split("/")[0].removeprefix("--")
            default = positive if default else f"no-{positive}"
        text = "all" if default is None else str(default)
        assert re.search(rf"{re.escape(setting.help.split('  ')[0])}\s+\[default: {re.escape(text)}\]", shown), setting


@pytest.mark.parametrize(("field", "flag"), FLAGS, ids=[flag for _, flag in FLAGS])
def test_every_flag_sets_its_field(field: str, flag: str, parse: Parse) -> None:
    text, value = OTHER[field]
    if text is None:
        on, off = flag.split("/")
        assert [parse(on)[field], parse(off)[field]] == [True, False]
    else:
        assert parse(flag, text)[field] == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("all-linear", "all-linear"),
        ("q_proj", ("q_proj",)),
        ("model.layers.0.mlp.up_proj,v_proj", ("model.layers.0.mlp.up_proj", "v_proj")),
        (r".*\.(q|v)_proj", r".*\.(q|v)_proj"),
        (r"model\.layers\.\d{1,2}\..*", r"model\.layers\.\d{1,2}\..*"),
    ],
)
def test_target_modules_are_names_or_an_expression(text: str, value: object, parse: Parse) -> None:
    assert parse("--target-modules", text)["target_modules"] == value


def test_plain_flags_reach_the_library(parse: Parse, rows: Path, tmp_path: Path) -> None:
    called = parse("-m", "org/name", "--device", "webgpu:1", "--chat-template", "chatml", "--threads", "3")
    assert called["loaded"] == (
        ("org/name", "webgpu:1"),
        {"chat_template": "chatml", "context": None, "threads": 3, "head": "stored"},
    )
    assert called["rows"].named == [(str(rows), None)]
    assert called["output"] == tmp_path / "out"


def test_flags_win_over_the_file(parse: Parse, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "rank: 3\nlr: 2e-4\nlora-alpha: 7\ntarget_modules: [q_proj]\nrslora: true\nmax_steps:\nmodel: org/a\n"
        "lr_scheduler_type: linear\nrank_pattern: {q_proj: 2}\nlayers: 0-1\nrecompute: false\ndevice: cpu\n"
        "threads: 5\n"
    )
    called = parse("-c", file, "--rank", "5", "--no-rslora", "--device", "auto")
    assert (called["rank"], called["lr"], called["alpha"], called["target_modules"]) == (5, 2e-4, 7.0, ("q_proj",))
    assert (called["rslora"], called["max_steps"], called["schedule"], called["layers"]) == (False, 0, "linear", (0, 1))
    assert (called["rank_pattern"], called["recompute"]) == ({"q_proj": 2}, False)
    assert called["loaded"][0] == ("org/a", "auto")
    assert called["loaded"][1]["threads"] == 5


def test_a_flag_that_equals_the_default_wins_too(parse: Parse, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("rank: 3\n")
    assert parse("-c", file, "--rank", str(LoRAConfig().rank))["rank"] == LoRAConfig().rank


def test_data_and_output_may_stand_in_the_file(cli: Cli, tiny: Path, rows: Path, tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(f"model: {tiny}\ndata: {rows}\noutput: {tmp_path / 'o'}\nmax_steps: 1\ndevice: numpy\n")
    assert cli("train", "-c", file).code == 0
    assert (tmp_path / "o" / "adapter_config.json").is_file()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rnk: 4\n", ["rnk"]),
        ("rank: abc\n", ["rank", "integer", "abc"]),
        ("rank: true\n", ["rank", "integer"]),
        ("rank: 2.5\n", ["rank", "integer", "2.5"]),
        ("rank: 0\n", ["rank", "0"]),
        ("lr: fast\n", ["lr", "number", "fast"]),
        ("lr: [1]\n", ["lr", "number"]),
        ("rslora: 1\n", ["rslora", "true or false"]),
        ("schedule: square\n", ["schedule", "square"]),
        ("target_modules: 3\n", ["target_modules", "3"]),
        ("target_modules: [q_proj, 3]\n", ["target_modules"]),
        ("layers: all\n", ["layers", "all"]),
        ("layers: [a]\n", ["layers"]),
        ("rank_pattern: [q_proj]\n", ["rank_pattern", "mapping"]),
        ("rank_pattern: {q_proj: x}\n", ["rank_pattern"]),
        ("model: 3\n", ["model", "text"]),
        ("rank: 4\nlora_r: 5\n", ["rank", "lora_r"]),
        ("rank: 4\nrank: 5\n", ["rank", "twice", "line 2"]),
        ("rank: [4\n", ["YAML", "line 2"]),
        ("- rank\n", ["expected lines"]),
        ("", ["expected lines"]),
        ("a: !!python/object/apply:os.system ['true']\n", ["YAML"]),
        ("{" * 5000, ["YAML"]),
    ],
)
def test_mistakes_in_the_file_name_it_and_the_key(
    text: str, words: list[str], cli: Cli, rows: Path, tmp_path: Path
) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text)
    error = cli("train", "-d", rows, "-c", file).error
    if "rank: 0" not in text and "square" not in text:  # what the dataclass refuses carries its own name
        assert str(file) in error
    assert all(word in error for word in words), error


def test_a_binary_file_is_refused(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_bytes(b"\x00\xff\xfe rank")
    assert str(file) in cli("train", "-c", file).error


def test_no_flag_has_two_meanings() -> None:
    flags = [flag for parameter in command.params if isinstance(parameter, click.Option) for flag in parameter.opts]
    assert len(flags) == len(set(flags))
