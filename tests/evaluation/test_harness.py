"""lm-evaluation-harness over a task with local data: its numbers are those of our own evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import lm_eval
import pytest
from lm_eval.tasks import TaskManager

from tiny_chat import strong_adapter
from tritune import Model, evaluate
from tritune.evaluation.harness import TrituneLM

ROWS = [{"question": f"hello {n}", "choices": ["fine", "I am not fine", "story"], "answer": n % 3} for n in range(6)]
TASK = """task: local_choices
dataset_path: json
dataset_kwargs: {{data_files: {{test: "{path}"}}, cache_dir: "{cache}"}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{{{question}}}}\\nAnswer:"
doc_to_choice: "{{{{choices}}}}"
doc_to_target: answer
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""


@pytest.mark.filterwarnings("ignore")
def test_a_task_with_local_data(numpy_model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    (tmp_path / "local.yaml").write_text(TASK.format(path=tmp_path / "rows.jsonl", cache=tmp_path / "cache"))
    adapter = strong_adapter(numpy_model, 1, 0.5)
    manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
    found = lm_eval.simple_evaluate(
        TrituneLM(numpy_model, adapter), tasks=["local_choices"], task_manager=manager, bootstrap_iters=0
    )
    assert found is not None
    ours = evaluate(numpy_model, ROWS, {"mine": adapter}).results["mine"]
    theirs = found["results"]["local_choices"]
    assert (theirs["acc,none"], theirs["acc_norm,none"]) == (ours["acc"], ours["acc_norm"])


def test_rolling_and_generation(numpy_model: Model) -> None:
    model = TrituneLM(numpy_model)
    text = "Once upon a time there were 123 cats. " * 60
    (whole,) = model.loglikelihood_rolling([SimpleNamespace(args=(text,))])
    ids = model.tok_encode(text, add_special_tokens=False)
    assert len(ids) > numpy_model.context_length
    parts = model._score([([model.prefix_token_id], ids[:1023])])
    assert whole < parts[0].log_likelihood < 0
    (answer,) = model.generate_until([SimpleNamespace(args=("hello", {"until": ["\n"], "max_gen_toks": 5}))])
    assert answer == numpy_model.generate("hello", max_tokens=5, stop=["\n"], raw=True)
