"""The LSTM cell (``nn.lstm.Cell``) with a hand-written backward pass, used by the runners of the LSTM and of ReTran.

Input, short state and a 1 for the bias are concatenated, so that one matrix product computes all gates. Rows are the
last axis, so that each gate is contiguous. Only the gates after their nonlinearities are saved. Results equal those of
``Cell`` up to rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lengthwise.nn.lstm import Cell


def build_gate_matrix(cell: Cell, extra_bias: Float[Tensor, " gates"] | float = 0.0) -> Float[Tensor, "gates i"]:
    """Return the matrix that maps (input, short state, 1) to the gates; ``extra_bias`` is added to the bias."""
    return torch.cat([cell.input.weight, cell.recurrent.weight, (cell.input.bias + extra_bias)[:, None]], 1)


def step_cells(
    inputs: Float[Tensor, "*l r i"], weight: Float[Tensor, "*l gates i"], long_state: Float[Tensor, "*l h r"]
) -> tuple[Float[Tensor, "*l h r"], Float[Tensor, "*l h r"]]:
    """Compute one step of a ``Cell``, or of l cells at once. Return e (output gate · new long state) and the new long
    state.

    ``inputs`` is (input, short state, 1), ``weight`` a gate matrix, ``long_state`` the previous long state.
    """
    return _CellStep.apply(inputs, weight, long_state)


class _CellStep(torch.autograd.Function):
    """One step of a cell as an autograd function, which saves the gates after their nonlinearities."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, long_state: Tensor) -> tuple[Tensor, Tensor]:
        gates = weight @ inputs.mT
        i, f, o, new = _apply_nonlinearities(gates)
        new_long = torch.addcmul(f * long_state, i, new)
        ctx.save_for_backward(inputs, weight, gates, long_state, new_long)
        return o * new_long, new_long

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_emitted: Tensor, grad_new_long: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        inputs, weight, gates, long_state, new_long = ctx.saved_tensors
        grad_gates = torch.empty_like(gates)
        grad_long = _backward_through_gates(gates, long_state, new_long, grad_emitted, grad_new_long, grad_gates)
        return grad_gates.mT @ weight, grad_gates @ inputs, grad_long


def run_cell(cell: Cell, x: Float[Tensor, "d n"], row_counts: list[int]) -> Float[Tensor, "d n"]:
    """Return the outputs of a cell at all positions of rows ordered as in ``Packing``: position by position, with
    ``row_counts[t]`` rows at position t."""
    # The short state is computed without its bias, which is added once, to the bias of the gates that read it.
    gates = build_gate_matrix(cell, cell.recurrent(cell.short.bias))
    out = torch.cat([cell.out.weight, cell.short.weight])
    outputs = _CellAlongRows.apply(x, gates, out, cell.first_short - cell.short.bias, cell.first_long, row_counts)
    return outputs + cell.out.bias[:, None]


