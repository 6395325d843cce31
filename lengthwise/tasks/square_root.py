"""Square roots of binary numbers (Delétang et al. 2023): a context-sensitive task."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.types import SYMBOL, Problems
from lengthwise.tasks import SequenceTask
from lengthwise.tasks.family import Family


@dataclass(frozen=True)
class SquareRoot(SequenceTask):
    """A binary number of n bits → its square root, rounded down, with ⌈n/2⌉ bits; both least significant bit first
    (Delétang et al. 2023). Every bit is uniform. T(n) = n²: long division, with a longer divisor for each bit."""

    symbols = ("0", "1")
    answers_numbers = True
    question = "Write the square root of this binary number, rounded down, in binary, most significant bit first."

    @property
    def families(self) -> Sequence[Family]:
        return (*super().families, Family.of(self._squares, self._squares), Family.of(self._below, self._below))

    def _squares(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        """Squares of whole numbers."""
        return self._near_square(0, sizes, generator)

    def _below(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        """One less than squares, so that the root is just below a whole number."""
        return self._near_square(1, sizes, generator)

    def _near_square(self, less: int, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        uniform = self.sample(sizes, generator)
        roots = [max(math.isqrt(number), 1) for number in _integers(uniform.prompt, sizes[:, 0])]
        return self.from_rows(sizes, _bits([root**2 - less for root in roots], int(sizes.max())))

    def from_rows(self, sizes: Int[Tensor, "b axes"], row: Int[Tensor, "b p"]) -> Problems:
        length, slots = sizes[:, 0], self.answer_slots(sizes)
        roots = _bits([math.isqrt(number) for number in _integers(row, length)], int(slots.max()))
        return Problems(sizes, row, length, roots, slots, length**2)

    def parse(self, text: str) -> Problems:
        """Read a number, most significant bit first."""
        return super().parse(text.strip()[::-1])

    def to_text(self, prompt: Int[Tensor, " p"]) -> str:
        """Most significant bit first."""
        return self.vocab.decode(prompt.flip(0))

    def format(self, answer: Int[Tensor, " a"]) -> str:
        """Most significant bit first, without leading zeros."""
        return self.vocab.decode(answer.flip(0)).lstrip("0") or "0"

    def reference(self, prompt: str) -> str:
        number, root = int(prompt[::-1], 2), 0
        slots = (len(prompt) + 1) // 2
        for bit in reversed(range(slots)):  # the largest root whose square is not larger, bit by bit
            if (root | 1 << bit) ** 2 <= number:
                root |= 1 << bit
        return f"{root:0{slots}b}"[::-1]

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return (sizes[:, 0] + 1) // 2


def _integers(row: Int[Tensor, "b p"], length: Int[Tensor, " b"]) -> list[int]:
    """Return rows of bits as numbers of any size."""
    bits = zip(row.flip(1).tolist(), length.tolist(), strict=True)
    return [int("".join(map(str, one[len(one) - count :])), 2) for one, count in bits]


def _bits(numbers: Sequence[int], width: int) -> Int[Tensor, "b width"]:
    return torch.tensor([[number >> place & 1 for place in range(width)] for number in numbers], dtype=SYMBOL)
