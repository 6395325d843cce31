"""Runners: they advance a model for each row's number of loops."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.base.types import Inputs
from lengthwise.models import Model


class Runner(ABC):
    """Advances each row of a batch for its own number of loops and returns logits at selected positions.

    All arguments are on the CPU, so that nothing is read from the model's device. ``loops`` "b" are at least 1. ``at``
    "b t" is True at the n selected positions; logits come row by row, on the model's device, and are differentiable.
    """

    def __init__(self, model: Model) -> None:
        self.model = model

    @abstractmethod
    def last(
        self, inputs: Inputs, loops: Int[Tensor, " b"], at: Bool[Tensor, "b t"], *, untracked: int = 0
    ) -> Float[Tensor, "n v"]:
        """The logits after each row's last loop. The first ``untracked`` loops run without gradients."""

    @abstractmethod
    def each(
        self, inputs: Inputs, loops: Int[Tensor, " b"], at: Bool[Tensor, "b t"]
    ) -> Iterator[tuple[int, Int[Tensor, " r"], Float[Tensor, "n v"]]]:
        """Yield, after each loop k = 1, 2, …: k, the indices on the CPU of the rows that ran, and their logits in that
        order."""
