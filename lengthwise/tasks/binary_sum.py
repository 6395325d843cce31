"""Binary sum: n bits → how many of them are 1 (Fan et al. 2025, section 6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.types import Problems
from lengthwise.tasks import SequenceTask
from lengthwise.tasks.family import Family

# Counts near which a model trained on short rows may fail: all bits are set, or one more bit is needed.
COUNTS = (3, 4, 7, 8, 15, 16, 31, 32, 63, 64)


@dataclass(frozen=True)
class BinarySum(SequenceTask):
    """n uniform bits → the number of ones, in binary, least significant bit first, without leading zeros; no ones:
    ``0``. T(n) = n: one bit is counted per round. In the harder set the number of ones is uniform, 0 to n: uniform bits
    almost never have a sum near n, whose highest bits are set."""

    symbols = ("0", "1")
    harder = "uniform-count"
    answers_numbers = True
    question = "Count the ones in this sequence of bits. Write their number in binary, most significant bit first."

    def sample_hard(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        ones = (torch.rand(len(sizes), 1, generator=generator) * (sizes[:, :1] + 1)).long()
        return self._draw_rows_with_ones(sizes, ones, generator)

    def _draw_rows_with_ones(
        self, sizes: Int[Tensor, "b axes"], ones: Int[Tensor, "b 1"], generator: Generator
    ) -> Problems:
        """Draw rows with this number of ones, anywhere."""
        length, width = sizes[:, :1], int(sizes.max())
        draw = torch.rand(len(sizes), width, generator=generator).masked_fill(torch.arange(width) >= length, 2)
        return self.from_rows(sizes, (draw.argsort(1).argsort(1) < ones).long())

    @property
    def families(self) -> Sequence[Family]:
        near = Family.of(self._near_power_of_two, self._near_power_of_two)
        return (*super().families, near, *(self._family_of_count(ones) for ones in COUNTS))

    def _family_of_count(self, ones: int) -> Family:
        """Return the family of rows with this number of ones."""

        def sample(sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
            return self._draw_rows_with_ones(sizes, sizes[:, :1].clamp(max=ones), generator)

        return Family(f"{ones}-ones", f"Exactly {ones} ones, anywhere.", sample, smallest=ones)

    def _near_power_of_two(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        """The number of ones is a power of two, or one more or one less: 7, 8, 9."""
        length = sizes[:, 0]
        power = 2 ** (torch.rand(len(sizes), generator=generator) * _bit_length(length)).long()
        ones = power + torch.randint(-1, 2, (len(sizes),), generator=generator)
        return self._draw_rows_with_ones(sizes, torch.minimum(ones, length)[:, None], generator)

    def from_rows(self, sizes: Int[Tensor, "b axes"], bits: Int[Tensor, "b p"]) -> Problems:
        length, count = sizes[:, 0], bits.sum(1)
        written = _bit_length(count)
        answer = count[:, None] >> torch.arange(int(written.max())) & 1
        return Problems(sizes, bits, length, answer, written, length)

    def format(self, answer: Int[Tensor, " a"]) -> str:
        """In binary, most significant bit first."""
        return self.vocab.decode(answer.flip(0))

    def reference(self, prompt: str) -> str:
        return f"{prompt.count('1'):b}"[::-1]

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        return {"ones": problems.prompt.sum(1)}

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return _bit_length(sizes[:, 0])


def _bit_length(number: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
    """Return the number of bits of each number in binary; 1 for zero."""
    return number.double().frexp().exponent.clamp(min=1).long()  # exact up to 2⁵³
