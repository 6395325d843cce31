"""Depth: how often a model is advanced, and by whom."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.base.types import Inputs
from lengthwise.models import Model


class Runner(ABC):
    """Runs a model over depth: each row its own number of loops, ``loops`` "b", on the CPU, each at least 1. What comes
    out are logits at the positions that are wanted, ``at`` "b t", row by row; gradients flow through them."""

    def __init__(self, model: Model) -> None:
        self.model = model

    @abstractmethod
    def last(
        self, inputs: Inputs, loops: Int[Tensor, " b"], at: Bool[Tensor, "b t"], *, untracked: int = 0
    ) -> Float[Tensor, "n v"]:
        """After each row's last loop. The first ``untracked`` loops are run without gradients."""

    @abstractmethod
    def each(
        self, inputs: Inputs, loops: Int[Tensor, " b"], at: Bool[Tensor, "b t"]
    ) -> Iterator[tuple[int, Int[Tensor, " r"], Float[Tensor, "n v"]]]:
        """After each loop k = 1, 2, …, with k and the rows that take part in it, in the order of their logits."""
