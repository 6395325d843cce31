"""Even pairs (Delétang et al. 2023): a regular language."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Int
from torch import Tensor

from lengthwise.tasks.automaton import Automaton


@dataclass(frozen=True)
class EvenPairs(Automaton):
    """Bits → 1 if neighbours differ an even number of times, else 0 (Delétang et al. 2023): the same as whether the
    first and the last bit are equal."""

    each: bool = False  # after every bit; false: after the last alone

    symbols = ("0", "1")

    @property
    def question(self) -> str:
        what = "for each bit of" if self.each else "for"
        return f"Write, {what} this sequence of bits, 1 if neighbouring bits up to there differ evenly often, else 0."

    def automaton(self) -> tuple[Int[Tensor, "states symbols"], Int[Tensor, " states"]]:
        # States: none yet; then 1 + 2 · first bit + last bit.
        table = [[1, 4], *([1 + 2 * first, 2 + 2 * first] for first in (0, 1) for _ in (0, 1))]
        return torch.tensor(table), torch.tensor([1, 1, 0, 0, 1])

    def state_after(self, word: str) -> str:
        return str(int(sum(a != b for a, b in pairwise(word)) % 2 == 0))