class _CellAlongRows(torch.autograd.Function):
    """All steps of a cell as an autograd function, without the biases of output and short state. The tensors of a
    position are contiguous, with rows as last axis."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        x, into, out, first_short, first_long, row_counts = inputs
        sizes, hidden = [len(x), len(first_short)], len(first_long)
        starts = first_short, first_long, x.new_ones(1)
        short, long, one = (part[:, None].expand(-1, row_counts[0]) for part in starts)
        # Uninitialized tensors "size rows" per position: gates, long states and e, each kind in one block of memory.
        gates, longs, emitted = (
            [part.view(size, -1) for part in x.new_empty(size * sum(row_counts)).split([size * n for n in row_counts])]
            for size in (4 * hidden, hidden, hidden)
        )
        outputs, steps = [], []
        for read, gate, new_long, e in zip(x.split(row_counts, 1), gates, longs, emitted, strict=True):
            if len(one[0]) > (count := len(read[0])):
                short, long, one = (part[:, :count] for part in (short, long, one))
            cell_input = torch.cat([read, short, one])
            i, f, o, new = _apply_nonlinearities(torch.mm(into, cell_input, out=gate))
            torch.mul(f, long, out=new_long).addcmul_(i, new)
            output, short = (out @ torch.mul(o, new_long, out=e)).split(sizes)
            outputs.append(output)
            steps.append((cell_input, gate, long, new_long, e))
            long = new_long
        ctx.save_for_backward(into, out)
        ctx.steps = steps
        return torch.cat(outputs, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_outputs: Tensor) -> tuple[Any, ...]:
        into, out = ctx.saved_tensors
        width, into, out_t, into_t = len(grad_outputs), into[:, :-1], out.T, into[:, :-1].T
        grad_into, grad_bias = torch.zeros_like(into), into.new_zeros(len(into))
        grad_out, grad_x = torch.zeros_like(out), []
        # Gradients that come from the next position, which fewer rows reach.
        grad_short, grad_long = grad_outputs.new_empty(len(out) - width, 0), grad_outputs.new_empty(out.shape[1], 0)
        parts = grad_outputs.split([len(step[0][0]) for step in ctx.steps], 1)
        for grad_output, (cell_input, gate, long_before, long_after, e) in zip(
            reversed(parts), reversed(ctx.steps), strict=True
        ):
            added_rows = len(grad_output[0]) - len(grad_short[0])
            if added_rows:
                grad_short, grad_long = F.pad(grad_short, (0, added_rows)), F.pad(grad_long, (0, added_rows))
            grad_output_and_short = torch.cat([grad_output, grad_short])
            grad_out.addmm_(grad_output_and_short, e.T)
            grad_e, grad_gate = out_t @ grad_output_and_short, torch.empty_like(gate)
            grad_long = _backward_through_gates(gate, long_before, long_after, grad_e, grad_long, grad_gate)
            grad_into.addmm_(grad_gate, cell_input[:-1].T)
            grad_bias += grad_gate.sum(1)  # takes a third less time than one more column in the product
            grad_read, grad_short = (into_t @ grad_gate).split([width, len(grad_short)])
            grad_x.append(grad_read)
        grad_into = torch.cat([grad_into, grad_bias[:, None]], 1)
        return torch.cat(grad_x[::-1], 1), grad_into, grad_out, grad_short.sum(1), grad_long.sum(1), None


def _apply_nonlinearities(gates: Tensor) -> tuple[Tensor, ...]:
    """Apply the nonlinearities to the four gates in place: σ to i, f and o, tanh to g."""
    parts = gates.chunk(4, -2)
    parts[3].mul_(2)  # tanh(x) = 2 σ(2 x) − 1 takes a third of torch.tanh's time
    gates.sigmoid_()
    parts[3].mul_(2).sub_(1)
    return parts


def _backward_through_gates(
    gates: Tensor, old_long_state: Tensor, new_long_state: Tensor, grad_emitted: Tensor, grad_long: Tensor, out: Tensor
) -> Tensor:
    """Return the gradient of the long state before a step, and write the gradient of the gates before their
    nonlinearities to ``out``. ``grad_emitted`` is the gradient of e, ``grad_long`` that of the long state after the
    step, from later steps only."""
    i, f, o, new = gates.chunk(4, -2)
    grad_i, grad_f, grad_o, grad_new = out.chunk(4, -2)
    grad_long = torch.addcmul(grad_long, grad_emitted, o)
    torch.mul(grad_long, new, out=grad_i)
    torch.mul(grad_long, old_long_state, out=grad_f)
    torch.mul(grad_emitted, new_long_state, out=grad_o)
    torch.mul(grad_long, i, out=grad_new)
    sigmoids, grad_sigmoids = (part.narrow(-2, 0, 3 * i.shape[-2]) for part in (gates, out))
    torch.ops.aten.sigmoid_backward.grad_input(grad_sigmoids, sigmoids, grad_input=grad_sigmoids)
    torch.ops.aten.tanh_backward.grad_input(grad_new, new, grad_input=grad_new)
    return grad_long * f
