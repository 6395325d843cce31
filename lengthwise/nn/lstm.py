"""The LSTM cell with projections: a wide cell state ``long``, and a hidden state ``short`` of the model's width."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

States = tuple[Float[Tensor, "r d"], Float[Tensor, "r h"]]  # short state, long state of width h


class Cell(nn.Module):
    """The LSTM (Hochreiter and Schmidhuber 1997) with projections (Sak et al. 2014; ReTran, ACL 2025). It reads rows
    from left to right.

    At each position, with input x and short state s:

        i, f, o = σ(W x + U s + b), g = tanh(W x + U s + b), long ← f · long + i · g, e = o · long,
        s ← P e, output Q e

    P and Q are separate linear maps with biases. There is no tanh of the long state. Both initial states are learned.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.input = nn.Linear(width, 4 * hidden)  # i, f, o, g, one after the other
        self.recurrent = nn.Linear(width, 4 * hidden, bias=False)
        self.short = nn.Linear(hidden, width)
        self.out = nn.Linear(hidden, width)
        self.first_short = nn.Parameter(torch.zeros(width))
        self.first_long = nn.Parameter(torch.zeros(hidden))

    def start(self, row_count: int) -> States:
        return self.first_short.expand(row_count, -1), self.first_long.expand(row_count, -1)

    def forward(self, x: Float[Tensor, "r t d"], states: States) -> tuple[Float[Tensor, "r t d"], States]:
        """Return the outputs at these positions, and the states after them."""
        (short, long), outputs = states, []
        for seen in self.input(x).unbind(1):  # all positions in one product
            gates, g = (seen + self.recurrent(short)).split([3 * long.shape[1], long.shape[1]], -1)
            i, f, o = gates.sigmoid().chunk(3, -1)
            long = f * long + i * g.tanh()
            outputs.append(o * long)
            short = self.short(outputs[-1])
        return self.out(torch.stack(outputs, 1)), (short, long)

    @torch.no_grad()
    def initialise(self, std: float | None) -> None:
        """Initialize U and P to orthogonal matrices, the forget gate's bias to 1, other biases to 0, and W and Q from
        N(0, std²) or, if ``std`` is None, Kaiming-uniform (He et al. 2015). The learned initial states stay 0."""
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
        self.input.bias[hidden : 2 * hidden] = 1  # at first, open forget gates keep the long state and its gradient
