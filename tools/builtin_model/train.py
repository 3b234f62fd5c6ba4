"""Train the student: python train.py WORK OUT SECONDS (WORK: where pack.py writes; SECONDS: until training has ended)

Learning rates follow the clock: constant for a tenth of the time, then linearly to zero. OUT gets hist.json, and
model folders: last (every 100 s), best (by the mean of the held-out losses), final. On a CPU a tiny shape is trained,
to try the scripts.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from corpus import NOT_TRAINED
from muon import Muon
from safetensors.torch import save_file
from student import IGNORED, TINY, Shape, Student, export, hf_config
from torch import Tensor

LR_MATRICES = 0.004
LR_OTHERS = 0.003
WEIGHT_DECAY = 0.1
"""Of the matrices, in the first half of the run only, as the authors of BitNet b1.58 do."""
WARM_UP_STEPS = 100
ROWS = 128
HELD_OUT_EVERY = 120.0
SAVE_EVERY = 100.0
TOKEN = NOT_TRAINED - 1
ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"


def inputs_and_labels(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [rows, T] and the labels of their successors, of packed rows [rows, T + 1]."""
    labels = torch.where(rows[:, 1:] >= NOT_TRAINED, torch.full_like(rows[:, 1:], IGNORED), rows[:, 1:])
    return (rows[:, :-1] & TOKEN).contiguous(), labels.contiguous()


class Run:
    """One training run: model, optimisers, clock and history."""

    def __init__(self, work: Path, out: Path, deadline: float) -> None:
        torch.manual_seed(0)
        self.work, self.out = work, out
        self.model = Student(Shape() if ON_GPU else TINY).to(DEVICE)
        self.loss = torch.compile(self.model, fullgraph=True) if ON_GPU else self.model
        m = self.model
        self.muon = Muon([m.q, m.k, m.v, m.o, m.g, m.u, m.d])
        norms = [m.n1, m.na, m.n2, m.nf, m.fn]
        self.adamw = torch.optim.AdamW([m.emb, *norms], lr=LR_OTHERS, betas=(0.9, 0.95), weight_decay=0.0, fused=ON_GPU)
        self.end = deadline - 8  # for the last evaluation and the last save
        self.started = time.time()
        self.step = 0
        self.rows = ROWS if ON_GPU else 2
        self.history = list[dict[str, Any]]()
        self.best = float("inf")
        self.next_look, self.next_save = 60.0, SAVE_EVERY

    @property
    def seconds(self) -> float:
        return time.time() - self.started

    @property
    def progress(self) -> float:
        return self.seconds / (self.end - self.started)

    def warm_up(self, rows: Tensor) -> None:
        """Compile; the clock starts after that."""
        self.loss(*inputs_and_labels(rows)).backward()
        self._clear()
        self.started = time.time()
        self._log(f"compiled; training for {self.end - self.started:.0f} s")

    def train(self, rows: Tensor) -> None:
        """One step."""
        done = self.progress
        factor = min(1.0, (self.step + 1) / WARM_UP_STEPS) * (1.0 if done < 0.1 else max(0.0, (1 - done) / 0.9))
        for group in self.adamw.param_groups:
            group["lr"] = LR_OTHERS * factor
        loss = self.loss(*inputs_and_labels(rows))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.adamw.step()
        self.muon.step(LR_MATRICES * factor, WEIGHT_DECAY if done < 0.5 else 0.0)
        self._clear()
        self.step += 1
        if ON_GPU and self.step % 8 == 0:
            torch.cuda.current_stream().synchronize()  # so that the clock is right
        if self.step % 200 == 0 or not ON_GPU:
            self._log(f"step {self.step} of the way {done:.3f} loss {loss.item():.4f}")
        if self.seconds > self.next_look:
            self.next_look += HELD_OUT_EVERY
            self.look(loss.item())
        if self.seconds > self.next_save:
            self.next_save += SAVE_EVERY
            self.save("last")

    def look(self, loss: float | None = None) -> None:
        """Measure the held-out sets, and keep the model if it is the best so far."""
        losses = {name: round(self._held_out(rows), 4) for name, rows in np.load(self.work / "val.npz").items()}
        tokens = self.step * self.rows * 1024
        self.history.append(
            {"step": self.step, "tokens": tokens, "seconds": round(self.seconds, 1), "train": loss, **losses}
        )
        self._log(f"held out {self.history[-1]}")
        (self.out / "hist.json").write_text(json.dumps(self.history))
        mean = sum(losses.values()) / len(losses)
        if mean < self.best:
            self.best = mean
            self.save("best")

    def save(self, name: str) -> None:
        folder = self.out / name
        folder.mkdir(parents=True, exist_ok=True)
        save_file(export(self.model), folder / "new.safetensors", metadata={"format": "pt"})
        (folder / "new.safetensors").rename(folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(hf_config(self.model.shape), indent=2))

    @torch.no_grad()
    def _held_out(self, packed: np.ndarray) -> float:
        """Nats per trained token."""
        rows = torch.from_numpy(packed.astype(np.int64)).to(DEVICE)
        rows = rows if ON_GPU else rows[:4]
        total = count = 0.0
        for part in rows.split(64):
            ids, labels = inputs_and_labels(part)
            logits = self.model(ids).float().flatten(0, 1)
            total += F.cross_entropy(logits, labels.flatten(), ignore_index=IGNORED, reduction="sum").item()
            count += (labels != IGNORED).sum().item()
        return total / count

    def _clear(self) -> None:
        for p in self.model.parameters():
            p.grad = None

    def _log(self, text: str) -> None:
        print(f"[{self.seconds:.1f}] {text}", flush=True)


def wait_for(path: Path, end: float) -> bool:
    while not path.exists() and time.time() < end:
        time.sleep(0.2)
    return path.exists()


def main(work: Path, out: Path, deadline: float) -> None:
    out.mkdir(parents=True, exist_ok=True)
    wait_for(work / "val.npz", deadline)
    run = Run(work, out, deadline)
    epoch = 0
    while run.progress < 1 and wait_for(work / f"ep{epoch}.npy", run.end):
        file = work / f"ep{epoch}.npy"
        packed = torch.from_numpy(np.load(file).view(np.int16)).to(DEVICE)
        (work / f"take{epoch}").touch()
        file.unlink()
        for i in range(0, len(packed) - run.rows + 1, run.rows):
            rows = packed[i : i + run.rows].to(torch.int64) & 0xFFFF
            if run.step == 0:
                run.warm_up(rows)
            if run.progress >= 1:
                break
            run.train(rows)
        epoch += 1
    run.look()
    run.save("final")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), time.time() + float(sys.argv[3]))
