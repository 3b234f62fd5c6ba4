"""Muon (Jordan et al. 2024): momentum whose update is made nearly orthogonal by a Newton-Schulz iteration."""

from __future__ import annotations

import math

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Of the quintic iteration; Jordan et al. chose them for a steep slope at zero."""


def orthogonalised(gradient: Tensor, steps: int = 5) -> Tensor:
    """A matrix, or a batch of them, with its singular values drawn towards 1; bfloat16."""
    a, b, c = COEFFICIENTS
    x = gradient.bfloat16()
    tall = x.size(-2) > x.size(-1)
    if tall:
        x = x.mT
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = a * x + (b * square + c * square @ square) @ x
    return x.mT if tall else x


class Muon:
    """Nesterov momentum; the step has the size of AdamW's (0.2 √width), so that one learning rate fits all shapes."""

    def __init__(self, parameters: list[torch.nn.Parameter], momentum: float = 0.95) -> None:
        self.parameters = parameters
        self.momentum = momentum
        self.buffers = [torch.zeros_like(p) for p in parameters]

    @torch.no_grad()
    def step(self, lr: float, weight_decay: float) -> None:
        for p, buffer in zip(self.parameters, self.buffers, strict=True):
            gradient = p.grad
            if gradient is None:
                continue
            buffer.lerp_(gradient, 1 - self.momentum)
            update = orthogonalised(gradient.lerp(buffer, self.momentum)).float()
            size = 0.2 * math.sqrt(max(p.shape[-2:]))
            p.mul_(1 - lr * weight_decay).add_(update, alpha=-lr * size)
