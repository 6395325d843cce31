"""The plain runner, for any model on any device. Every faster runner must give equal values and gradients."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.base.types import Inputs, to_device
from lengthwise.models import Model, State, device_of
from lengthwise.runners import Logits, RowLoops, Runner, Selected, Step, Steps
from lengthwise.runners.movement import PERIODS, relative_movement


def unroll(
    model: Model, inputs: Inputs, loops: Int[Tensor, " b"], *, no_grad_loops: int = 0
) -> Generator[tuple[int, Int[Tensor, " r"], State], Bool[Tensor, " r"] | None, None]:
    """Advance each row for its own number of loops; yield, after each loop k = 1, 2, …: k, the rows still running
    (indices into ``inputs``), and their state.

    ``inputs`` and ``loops`` are on the CPU, loops at least 1. Rows are sorted by loops, most first, so that the running
    rows are always the first r; finished rows are no longer computed. After a loop, ``send`` a mask "r" of the rows
    that continue. The first ``no_grad_loops`` loops run without gradients.
    """
    order = loops.argsort(descending=True, stable=True)
    running = (loops[:, None] > torch.arange(int(loops.max()))).sum(0).tolist()
    context = model.embed(inputs.take(order).to(device := device_of(model)))
    state = model.start(context)
    for k, count in enumerate(running, 1):
        # Rows with fewer loops are last, so cutting them off is a slice, without a copy.
        order = order[:count]
        if not len(order):
            return
        state, context = first((state, context), len(order))
        with torch.set_grad_enabled(torch.is_grad_enabled() and k > no_grad_loops):
            state = model.advance(state, context)
        if (stay := (yield k, order, state)) is not None:
            kept = stay.nonzero()[:, 0]
            order, (state, context) = order[kept], rows_of((state, context), to_device(kept, device))
            running[k:] = [int((loops[order] > later).sum()) for later in range(k, len(running))]


def first(tree: Any, count: int) -> Any:
    """Return the first ``count`` rows of all tensors in nested tuples. Tensors of one row and non-tensors stay
    unchanged."""
    return rows_of(tree, slice(count))


def rows_of(tree: Any, rows: slice | Int[Tensor, " r"]) -> Any:
    """Return these rows of all tensors in nested tuples. Tensors of one row and non-tensors stay unchanged."""
    if isinstance(tree, Tensor):
        return tree if len(tree) == 1 else tree[rows]
    if isinstance(tree, tuple):
        parts = [rows_of(part, rows) for part in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return tree


class Plain(Runner):
    """Advances the running rows, at all positions, by calling the model's methods."""

    def last(self, inputs: Inputs, loops: RowLoops, at: Selected, *, no_grad_loops: int = 0) -> Logits:
        left = torch.bincount(loops, minlength=int(loops.max()) + 1).tolist()  # rows that leave after each loop
        ids, logits = [], []
        for k, rows, state in unroll(self.model, inputs, loops, no_grad_loops=no_grad_loops):
            if left[k]:
                done = len(rows) - left[k]
                ids.append(rows[done:])
                logits.append(self.model.read(state)[done:])
        # Rows were collected in the order of halting; restore the batch's order.
        row, position = at.nonzero(as_tuple=True)
        return pick(torch.cat(logits), torch.cat(ids).argsort()[row], position)

    def steps(self, inputs: Inputs, loops: RowLoops, at: Selected, *, movement: bool = False) -> Steps:
        real, earlier, moved = to_device(inputs.padding_mask, device_of(self.model)), list[State](), None
        unrolled, stay, ran = unroll(self.model, inputs, loops), None, torch.empty(0, dtype=torch.long)
        while True:
            try:
                k, rows, state = unrolled.send(stay)
            except StopIteration:
                return
            if movement:
                now, left = self.model.answer_state(state), torch.isin(ran, rows).nonzero()[:, 0]
                earlier = [rows_of(one, to_device(left, real.device)) for one in earlier]
                moved, ran = relative_movement(now, earlier, real[to_device(rows, real.device)]), rows
                earlier = [now, *earlier][:PERIODS]
            stay = yield Step(k, rows, pick(self.model.read(state), *at[rows].nonzero(as_tuple=True)), moved)


def pick(values: Tensor, *index: Int[Tensor, " n"]) -> Float[Tensor, "n v"]:
    """Return the values at indices from the CPU. A mask on a device would have to be read, to count its entries."""
    return values[tuple(to_device(one, values.device) for one in index)]
