"""The plain runner, for any model on any device. Every faster runner must give equal values and gradients."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

from lengthwise.base.types import Inputs, UsageError, to_device
from lengthwise.models import Model, State, get_device
from lengthwise.runners import Logits, LogitsAndState, Mask, RowLoops, Runner, Step, Steps

PERIOD_COUNT = 2  # movement is measured over one loop and over two loops
# After each loop: its number, the rows that ran, and their state. Takes a mask of the rows that continue; None: all.
LoopStates = Generator[tuple[int, Int[Tensor, " r"], State], Bool[Tensor, " r"] | None, None]


def unroll(
    model: Model, inputs: Inputs, loops: RowLoops, *, no_grad_loops: int = 0, state: State | None = None
) -> LoopStates:
    """Advance each row for its own number of loops. After each loop, yield its number k = 1, 2, …, the rows that are
    still running (indices into ``inputs``), and their state.

    ``inputs`` and ``loops`` (at least 1) are on the CPU. Rows are sorted by loops, most first, so that the running rows
    are always the first r; finished rows are no longer computed. After a loop, ``send`` a mask "r" of the rows
    that continue. The first ``no_grad_loops`` loops run without gradients. ``state`` is the state of all rows before
    the first loop, by default the model's initial state.
    """
    order = loops.argsort(descending=True, stable=True)
    running = (loops[:, None] > torch.arange(int(loops.max()))).sum(0).tolist()
    context = model.embed(inputs.take(order).to(device := get_device(model)))
    state = model.start(context) if state is None else select_rows(state, to_device(order, device))
    for k, count in enumerate(running, 1):
        if not count:
            return
        if count < len(order):  # rows with fewer loops are last, so a slice removes them without a copy
            order, (state, context) = order[:count], select_rows((state, context), slice(count))
        with torch.set_grad_enabled(torch.is_grad_enabled() and k > no_grad_loops):
            state = model.advance(state, context)
        if (stay := (yield k, order, state)) is not None:
            staying = stay.nonzero()[:, 0]
            order, (state, context) = order[staying], select_rows((state, context), to_device(staying, device))
            running[k:] = [int((loops[order] > later).sum()) for later in range(k, len(running))]


def select_rows(tree: Any, rows: slice | Int[Tensor, " r"]) -> Any:
    """Return these rows of all tensors in nested tuples. One-row tensors and other values stay unchanged."""
    return tree_map_only(Tensor, lambda part: part if len(part) == 1 else part[rows], tree)


def choose_rows(mask: Bool[Tensor, " b"] | Bool[Tensor, ""], new_state: State, old_state: State) -> State:
    """Return a state with the rows of ``new_state`` where ``mask`` is True (a scalar: all rows or none), else those of
    ``old_state``. Values without a row axis come from ``new_state``."""

    def choose(new_value: Any, old_value: Any) -> Any:
        if not isinstance(new_value, Tensor) or not new_value.dim() or (mask.dim() and len(mask) != len(new_value)):
            return new_value
        return torch.where(mask.reshape(mask.shape + (1,) * (new_value.dim() - mask.dim())), new_value, old_value)

    return tree_map(choose, new_state, old_state)


def detach(state: State) -> State:
    """Return a state through which no gradient flows."""
    return tree_map_only(Tensor, Tensor.detach, state)


def join_rows(groups: Sequence[tuple[Int[Tensor, " _"], Any]]) -> Any:
    """Join the states of groups of rows, given with the rows' indices, into the state of all rows, in order. Raises
    UsageError if a value without a row axis differs between the groups."""
    rows, trees = zip(*groups, strict=True)

    def join(*values: Any) -> Any:
        first = values[0]
        if isinstance(first, Tensor) and [*map(len, values)] == [*map(len, rows)]:
            return torch.cat(values)[to_device(torch.cat(rows).argsort(), first.device)]
        if all(torch.equal(value, first) if isinstance(value, Tensor) else value == first for value in values):
            return first
        raise UsageError("all rows must run the same number of loops, because they share a part of this model's state")

    return tree_map(join, *trees)


class Plain(Runner):
    """Advances the running rows, at all positions, by calling the model's methods."""

    def unroll(self, inputs: Inputs, loops: RowLoops, **options: Any) -> LoopStates:
        """Advance each row for its own number of loops, by this module's function ``unroll``."""
        return unroll(self.model, inputs, loops, **options)

    def last(self, inputs: Inputs, loops: RowLoops, positions: Mask, *, no_grad_loops: int = 0) -> Logits:
        ids, logits = [], []
        for rows, state, left in self._iterate_halting_rows(inputs, loops, no_grad_loops=no_grad_loops):
            ids.append(rows[-left:])
            logits.append(self.model.read(state)[-left:])
        # Rows were collected in the order of halting; restore the batch's order.
        row, position = positions.nonzero(as_tuple=True)
        return take_values(torch.cat(logits), torch.cat(ids).argsort()[row], position)

    def carry(self, inputs: Inputs, loops: RowLoops, positions: Mask, state: State | None = None) -> LogitsAndState:
        halted = [(rows[-left:], select_rows(own, slice(-left, None)))
                  for rows, own, left in self._iterate_halting_rows(inputs, loops, state=state)]  # fmt: skip
        state = join_rows(halted)
        return take_values(self.model.read(state), *positions.nonzero(as_tuple=True)), state

    def _iterate_halting_rows(
        self, inputs: Inputs, loops: RowLoops, **options: Any
    ) -> Iterator[tuple[Int[Tensor, " r"], State, int]]:
        """After each loop in which rows halt, yield the rows that ran (halting rows last), their state, and the number
        of halting rows."""
        halting_count = torch.bincount(loops, minlength=int(loops.max()) + 1).tolist()
        for k, rows, state in self.unroll(inputs, loops, **options):
            if halting_count[k]:
                yield rows, state, halting_count[k]

    def steps(self, inputs: Inputs, loops: RowLoops, positions: Mask, *, movement: bool = False) -> Steps:
        unrolled, stay = self.unroll(inputs, loops), None
        movements, moved = Movements(self.model, inputs) if movement else None, None
        while True:
            try:
                k, rows, state = unrolled.send(stay)
            except StopIteration:
                return
            if movements:
                moved = movements.measure(rows, state)
            logits = take_values(self.model.read(state), *positions[rows].nonzero(as_tuple=True))
            stay = yield Step(k, rows, logits, moved)


