"""``tritune generate``: what is written, where, and how it ends."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

import tritune
from command_line import Cli, finish, start


@pytest.fixture
def generate(cli: Cli, tiny: Path) -> Cli:
    """Greedy answers of the tiny model, unless other flags follow."""
    return lambda *more, **named: cli("generate", "--model", tiny, "--device", "numpy", "--temp", "0", *more, **named)


def with_generation_config(tiny: Path, target: Path, **config: object) -> Path:
    shutil.copytree(tiny, target)
    (target / "generation_config.json").write_text(json.dumps(config))
    return target


def test_text_is_that_of_the_api_and_alone_on_stdout(generate: Cli, model: tritune.Model) -> None:
    result = generate("--prompt", "hello", "--max-tokens", "12", "--ignore-eos")
    assert result.code == 0
    assert result.err == ""
    assert result.out == model.generate("hello", max_tokens=12, ignore_eos=True) + "\n"


def test_prompt_from_stdin_without_its_last_line_break(generate: Cli) -> None:
    piped = generate("--prompt", "-", "--max-tokens", "8", stdin="Grüße\n東京\n".encode())
    given = generate("--prompt", "Grüße\n東京", "--max-tokens", "8")
    assert piped == given
    assert piped.out


def test_adapter_changes_the_answer(generate: Cli, model: tritune.Model, adapter: Path) -> None:
    result = generate("--prompt", "hello", "--adapter", adapter, "--max-tokens", "12", "--ignore-eos")
    loaded = tritune.Adapter.load(adapter, model)
    assert result.out == model.generate("hello", loaded, max_tokens=12, ignore_eos=True) + "\n"
    assert result.out != generate("--prompt", "hello", "--max-tokens", "12", "--ignore-eos").out


def test_system_message_and_raw(generate: Cli, model: tritune.Model) -> None:
    messages = [{"role": "system", "content": "be short"}, {"role": "user", "content": "hello"}]
    result = generate("-p", "hello", "--system", "be short", "--max-new-tokens", "8", "--ignore-eos")
    assert result.out == model.generate(messages, max_tokens=8, ignore_eos=True) + "\n"
    raw = generate("-p", "hello", "--raw", "--max-tokens", "8", "--ignore-eos")
    assert raw.out == model.generate("hello", raw=True, max_tokens=8, ignore_eos=True) + "\n"
    assert "--system" in generate("-p", "hello", "--raw", "--system", "be short").error


def test_every_stop_string_counts(generate: Cli, model: tritune.Model) -> None:
    whole = model.generate("hello", max_tokens=16, ignore_eos=True)
    early, late = whole[4:6], whole[9:11]
    for given in ([late], [late, early], [early, late]):
        stops = [word for stop in given for word in ("--stop", stop)]
        result = generate("-p", "hello", "--max-tokens", "16", "--ignore-eos", *stops)
        assert result.out == whole[: min(whole.index(stop) for stop in given)] + "\n"


def test_every_eos_id_of_generation_config_stops(cli: Cli, tiny: Path, model: tritune.Model, tmp_path: Path) -> None:
    stream = model.stream("hello", max_tokens=12, ignore_eos=True)
    stream.read()
    second, third = stream.token_ids[3], stream.token_ids[6]
    ends = min(stream.token_ids.index(token) for token in (second, third))
    changed = with_generation_config(tiny, tmp_path / "m", eos_token_id=[1, third, second])
    result = cli("generate", "-m", changed, "--device", "numpy", "-p", "hello", "--max-tokens", "12", "-v")
    assert f"answer: {ends + 1} tokens" in result.err
    assert "finish reason stop" in result.err
    ignoring = cli(
        "generate", "-m", changed, "--device", "numpy", "-p", "hello", "--max-tokens", "12", "-v", "--ignore-eos"
    )
    assert "answer: 12 tokens" in ignoring.err
    assert "finish reason length" in ignoring.err


def test_defaults_are_the_models_own(cli: Cli, tiny: Path, tmp_path: Path) -> None:
    changed = with_generation_config(tiny, tmp_path / "m", do_sample=True, temperature=5.0, max_new_tokens=7)
    own = ["generate", "-m", changed, "--device", "numpy", "-p", "hello", "--ignore-eos", "-v"]
    sampled = [cli(*own, "--seed", seed) for seed in ("1", "1", "2")]
    assert all("answer: 7 tokens" in result.err for result in sampled)
    assert sampled[0].out == sampled[1].out != sampled[2].out
    hot = cli(*own, "--seed", "1", "--temperature", "5", "--max-tokens", "7")
    assert hot.out == sampled[0].out
    assert cli(*own, "--temp", "0", "--seed", "1").out == cli(*own, "--temp", "0", "--seed", "2").out


def test_seed_is_drawn_when_none_is_given(cli: Cli, tiny: Path) -> None:
    own = ["generate", "-m", tiny, "--device", "numpy", "-p", "hello", "--max-tokens", "1", "-v"]
    seeds = {cli(*own).err.rpartition("seed ")[2] for _ in range(3)}
    assert len(seeds) == 3


def test_statistics_go_to_stderr(generate: Cli, model: tritune.Model) -> None:
    result = generate("-p", "hello", "--max-tokens", "5", "--ignore-eos", "--verbose")
    assert f"prompt: {len(model.encode_prompt('hello'))} tokens" in result.err
    assert "NumPy" in result.err
    assert "tokens/s" in result.err


def test_flags_that_change_nothing_are_told(generate: Cli) -> None:
    assert "--top-p" in generate("-p", "hello", "--max-tokens", "1", "--top-p", "0.9").err
    assert generate("-p", "hello", "--max-tokens", "1", "--top-p", "0.9", "--temp", "1").err == ""


def test_too_long_names_both_numbers(generate: Cli, model: tritune.Model) -> None:
    length = len(model.encode_prompt("hello"))
    error = generate("-p", "hello", "--max-tokens", "1000").error
    assert str(length) in error
    assert "1000" in error
    assert "256" in error
    small = generate("-p", "hello", "--max-tokens", "10", "--context", str(length + 3)).error
    assert str(length) in small
    assert "10 new tokens" in small
    assert str(length + 3) in small


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--temp", "-1"], "temperature"),
        (["--top-p", "2"], "top_p"),
        (["--max-tokens", "0"], "max_tokens"),
        (["--max-tokens", "many"], "--max-tokens"),
        (["--seed", "-1"], "seed"),
        (["--chat-template", "nowhere.jinja"], "nowhere.jinja"),
        (["--adapter", "nowhere"], "nowhere"),
        (["--stop", ""], "stop"),
    ],
)
def test_bad_values_are_one_line(generate: Cli, flags: list[str], words: str) -> None:
    result = generate("-p", "hello", *flags)
    assert words in result.error
    assert result.code == 2


def test_bytes_that_are_no_text_are_refused(generate: Cli) -> None:
    assert "UTF-8" in generate("-p", "-", stdin=b"\xff\xfe").error
    assert "UTF-8" in generate("-p", "caf\udce9").error


def test_reader_that_leaves_is_no_traceback(tiny: Path) -> None:
    process = start("generate", "-m", tiny, "--device", "numpy", "-p", "hello", "--max-tokens", "200", "--ignore-eos")
    assert process.stdout is not None
    process.stdout.close()
    process.stdout = subprocess.DEVNULL  # type: ignore[assignment]
    assert process.stderr is not None
    assert "Traceback" not in process.stderr.read()
    assert process.wait(60) == 1
    process.stderr.close()
    assert process.stdin is not None
    process.stdin.close()


def test_streams_while_it_generates(tiny: Path) -> None:
    """The first piece arrives long before the last: each is flushed."""
    process = start("generate", "-m", tiny, "--device", "numpy", "-p", "hello", "--max-tokens", "200", "--ignore-eos")
    assert process.stdout is not None
    assert process.stdout.read(1)
    assert process.poll() is None
    assert finish(process).code == 0


def test_profile_goes_to_stderr(tiny: Path, webgpu: object) -> None:
    flags = ("--prompt", "hello", "--max-tokens", "4", "--ignore-eos", "--temp", "0", "--profile")
    result = finish(start("generate", "--model", tiny, "--device", "webgpu", *flags))
    assert result.code == 0, result.err
    assert result.out == tritune.load(tiny, "numpy").generate("hello", max_tokens=4, ignore_eos=True) + "\n"
    lines = result.err.splitlines()
    assert lines[0].split() == ["op", "calls", "ms", "%", "µs/call", "GB/s", "GFLOP/s"]
    assert any(line.startswith("linear ") for line in lines)


def test_profile_of_a_device_that_cannot_tell_is_refused(generate: Cli) -> None:
    result = generate("--prompt", "hello", "--max-tokens", "2", "--profile")
    assert (result.code, result.out) == (3, "")
    assert "no profile" in result.err
