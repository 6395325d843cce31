"""Runners: classes that advance each row of a batch for its own number of loops and return logits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.base.types import Inputs, UsageError
from lengthwise.models import Model, State

RowLoops = Int[Tensor, " b"]  # the number of loops of each row, at least 1
Mask = Bool[Tensor, "b t"]  # True at the n selected positions, whose logits are returned
Logits = Float[Tensor, "n v"]
LogitsAndState = tuple[Logits, State]  # the logits and the state after each row's last loop
LoopLogits = Iterator[tuple[int, Int[Tensor, " r"], Logits]]  # after each loop: its number, the rows, their logits


class Step(NamedTuple):
    """The result of one loop, for the rows that ran it."""

    loop: int  # number of the loop, from 1
    rows: Int[Tensor, " r"]  # the rows' indices in the batch, on the CPU
    logits: Float[Tensor, "n v"]  # at the selected positions, in the order of ``rows``
    movement: Float[Tensor, "r t p"] | None  # how far each state moved (see ``plain.Movements``); None unless requested


Steps = Generator[Step, Bool[Tensor, " r"] | None, None]  # ``send`` takes a mask of the rows that continue (None: all)


class Runner(ABC):
    """Advances each row of a batch for its own number of loops and returns logits at selected positions.

    All arguments are on the CPU, so that no value has to be read from the model's device. ``loops`` "b"
    holds each row's number of loops, at least 1. ``positions`` "b t" is True at the n selected positions. Logits are on
    the model's device, row by row, and differentiable.
    """

    def __init__(self, model: Model) -> None:
        self.model = model

    @abstractmethod
    def last(self, inputs: Inputs, loops: RowLoops, positions: Mask, *, no_grad_loops: int = 0) -> Logits:
        """Return the logits after each row's last loop. The first ``no_grad_loops`` loops run without gradients."""

    def at_depths(self, inputs: Inputs, loops: RowLoops, depths: Sequence[int], positions: Mask) -> list[Logits]:
        """Return, for each of ``depths``, each row's logits after this number of loops, or after the row's last loop if
        it has fewer."""
        return [self.last(inputs, loops.clamp(max=depth), positions) for depth in depths]

    def carry(self, inputs: Inputs, loops: RowLoops, positions: Mask, state: State | None = None) -> LogitsAndState:
        """Return the logits and the state after each row's last loop. Loops start from ``state``, which an earlier call
        returned for the same rows, or by default from the model's initial state. Gradients flow through ``state``,
        unless the caller detaches it (``lw.detach``)."""
        raise UsageError(f"{type(self).__name__} keeps no state between calls: use last or each")

    def each(self, inputs: Inputs, loops: RowLoops, positions: Mask) -> LoopLogits:
        """Yield, for each loop, its number k from 1, the indices (on the CPU) of rows that ran, and their logits."""
        for k, rows, logits, _ in self.steps(inputs, loops, positions):
            yield k, rows, logits

    def steps(self, inputs: Inputs, loops: RowLoops, positions: Mask, *, movement: bool = False) -> Steps:
        """Yield a ``Step`` after each loop, for evaluation. With ``movement``, steps include how far states moved.

        After a step, ``send`` a mask "r" of its rows that continue; other rows are no longer computed.
        """
        raise UsageError(f"{type(self).__name__} is a runner for training and has no steps: use last or each")
