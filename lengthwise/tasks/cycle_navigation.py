"""Cycle navigation (Delétang et al. 2023): a regular task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Int
from torch import Tensor

from lengthwise.base.ranges import Range
from lengthwise.tasks.automaton import Automaton


@dataclass(frozen=True)
class CycleNavigation(Automaton):
    """Moves on a cycle → the place where they end (Delétang et al. 2023). A walk starts at place 0; ``+`` and ``-`` go
    one place on and back, ``.`` stays."""

    places: Annotated[int, Range(2, 10)] = 5  # of the cycle
    each: bool = False  # after every move; false: after the last alone

    reads = (".", "+", "-")

    @property
    def writes(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple("0123456789"[: self.places])

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.reads, *self.writes)

    @property
    def question(self) -> str:
        when = "after each of" if self.each else "after"
        return (
            f"You stand at place 0 of a cycle of {self.places} places, numbered in order; + goes one place on, - one "
            f"place back, and . stays: write the place where you are {when} these moves."
        )

    def automaton(self) -> tuple[Int[Tensor, "states symbols"], Int[Tensor, " states"]]:
        place = torch.arange(self.places)
        return torch.stack([place, place + 1, place - 1], 1) % self.places, place + len(self.reads)

    def state_after(self, word: str) -> str:
        return str((word.count("+") - word.count("-")) % self.places)
