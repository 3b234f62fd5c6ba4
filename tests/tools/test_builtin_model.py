"""The built-in model's recipe: its student is transformers' BitNet, and an epoch holds every document once."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

RECIPE = Path(__file__).parents[2] / "tools" / "builtin_model"


@pytest.fixture(autouse=True)
def recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scripts import each other by their bare names."""
    monkeypatch.syspath_prepend(str(RECIPE))


@pytest.fixture
def one_thread() -> Iterator[None]:
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
def test_the_student_is_transformers_model(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import save_file
    from student import Shape, Student, export, hf_config
    from transformers import AutoModelForCausalLM

    torch.manual_seed(1)
    shape = Shape(vocab=96, hidden=64, ffn=96, layers=2, heads=4, kv_heads=2, head_dim=16, context=32)
    student = Student(shape)
    with torch.no_grad():
        for weight in (student.emb, student.fn, student.n1, student.na, student.n2, student.nf):
            weight.add_(0.1 * torch.randn_like(weight))
            weight.copy_(weight.bfloat16())  # as it will be in the file
    save_file(export(student), tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(hf_config(shape)))
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    torch.nn.Module.float(reference)
    ids = torch.randint(0, shape.vocab, (32, 4))
    with torch.no_grad(), torch.compiler.set_stance("force_eager"):
        gaps = (student(ids, dtype=torch.float32) - reference(ids).logits).abs().amax((1, 2))
    # A sum that is rounded to another int8 code moves all later logits of its row a little; most rows have none.
    assert gaps.median() < 1e-4
    assert gaps.max() < 0.1


def test_every_document_is_packed_once_and_whole() -> None:
    from pack import ROW, fill

    draw = np.random.default_rng(0)
    lengths = np.concatenate([draw.integers(20, 400, 300), [ROW, ROW - 10]])
    rows = fill(lengths, draw.permutation(len(lengths)))
    assert sorted(i for row in rows for i in row) == list(range(len(lengths)))
    filled = [sum(lengths[i] for i in row) for row in rows]
    assert max(filled) <= ROW
    assert sum(filled) / (len(rows) * ROW) > 0.95


def test_sums_are_right() -> None:
    import re

    from facts import fact

    r = random.Random(0)
    sums = [re.match(r"(\d+) (\+|plus|-|minus) (\d+) (?:=|is) (\d+)\.?$", fact(r)[1]) for _ in range(2000)]
    found = [match.groups() for match in sums if match]
    assert len(found) > 100
    for x, sign, y, result in found:
        assert int(result) == (int(x) + int(y) if sign in ("+", "plus") else int(x) - int(y))
