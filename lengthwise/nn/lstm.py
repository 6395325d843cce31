"""The LSTM cell with projections: a wide long state, and a short state and an output of the model's width."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

States = tuple[Float[Tensor, "r d"], Float[Tensor, "r h"]]  # the short and the long one


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

    def start(self, rows: int) -> States:
        return self.first_short.expand(rows, -1), self.first_long.expand(rows, -1)

    def forward(self, x: Float[Tensor, "r d"], states: States) -> tuple[Float[Tensor, "r d"], States]:
        short, long = states
        i, f, o, g = (self.input(x) + self.recurrent(short)).chunk(4, -1)
        long = f.sigmoid() * long + i.sigmoid() * g.tanh()
        e = o.sigmoid() * long
        return self.out(e), (self.short(e), long)

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
