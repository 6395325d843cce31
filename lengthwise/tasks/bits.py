"""Tasks on bits: prefix sums, the flipped copy, the number of ones, the square root."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.rows import zero_after
from lengthwise.base.types import SYMBOL, Problems
from lengthwise.tasks import SequenceTask
from lengthwise.tasks.family import Family


@dataclass(frozen=True)
class PrefixSum(SequenceTask):
    """n uniform bits → n bits, the i-th of which is the parity of the first i (Schwarzschild et al. 2021; Bansal et al.
    2022). T(n) = n: one more prefix per round."""

    symbols = ("0", "1")
    answers_each_symbol = True
    question = (
        "For each bit of this sequence, in order, write 1 if the number of ones up to and including it is odd, and 0 "
        "if it is even."
    )

    def from_rows(self, sizes: Int[Tensor, "b axes"], bits: Int[Tensor, "b p"]) -> Problems:
        length = sizes[:, 0]
        answer = zero_after(bits.cumsum(1) % 2, length).to(bits.dtype)
        return Problems(sizes, bits, length, answer, length, length)

    def reference(self, prompt: str) -> str:
        return "".join(str(prompt[: i + 1].count("1") % 2) for i in range(len(prompt)))

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        return {"ones": problems.prompt.sum(1)}


@dataclass(frozen=True)
class FlippedCopy(SequenceTask):
    """n uniform bits → each of them exclusive-or the parity of all. T(n) = 2n: n rounds until the last bit is folded
    into the parity, and n for the parity to reach the last position of the answer. Our own example of a limit that Fan
    et al. 2025 (section 7) name: two loops in sequence, while the method repeats one step."""

    symbols = ("0", "1")
    answers_each_symbol = True
    question = (
        "Write this sequence of bits again: just as it stands if the number of ones in it is even, "
        "and with every bit flipped if it is odd."
    )

    def from_rows(self, sizes: Int[Tensor, "b axes"], bits: Int[Tensor, "b p"]) -> Problems:
        length = sizes[:, 0]
        odd = bits.sum(1, keepdim=True) % 2
        return Problems(sizes, bits, length, zero_after(bits ^ odd, length), length, 2 * length)

    def reference(self, prompt: str) -> str:
        return prompt if prompt.count("1") % 2 == 0 else "".join("10"[int(bit)] for bit in prompt)

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        return {"parity": problems.prompt.sum(1) % 2}


@dataclass(frozen=True)
class SquareRoot(SequenceTask):
    """A binary number of n bits → its square root, rounded down, with ⌈n/2⌉ bits; both least significant bit first
    (Delétang et al. 2023). Every bit is uniform. T(n) = n²: long division, with a longer divisor for each bit."""

    symbols = ("0", "1")
    answers_numbers = True
    question = "Write the square root of this binary number, rounded down, in binary, most significant bit first."

    @property
    def families(self) -> Sequence[Family]:
        return (
            *super().families,
            Family("squares", "Squares of whole numbers.", partial(self._draw_near_square, 0)),
            Family(
                "below",
                "One less than squares, so that the root is just below a whole number.",
                partial(self._draw_near_square, 1),
            ),
        )

    def _draw_near_square(self, difference: int, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        uniform = self.sample(sizes, generator)
        roots = [max(math.isqrt(number), 1) for number in _to_integers(uniform.prompt, sizes[:, 0])]
        return self.from_rows(sizes, _to_bits([root**2 - difference for root in roots], int(sizes.max())))

    def from_rows(self, sizes: Int[Tensor, "b axes"], row: Int[Tensor, "b p"]) -> Problems:
        length, slots = sizes[:, 0], self.answer_slots(sizes)
        roots = _to_bits([math.isqrt(number) for number in _to_integers(row, length)], int(slots.max()))
        return Problems(sizes, row, length, roots, slots, length**2)

    def parse(self, text: str) -> Problems:
        """Read a number, most significant bit first."""
        return super().parse(text.strip()[::-1])

    def to_text(self, prompt: Int[Tensor, " p"]) -> str:
        """Write a number, most significant bit first."""
        return self.vocab.decode(prompt.flip(0))

    def format(self, answer: Int[Tensor, " a"]) -> str:
        """Write a root, most significant bit first, without leading zeros."""
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


def _to_integers(row: Int[Tensor, "b p"], length: Int[Tensor, " b"]) -> list[int]:
    """Return the numbers, of any size, that rows of bits stand for."""
    bits = zip(row.flip(1).tolist(), length.tolist(), strict=True)
    return [int("".join(map(str, one[len(one) - count :])), 2) for one, count in bits]


def _to_bits(numbers: Sequence[int], width: int) -> Int[Tensor, "b width"]:
    return torch.tensor([[number >> place & 1 for place in range(width)] for number in numbers], dtype=SYMBOL)


# Numbers of ones at which a model trained on short rows may fail: all bits are set, or one more bit is needed.
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
        """Draw rows with the given numbers of ones, at random positions."""
        length, width = sizes[:, :1], int(sizes.max())
        draw = torch.rand(len(sizes), width, generator=generator).masked_fill(torch.arange(width) >= length, 2)
        return self.from_rows(sizes, (draw.argsort(1).argsort(1) < ones).long())

    @property
    def families(self) -> Sequence[Family]:
        counts = (
            Family(
                f"{ones}-ones", f"Exactly {ones} ones, anywhere.", partial(self._draw_exact_count, ones), smallest=ones
            )
            for ones in COUNTS
        )
        return (*super().families, Family.of(self._near_power_of_two, self._near_power_of_two), *counts)

    def _draw_exact_count(self, ones: int, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self._draw_rows_with_ones(sizes, sizes[:, :1].clamp(max=ones), generator)

    def _near_power_of_two(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        """The number of ones is near a power of two, by one at most: 7, 8, 9."""
        length = sizes[:, 0]
        power = 2 ** (torch.rand(len(sizes), generator=generator) * _count_bits(length)).long()
        ones = power + torch.randint(-1, 2, (len(sizes),), generator=generator)
        return self._draw_rows_with_ones(sizes, torch.minimum(ones, length)[:, None], generator)

    def from_rows(self, sizes: Int[Tensor, "b axes"], bits: Int[Tensor, "b p"]) -> Problems:
        length, count = sizes[:, 0], bits.sum(1)
        written = _count_bits(count)
        answer = count[:, None] >> torch.arange(int(written.max())) & 1
        return Problems(sizes, bits, length, answer, written, length)

    def format(self, answer: Int[Tensor, " a"]) -> str:
        """Write a number in binary, most significant bit first."""
        return self.vocab.decode(answer.flip(0))

    def reference(self, prompt: str) -> str:
        return f"{prompt.count('1'):b}"[::-1]

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        return {"ones": problems.prompt.sum(1)}

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return _count_bits(sizes[:, 0])


def _count_bits(number: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
    """Return the number of bits of each number in binary; 1 for zero."""
    return number.double().frexp().exponent.clamp(min=1).long()  # exact up to 2⁵³
