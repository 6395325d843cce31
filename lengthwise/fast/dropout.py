"""Dropout whose random numbers are cheap on a CPU, where drawing them would take a fifth of a small model's time."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

STEPS = 1 << 16  # a probability is rounded to one of so many, 1e-5 or nearer; what is kept is scaled by the rounded one


def dropout(x: Float[Tensor, "*s"], probability: float) -> Float[Tensor, "*s"]:
    """Each value is 0 with this probability, and else divided by 1 − probability (Srivastava et al. 2014)."""
    return x * kept(x, probability) if probability else x


def kept(like: Float[Tensor, "*s"], probability: float) -> Float[Tensor, "*s"]:
    """What ``dropout`` multiplies by: 0, or 1 / (1 − probability)."""
    # One draw of 64 bits makes four values.
    drawn = torch.empty(math.ceil(like.numel() / 4), dtype=torch.int64).random_(-(1 << 63), None)
    cut = min(round(probability * STEPS), STEPS - 1)
    alive = drawn.view(torch.int16)[: like.numel()] >= cut - STEPS // 2
    return alive.view(like.shape).to(like.dtype).mul_(STEPS / (STEPS - cut))
