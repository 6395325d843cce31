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
        gates = gates.clone()
        i, f, o, new = _squashed(gates)
        after = torch.addcmul(f * long, i, new)
        ctx.save_for_backward(gates, long, after)
        return o * after, after

    @staticmethod
    def backward(ctx: Any, to_emitted: Tensor, to_after: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        gates, long, after = ctx.saved_tensors
        _, f, o, _ = gates.chunk(4, -1)
        to_after, to_gates = torch.addcmul(to_after, to_emitted, o), torch.empty_like(gates)
        _through_gates(gates, long, after, to_emitted, to_after, out=to_gates)
        return to_gates, to_after * f


def _squashed(gates: Tensor) -> tuple[Tensor, ...]:
    """The four gates, squashed where they stand."""
    hidden = gates.shape[-1] // 4
    gates[..., : 3 * hidden].sigmoid_()
    gates[..., 3 * hidden :].tanh_()
    return gates.split(hidden, -1)


def _through_gates(
    gates: Tensor, before: Tensor, after: Tensor, to_emitted: Tensor, to_after: Tensor, *, out: Tensor
) -> None:
    """The gradient of the gates before they are squashed, from the squashed ones, the long state before and after, and
    the gradients of what is emitted and of all that the state after has led to."""
    i, _, _, new = gates.chunk(4, -1)
    to_i, to_f, to_o, to_new = out.chunk(4, -1)
    torch.mul(to_after, new, out=to_i)
    torch.mul(to_after, before, out=to_f)
    torch.mul(to_emitted, after, out=to_o)
    torch.mul(to_after, i, out=to_new)
    open_ = gates[..., : 3 * i.shape[-1]]
    out[..., : 3 * i.shape[-1]] *= torch.addcmul(open_, open_, open_, value=-1)
    to_new *= 1 - new * new


def run(cell: Cell, gates: Float[Tensor, "n gates"], counts: list[int]) -> Float[Tensor, "n h"]:
    """What the cell emits along packed rows, from its first states: at each place as many rows as ``counts`` has, a
    place's rows side by side. ``gates`` is the input's part of the gates, W x + b."""
    states = cell.first_short, cell.first_long
    return _Run.apply(gates, cell.recurrent.weight, cell.short.weight, cell.short.bias, *states, counts)


class _Run(torch.autograd.Function):
    """By hand: in backward, a weight's gradient is one product over all places instead of a sum of one per place."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        gates, recurrent, short_weight, short_bias, first_short, first_long, counts = inputs
        rows, hidden = counts[0], len(first_long)
        gates, long = gates.clone(), gates.new_empty(len(gates), hidden)
        emitted, before = torch.empty_like(long), gates.new_empty(len(gates), len(first_short))
        short, state = first_short.expand(rows, -1), first_long.expand(rows, -1)
        for gate, after, e, seen in zip(*(part.split(counts) for part in (gates, long, emitted, before)), strict=True):
            count = len(gate)
            seen.copy_(short[:count])
            gate.addmm_(seen, recurrent.T)
            i, f, o, new = _squashed(gate)
            torch.mul(f, state[:count], out=after).addcmul_(i, new)
            torch.mul(o, after, out=e)
            short, state = torch.addmm(short_bias, e, short_weight.T), after
        ctx.counts = counts
        ctx.save_for_backward(gates, long, emitted, before, recurrent, short_weight, first_long)
        return emitted

    @staticmethod
    def backward(ctx: Any, to_emitted: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        gates, long, emitted, before, recurrent, short_weight, first_long = ctx.saved_tensors
        counts = ctx.counts
        to_gates, to_short = torch.empty_like(gates), torch.zeros_like(before)
        parts = [part.split(counts) for part in (gates, long, to_emitted, to_gates, to_short)]
        back, to_long = before[:0], long[:0]  # what the place behind gives to short and long, in fewer rows
        for place in reversed(range(len(counts))):
            gate, after, to_e, to_gate, to_shorts = (part[place] for part in parts)
            to_shorts[: len(back)] = back
            to_e = torch.addmm(to_e, to_shorts, short_weight)
            _, f, o, _ = gate.chunk(4, -1)
            to_after = to_e * o
            to_after[: len(to_long)] += to_long
            state = parts[1][place - 1][: len(gate)] if place else first_long
            _through_gates(gate, state, after, to_e, to_after, out=to_gate)
            back, to_long = to_gate @ recurrent, to_after * f
        return (
            to_gates,
            to_gates.T @ before,
            to_short.T @ emitted,
            to_short.sum(0),
            back.sum(0),
            to_long.sum(0),
            None,
        )