class Movements:
    """Computes how far each loop moves the states of the running rows: ‖h_k − h_{k−p}‖ / ‖h_k‖ at every position, over
    p = 1 and p = 2 loops. A state that does not move is a fixed point; a state that moves over one loop, but not over
    two loops, alternates between two values."""

    def __init__(self, model: Model, inputs: Inputs) -> None:
        self.model, self.real = model, to_device(inputs.padding_mask, get_device(model))
        self.ran, self.earlier = torch.empty(0, dtype=torch.long), list[State]()

    def measure(self, rows: Int[Tensor, " r"], state: State) -> Float[Tensor, "r t p"]:
        """Return the movement of these rows' states, given their ``state`` after this loop."""
        current, device = self.model.answer_state(state), self.real.device
        still_running = to_device(torch.isin(self.ran, rows).nonzero()[:, 0], device)
        self.earlier = [select_rows(past, still_running) for past in self.earlier]
        moved = measure_movement(current, self.earlier, self.real[to_device(rows, device)])
        self.ran, self.earlier = rows, [current, *self.earlier][:PERIOD_COUNT]
        return moved


def measure_movement(state: State, past_states: Sequence[State], mask: Bool[Tensor, "r t"]) -> Float[Tensor, "r t p"]:
    """Return the distance of ``state`` from each past state, the latest first, relative to the norm of ``state``.

    Movements over more loops than there are past states are infinite; at padding they are 0. Norms are over all
    numbers of a position, in all floating-point tensors of the state. A tensor without an axis of positions counts at
    each position; a tensor shared by all rows does not count.
    """
    zero, moved = torch.zeros(mask.shape, device=mask.device), []
    for before in past_states:
        tensors = zip(_list_float_tensors(state), _list_float_tensors(before), strict=True)
        pairs = [(new, old) for new, old in tensors if len(new) == len(mask)]
        change = sum((_sum_squares(new - old, mask) for new, old in pairs), zero)
        size = sum((_sum_squares(new, mask) for new, _ in pairs), zero)
        moved.append((change / size.clamp(min=1e-30)).sqrt())
    moved += [torch.full_like(zero, torch.inf)] * (PERIOD_COUNT - len(moved))
    return torch.stack(moved, -1).masked_fill(~mask[..., None], 0.0)


def flatten_state(state: State, width: int) -> Float[Tensor, "r t d"]:
    """Return, for each of ``width`` positions, one vector of all its numbers in the state. Raises UsageError if no
    tensor of the state has an axis of positions."""
    parts = [part.flatten(2) for part in _list_float_tensors(state) if part.dim() > 2 and part.shape[1] == width]
    if not parts:
        needed = "measuring a state's movement needs a state tensor with an axis of positions"
        raise UsageError(f"{needed}, and this model's state has none")
    return torch.cat(parts, -1)


def _list_float_tensors(state: State) -> list[Tensor]:
    """Return the floating-point tensors of nested tuples."""
    return [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _sum_squares(x: Tensor, mask: Bool[Tensor, "r t"]) -> Float[Tensor, "r _"]:
    """Return the sum of squares per position or, if ``x`` has no axis of positions, per row."""
    axis = 2 if x.shape[:2] == mask.shape else 1
    return x.reshape(*x.shape[:axis], -1).square().sum(-1).view(len(x), -1)


def take_values(values: Tensor, *indices: Int[Tensor, " n"]) -> Float[Tensor, "n v"]:
    """Return the values at ``indices``, which are on the CPU: a mask on the device would have to be copied back."""
    return values[tuple(to_device(index, values.device) for index in indices)]
