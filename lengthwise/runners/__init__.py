"""Runners: they advance a model for each row's number of loops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator
from typing import NamedTuple

from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.base.types import Inputs, UsageError
from lengthwise.models import Model


class Step(NamedTuple):
    """What one loop gave, for the rows that ran it."""

    loop: int  # from 1
    rows: Int[Tensor, " r"]  # their indices in the batch, on the CPU
    logits: Float[Tensor, "n v"]  # at the selected positions, in the order of ``rows``
    movement: Float[Tensor, "r t p"] | None  # of each position's state (see ``movement``); None unless asked for


Steps = Generator[Step, Bool[Tensor, " r"] | None, None]  # rows that a step ran → those of them that go on; None: all


class Runner(ABC):
    """Advances each row of a batch for its own number of loops and returns logits at selected positions.

    All arguments are on the CPU, so that nothing is read from the model's device. ``loops`` "b" are at least 1. ``at``
    "b t" is True at the n selected positions; logits come row by row, on the model's device, and are differentiable.
    """

    def __init__(self, model: Model) -> None:
        self.model = model

    @abstractmethod
    def last(
        self, inputs: Inputs, loops: Int[Tensor, " b"], at: Bool[Tensor, "b t"], *, no_grad_loops: int = 0
    ) -> Float[Tensor, "n v"]:
        """The logits after each row's last loop. The first ``no_grad_loops`` loops run without gradients."""

    def each(
        self, inputs: Inputs, loops: Int[Tensor, " b"], at: Bool[Tensor, "b t"]
    ) -> Iterator[tuple[int, Int[Tensor, " r"], Float[Tensor, "n v"]]]:
        """Yield, after each loop k = 1, 2, …: k, the indices on the CPU of the rows that ran, and their logits in that
        order."""
        for k, rows, logits, _ in self.steps(inputs, loops, at):
            yield k, rows, logits

    def steps(
        self, inputs: Inputs, loops: Int[Tensor, " b"], at: Bool[Tensor, "b t"], *, movement: bool = False
    ) -> Steps:
        """As ``each``, for evaluation, with how far each loop moved the states where that is asked for.

        After a step, ``send`` a mask "r" of its rows that go on; the others are no longer computed.
        """
        raise UsageError(f"{type(self).__name__} is a runner for training: it gives logits by last and each alone")
