"""Steps of the LSTM cell, forward and backward by hand, on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lengthwise.nn.lstm import Cell


def into(cell: Cell, more: Float[Tensor, " gates"] | float = 0.0) -> Float[Tensor, "gates i"]:
    """What takes (input, short state, 1) to the gates, in one product; with ``more`` on their biases."""
    return torch.cat([cell.input.weight, cell.recurrent.weight, (cell.input.bias + more)[:, None]], 1)


def emit(
    seen: Float[Tensor, "*l r i"], weight: Float[Tensor, "*l gates i"], long: Float[Tensor, "*l h r"]
) -> tuple[Float[Tensor, "*l h r"], Float[Tensor, "*l h r"]]:
    """One step of a cell, or of several side by side: from (input, short state, 1) and the weights ``into``, what it
    emits, e, and the new long state. There, rows are last: so each gate is one stretch of memory."""
    return _Emit.apply(seen, weight, long)


class _Emit(torch.autograd.Function):
    """By hand: the four squashed gates are all that has to be remembered, and most of the step's time is spent here."""

    @staticmethod
    def forward(ctx: Any, seen: Tensor, weight: Tensor, long: Tensor) -> tuple[Tensor, Tensor]:
        gates = weight @ seen.mT
        i, f, o, new = _squashed(gates)
        after = torch.addcmul(f * long, i, new)
        ctx.save_for_backward(seen, weight, gates, long, after)
        return o * after, after

    @staticmethod
    def backward(ctx: Any, to_emitted: Tensor, to_after: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        seen, weight, gates, long, after = ctx.saved_tensors
        to_gates = torch.empty_like(gates)
        to_long = _through_gates(gates, long, after, to_emitted, to_after, to_gates)
        return to_gates.mT @ weight, to_gates @ seen, to_long


def run(cell: Cell, x: Float[Tensor, "d n"], counts: list[int]) -> Float[Tensor, "d n"]:
    """What the cell puts out along packed rows, from its first states: at each place as many rows as ``counts`` has, a
    place's rows side by side."""
    # The biases of what is said go where they can be added once: the short state's to the gates it will be read by.
    gates = into(cell, cell.recurrent(cell.short.bias))
    out = torch.cat([cell.out.weight, cell.short.weight])
    predicted = _Run.apply(x, gates, out, cell.first_short - cell.short.bias, cell.first_long, counts)
    return predicted + cell.out.bias[:, None]


class _Run(torch.autograd.Function):
    """By hand, without the biases of what is said: what belongs to a place is one stretch of memory, its rows last, so
    that each gate is one too."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        x, into, out, first_short, first_long, counts = inputs
        sizes, hidden = [len(x), len(first_short)], len(first_long)
        short, long, one = (_of_rows(part, counts[0]) for part in (first_short, first_long, x.new_ones(1)))
        gates, longs, emitted = (_by_place(x, counts, size) for size in (4 * hidden, hidden, hidden))
        predicted, steps = [], []
        for read, gate, after, e in zip(x.split(counts, 1), gates, longs, emitted, strict=True):
            if len(one[0]) > (count := len(read[0])):
                short, long, one = (part[:, :count] for part in (short, long, one))
            see = torch.cat([read, short, one])
            i, f, o, new = _squashed(torch.mm(into, see, out=gate))
            torch.mul(f, long, out=after).addcmul_(i, new)
            told, short = (out @ torch.mul(o, after, out=e)).split(sizes)
            predicted.append(told)
            steps.append((see, gate, long, after, e))
            long = after
        ctx.save_for_backward(into, out)
        ctx.steps = steps
        return torch.cat(predicted, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_said: Tensor) -> tuple[Any, ...]:
        into, out = ctx.saved_tensors
        width, into, out_t, into_t = len(to_said), into[:, :-1], out.T, into[:, :-1].T
        to_into, to_bias, to_out, to_x = torch.zeros_like(into), into.new_zeros(len(into)), torch.zeros_like(out), []
        # From the place behind, which has fewer rows.
        to_short, to_long = to_said.new_empty(len(out) - width, 0), to_said.new_empty(out.shape[1], 0)
        told = to_said.split([len(step[0][0]) for step in ctx.steps], 1)
        for to_told, (see, gate, before, after, e) in zip(reversed(told), reversed(ctx.steps), strict=True):
            further = len(to_told[0]) - len(to_short[0])
            if further:
                to_short, to_long = F.pad(to_short, (0, further)), F.pad(to_long, (0, further))
            to_both = torch.cat([to_told, to_short])
            to_out.addmm_(to_both, e.T)
            to_e, to_gate = out_t @ to_both, torch.empty_like(gate)
            to_long = _through_gates(gate, before, after, to_e, to_long, to_gate)
            to_into.addmm_(to_gate, see[:-1].T)
            to_bias += to_gate.sum(1)  # as one column more of the product it would cost a third more
            to_read, to_short = (into_t @ to_gate).split([width, len(to_short)])
            to_x.append(to_read)
        to_into = torch.cat([to_into, to_bias[:, None]], 1)
        return torch.cat(to_x[::-1], 1), to_into, to_out, to_short.sum(1), to_long.sum(1), None


def _by_place(like: Tensor, counts: list[int], size: int) -> list[Float[Tensor, "size rows"]]:
    """Room for so many numbers of each row, place after place."""
    flat = like.new_empty(size * sum(counts))
    return [part.view(size, -1) for part in flat.split([size * count for count in counts])]


def _of_rows(state: Float[Tensor, " d"], rows: int) -> Float[Tensor, "d rows"]:
    return state[:, None].expand(-1, rows)


def _squashed(gates: Tensor) -> tuple[Tensor, ...]:
    """The four gates, squashed where they stand."""
    parts = gates.chunk(4, -2)
    parts[3].mul_(2)  # tanh(x) = 2 σ(2 x) - 1, in a third of the time
    gates.sigmoid_()
    parts[3].mul_(2).sub_(1)
    return parts


def _through_gates(
    gates: Tensor, before: Tensor, after: Tensor, to_emitted: Tensor, to_after: Tensor, out: Tensor
) -> Tensor:
    """The gradient of the gates before they are squashed, written to ``out``, and of the long state before; from the
    squashed gates, the long state before and after, and the gradients of what is emitted and of what else the state
    after has led to."""
    i, f, o, new = gates.chunk(4, -2)
    to_i, to_f, to_o, to_new = out.chunk(4, -2)
    to_after = torch.addcmul(to_after, to_emitted, o)
    torch.mul(to_after, new, out=to_i)
    torch.mul(to_after, before, out=to_f)
    torch.mul(to_emitted, after, out=to_o)
    torch.mul(to_after, i, out=to_new)
    open_, to_open = (part.narrow(-2, 0, 3 * i.shape[-2]) for part in (gates, out))
    torch.ops.aten.sigmoid_backward.grad_input(to_open, open_, grad_input=to_open)
    torch.ops.aten.tanh_backward.grad_input(to_new, new, grad_input=to_new)
    return to_after * f
