"""Measure a model with transformers, in float32: python evaluate.py MODEL [--held-out val.npz] [--text FILE]

Prints nats per trained token on each held-out set (WORK/val.npz, which pack.py writes), and bits per byte on a text,
in windows of 1024 tokens that do not overlap.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from corpus import NOT_TRAINED
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

WINDOW = 1024


def load(path: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    torch.nn.Module.float(model)  # transformers may leave the bfloat16 embedding as it is
    return model.eval()


@torch.no_grad()
def total_loss(model: Any, ids: Tensor, trained: Tensor) -> float:
    """Sum over trained [rows, T] of the losses of ids [rows, T + 1], in nats."""
    hidden = model.model(ids[:, :-1]).last_hidden_state[trained]
    targets = ids[:, 1:][trained]
    # Logits of a part of the tokens at a time: all of them would take 64 KB a token.
    parts = zip(hidden.split(512), targets.split(512), strict=True)
    return sum(F.cross_entropy(model.lm_head(h).float(), t, reduction="sum").item() for h, t in parts)


def held_out_loss(model: Any, packed: np.ndarray) -> float:
    """Nats per trained token of packed rows (uint16, bit 15: not trained); rows of like length go together."""
    trained = packed[:, 1:] < NOT_TRAINED
    lengths = trained.shape[1] - np.argmax(trained[:, ::-1], axis=1)
    total = 0.0
    for rows in np.array_split(np.argsort(lengths), -(-len(packed) // 8)):
        longest = int(lengths[rows].max())
        ids = torch.from_numpy(packed[rows, : longest + 1].astype(np.int64) & (NOT_TRAINED - 1))
        total += total_loss(model, ids, torch.from_numpy(trained[rows, :longest]))
    return total / trained.sum()


def bits_per_byte(model: Any, tokenizer: Any, text: str) -> float:
    """Only the very first token is not predicted: a window of T + 1 tokens overlaps the next one by its last token."""
    tokens = torch.tensor(tokenizer(text).input_ids)
    total = 0.0
    for start in range(0, len(tokens) - 1, WINDOW):
        ids = tokens[None, start : start + WINDOW + 1]
        total += total_loss(model, ids, torch.ones_like(ids[:, 1:], dtype=torch.bool))
    return total / math.log(2) / len(text.encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--held-out", type=Path)
    parser.add_argument("--text", type=Path)
    options = parser.parse_args()
    model = load(options.model)
    if options.held_out:
        for name, packed in np.load(options.held_out).items():
            print(f"{name}: {held_out_loss(model, packed):.4f} nats per token")
    if options.text:
        tokenizer = AutoTokenizer.from_pretrained(options.model)
        print(f"{bits_per_byte(model, tokenizer, options.text.read_text(encoding='utf8')):.4f} bits per byte")


if __name__ == "__main__":
    main()
