"""DPO equals TRL's sigmoid loss, computed here in float32 over peft and transformers: loss, logs, every gradient.

The loss is written down as in trl/trainer/dpo_trainer.py (``loss_type="sigmoid"``; label smoothing as in TRL 0.x).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import logsigmoid

from oracles.harness import Example, Floats, Gradients, Ours, close_gradients, example, random_adapter
from oracles.reference import Reference, identity, rounding, trainable
from tritune.backends.base import Backend
from tritune.data import Example as DataExample
from tritune.data import PreferenceExample, pack
from tritune.lora import Adapter, LoRAConfig
from tritune.training.dpo import PreferenceObjective

LORA = LoRAConfig(rank=4, alpha=8)


def pair(vocab: int, prompt: int, chosen: int, rejected: int, seed: int) -> tuple[Example, Example]:
    """Two answers to one prompt, all of each trained."""
    begin = example(vocab, prompt, seed).ids
    endings = (example(vocab, length, 50 + 2 * seed + side).ids for side, length in enumerate((chosen, rejected)))
    better, worse = (Example(begin + ids, np.arange(prompt + len(ids)) >= prompt) for ids in endings)
    return better, worse


def packed(pairs: Sequence[tuple[Example, Example]]) -> Any:
    made = [[DataExample(np.array(one.ids, np.int32), one.trained) for one in both] for both in pairs]
    return pack([PreferenceExample(*both) for both in made])


def log_probability(model: Any, item: Example) -> Any:
    """Of the trained tokens of a sequence."""
    logp = model(input_ids=torch.tensor([item.ids])).logits[0, :-1].log_softmax(-1)
    each = logp.gather(1, torch.tensor(item.ids[1:])[:, None])[:, 0]
    return each[torch.tensor(item.trained[1:])].sum()


def trl(
    reference: Reference,
    adapter: Adapter,
    start: Adapter | None,
    pairs: Sequence[tuple[Example, Example]],
    beta: float,
    smoothing: float,
) -> tuple[float, dict[str, float], Gradients]:
    policy = reference.with_adapter(adapter)
    frozen = reference.model if start is None else reference.with_adapter(start)
    losses, chosen_rewards, rejected_rewards = [], [], []
    with rounding(identity):
        for chosen, rejected in pairs:
            with torch.no_grad():
                ref_chosen, ref_rejected = log_probability(frozen, chosen), log_probability(frozen, rejected)
            chosen_logps, rejected_logps = log_probability(policy, chosen), log_probability(policy, rejected)
            logits = (chosen_logps - rejected_logps) - (ref_chosen - ref_rejected)
            losses.append(-logsigmoid(beta * logits) * (1 - smoothing) - logsigmoid(-beta * logits) * smoothing)
            chosen_rewards.append(float((beta * (chosen_logps - ref_chosen)).detach()))
            rejected_rewards.append(float((beta * (rejected_logps - ref_rejected)).detach()))
        loss = torch.stack(losses).mean()
        loss.backward()
    wins = [better > worse for better, worse in zip(chosen_rewards, rejected_rewards, strict=True)]
    logs = {
        "rewards/chosen": float(np.mean(chosen_rewards)),
        "rewards/rejected": float(np.mean(rejected_rewards)),
        "rewards/accuracies": float(np.mean(wins)),
        "rewards/margins": float(np.mean(chosen_rewards) - np.mean(rejected_rewards)),
    }
    return float(loss.detach()), logs, {name: p.grad.numpy() for name, p in trainable(policy).items()}


@pytest.mark.parametrize(("smoothing", "from_adapter"), [(0.0, False), (0.1, True)])
def test_loss_logs_and_gradients(smoothing: float, from_adapter: bool, backend: Backend, make) -> None:
    directory, reference = make(hidden=32)
    ours = Ours(backend, directory, "float")
    adapter = random_adapter(ours.config, LORA, b_std=0.1)
    start = random_adapter(ours.config, LORA, seed=3, b_std=0.1) if from_adapter else None
    vocab, beta = ours.config.vocab_size, 0.4
    pairs = [pair(vocab, 5, 7, 4, 1), pair(vocab, 3, 2, 9, 2), pair(vocab, 8, 6, 6, 3)]
    expected, logs, gradients = trl(reference, adapter, start, pairs, beta, smoothing)
    batch = packed(pairs)

    state = ours.training(adapter, len(batch.tokens) + 3)
    objective = PreferenceObjective(state, None if start is None else ours.pool(start), beta, smoothing)
    objective.forward_backward(batch, update=False)
    loss, count, sums = ours.sums(state, adapter)
    assert count == 3
    assert loss / count == pytest.approx(expected, abs=1e-4)
    close_gradients({name: value / count for name, value in sums.items()}, gradients)
    metrics = objective.take_metrics()
    assert {name: metrics[name] for name in logs} == pytest.approx(logs, abs=1e-3)

    state.read_loss()
    assert objective.forward_loss(batch) == 3
    assert state.read_loss() == (pytest.approx(3 * expected, abs=3e-4), 3)


def test_a_fresh_adapter_starts_at_zero_rewards(backend: Backend, make) -> None:
    """With the rounding on, too: model and reference then are the same numbers, not nearly the same."""
    directory, _ = make(hidden=32)
    ours = Ours(backend, directory)
    adapter = random_adapter(ours.config, LORA, b_std=0.0)
    batch = packed([pair(ours.config.vocab_size, 5, 7, 4, 1)])
    state = ours.training(adapter, len(batch.tokens))
    objective = PreferenceObjective(state, None, 0.1)
    objective.forward_backward(batch, update=False)
    metrics = objective.take_metrics()
    assert metrics["rewards/chosen"] == metrics["rewards/rejected"] == 0
    assert ours.sums(state, adapter)[0] == pytest.approx(np.log(2), rel=1e-6)


def test_accumulated_pairs_equal_one_batch(cpu: Any, make) -> None:
    """Every pair weighs the same, however many tokens its answers have."""
    directory, _ = make(hidden=32)
    ours = Ours(cpu(), directory, "float")
    adapter = random_adapter(ours.config, LORA, b_std=0.1)
    vocab = ours.config.vocab_size
    pairs = [pair(vocab, 5, 30, 24, 1), pair(vocab, 3, 2, 1, 2), pair(vocab, 8, 6, 6, 3)]

    def sums(parts: Sequence[Sequence[tuple[Example, Example]]]) -> tuple[float, int, dict[str, Floats]]:
        state = ours.training(adapter, 120)
        objective = PreferenceObjective(state, None, 0.4)
        for part in parts:
            objective.forward_backward(packed(part), update=False)
        return ours.sums(state, adapter)

    whole, parts = sums([pairs]), sums([pairs[:1], pairs[1:]])
    assert parts[:2] == (pytest.approx(whole[0], rel=1e-5), whole[1])
    close_gradients(parts[2], whole[2])
