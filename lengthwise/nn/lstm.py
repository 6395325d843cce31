"""The LSTM cell with projections: a wide long state, and a short state and an output of the model's width."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Cell(nn.Module):
    """Gates are functions of the input x and of the short state s (ReTran, ACL 2025; the cell is Hochreiter and
    Schmidhuber's of 1997 with the projections of Sak et al. 2014):

        i, f, o = σ(W x + U s + b), g = tanh(W x + U s + b), long ← f · long + i · g, e = o · long,
        s ← P e, output Q e

    with maps P and Q of their own, both with biases; the long state is not squashed. Both states start as learned.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.input = nn.Linear(width, 4 * hidden)  # i, f, o, g, one after the other
        self.recurrent = nn.Linear(width, 4 * hidden, bias=False)
        self.short = nn.Linear(hidden, width)
        self.out = nn.Linear(hidden, width)
        self.first_short = nn.Parameter(torch.zeros(width))
        self.first_long = nn.Parameter(torch.zeros(hidden))

    @torch.no_grad()
    def initialise(self, std: float | None) -> None:
        """Recurrent and short maps start orthogonal, the forget gate's bias 1, other biases and both states 0; input
        and output maps N(0, std), or without one Kaiming-uniform (He et al. 2015)."""
        hidden = self.short.in_features
        nn.init.orthogonal_(self.recurrent.weight)
        nn.init.orthogonal_(self.short.weight)
        for linear in (self.input, self.out):
            if std is None:
                nn.init.kaiming_uniform_(linear.weight, a=math.sqrt(5))
            else:
                nn.init.normal_(linear.weight, std=std)
        for linear in (self.input, self.short, self.out):
            nn.init.zeros_(linear.bias)
        self.input.bias[hidden : 2 * hidden] = 1


def emit(
    gates: Float[Tensor, "*b gates"], long: Float[Tensor, "*b h"]
) -> tuple[Float[Tensor, "*b h"], Float[Tensor, "*b h"]]:
    """One step of the cell, from its four gates side by side before they are squashed: what it emits, e, and the new
    long state."""
    return _Emit.apply(gates, long)


class _Emit(torch.autograd.Function):
    """By hand: four squashed gates are all that has to be remembered, and most of the step's time is spent here."""

    @staticmethod
    def forward(ctx: Any, gates: Tensor, long: Tensor) -> tuple[Tensor, Tensor]:
        hidden = long.shape[-1]
        open_ = gates[..., : 3 * hidden].sigmoid()
        new = gates[..., 3 * hidden :].tanh()
        i, f, o = open_.split(hidden, -1)
        after = torch.addcmul(f * long, i, new)
        ctx.save_for_backward(open_, new, long, after)
        return o * after, after

    @staticmethod
    def backward(ctx: Any, emitted: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        open_, new, long, value = ctx.saved_tensors
        hidden = long.shape[-1]
        i, f, o = open_.split(hidden, -1)
        after = torch.addcmul(after, emitted, o)
        gates = torch.empty(*long.shape[:-1], 4 * hidden, dtype=long.dtype, device=long.device)
        torch.mul(after, new, out=gates[..., :hidden])
        torch.mul(after, long, out=gates[..., hidden : 2 * hidden])
        torch.mul(emitted, value, out=gates[..., 2 * hidden : 3 * hidden])
        gates[..., : 3 * hidden] *= torch.addcmul(open_, open_, open_, value=-1)
        torch.mul(after * i, torch.addcmul(torch.ones_like(new), new, new, value=-1), out=gates[..., 3 * hidden :])
        return gates, after * f
