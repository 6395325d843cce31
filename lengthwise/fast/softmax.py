"""Softmax over few numbers, for a CPU."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

REGISTER = 16  # numbers; where fewer are normalised, the library does so one by one, and takes ten times as long


def softmax(scores: Float[Tensor, "*n k"]) -> Float[Tensor, "*n k"]:
    """Over the last axis."""
    k = scores.shape[-1]
    if k >= REGISTER:
        return scores.softmax(-1)
    return F.pad(scores, (0, REGISTER - k), value=-torch.inf).softmax(-1)[..., :k]
