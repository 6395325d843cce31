"""Dropout whose random numbers are cheap on a CPU, where drawing them would take a fifth of a small model's time."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

STEPS = 1 << 16  # a share is rounded to one of so many, 1e-5 or nearer, and what is kept is scaled by the rounded one


def dropout(x: Float[Tensor, "*s"], share: float) -> Float[Tensor, "*s"]:
    """Each value is 0 with probability ``share``, and else divided by 1 − share (Srivastava et al. 2014)."""
    if not share:
        return x
    return x * kept(x, share) if x.device.type == "cpu" else F.dropout(x, share)


def kept(like: Float[Tensor, "*s"], share: float) -> Float[Tensor, "*s"]:
    """What ``dropout`` multiplies by: 0, or 1 / (1 − share)."""
    if like.device.type != "cpu":
        return torch.empty_like(like).bernoulli_(1 - share).div_(1 - share)
    # One draw of 64 bits makes four values.
    drawn = torch.empty(math.ceil(like.numel() / 4), dtype=torch.int64).random_(-(1 << 63), None)
    cut = min(round(share * STEPS), STEPS - 1)
    alive = drawn.view(torch.int16)[: like.numel()] >= cut - STEPS // 2
    return alive.view(like.shape).to(like.dtype).mul_(STEPS / (STEPS - cut))


class Dropout(nn.Module):
    """The same as a module; in training only."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share

    def drops(self) -> bool:
        return self.training and self.share > 0

    def forward(self, x: Float[Tensor, "*s"]) -> Float[Tensor, "*s"]:
        return dropout(x, self.share) if self.drops() else x
