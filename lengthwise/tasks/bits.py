"""Tasks on bits: prefix sums, the flipped copy, the square root, the number of ones, the bitwise or of two vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.rows import shift_right, zero_after
from lengthwise.base.types import SYMBOL_DTYPE, Problems
from lengthwise.tasks import SequenceTask, parse_symbols
from lengthwise.tasks.digits import join_numbers, split_numbers
from lengthwise.tasks.family import Family
from lengthwise.tasks.operands import EACH_NUMBER_PATTERNS, Digits, PairSampler, PairTask


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
    """n uniform bits → each bit XOR the parity of all bits. T(n) = 2n: n rounds until the last bit is folded into the
    parity, and n for the parity to reach the last position of the answer. This task is not from a paper. The
    task shows a limit that Fan et al. 2025 state (section 7): it needs two loops in sequence, and their method repeats
    a single step."""

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
    """A binary number of n bits → its square root, rounded down, with ⌈n/2⌉ bits, both with the least significant bit
    first. (In Delétang et al. 2023 the most significant bit comes first, and the number is never 0.) Every bit is
    uniform. T(n) = n²: long division, in which the divisor grows by a bit per step."""

    symbols = ("0", "1")
    answers_numbers = True
    question = "Write the square root of this binary number, rounded down, in binary, most significant bit first."

    @property
    def families(self) -> Sequence[Family]:
        below = "Numbers one below a square, whose root is just below a whole number."
        near_squares = (("squares", "Squares of whole numbers.", 0), ("below", below, 1))
        square_families = (
            Family(name, about, partial(self._draw_near_square, difference)) for name, about, difference in near_squares
        )
        return (*super().families, *square_families)

    def _draw_near_square(self, difference: int, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        uniform = self.sample(sizes, generator)
        roots = [max(math.isqrt(number), 1) for number in _to_integers(uniform.prompt, sizes[:, 0])]
        return self.from_rows(sizes, _to_bits([root**2 - difference for root in roots], int(sizes.max())))

    def from_rows(self, sizes: Int[Tensor, "b axes"], rows: Int[Tensor, "b p"]) -> Problems:
        length, slots = sizes[:, 0], self.answer_slots(sizes)
        roots = _to_bits([math.isqrt(number) for number in _to_integers(rows, length)], int(slots.max()))
        return Problems(sizes, rows, length, roots, slots, length**2)

    def parse(self, text: str) -> Problems:
        """Read a number, most significant bit first."""
        return super().parse(self.vocab.decode(parse_symbols(self, text).flip(0)))

    def to_text(self, prompt: Int[Tensor, " p"]) -> str:
        """Return a prompt as text, most significant bit first."""
        return self.vocab.decode(prompt.flip(0))

    def format(self, answer: Int[Tensor, " a"]) -> str:
        """Return a root as text, most significant bit first, without leading zeros."""
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


def _to_integers(rows: Int[Tensor, "b p"], length: Int[Tensor, " b"]) -> list[int]:
    """Convert rows of bits, least significant first, to integers of any size."""
    bits = zip(rows.flip(1).tolist(), length.tolist(), strict=True)
    return [int("".join(map(str, row_bits[len(row_bits) - count :])), 2) for row_bits, count in bits]


def _to_bits(numbers: Sequence[int], width: int) -> Int[Tensor, "b width"]:
    return torch.tensor([[number >> place & 1 for place in range(width)] for number in numbers], dtype=SYMBOL_DTYPE)


# Counts of ones at which a model trained on short rows may fail: in binary they are all ones, or one digit longer.
COUNTS_OF_ONES = (3, 4, 7, 8, 15, 16, 31, 32, 63, 64)


@dataclass(frozen=True)
class BinarySum(SequenceTask):
    """n uniform bits → the number of ones, in binary, least significant bit first, without leading zeros (``0`` if
    there are no ones). T(n) = n: one bit is counted per round. In the harder set the number of ones is uniform from 0
    to n, as uniform bits almost never have nearly n ones. Fan et al. 2025 write an empty answer for 0."""

    symbols = ("0", "1")
    harder = "uniform-count"
    answers_numbers = True
    question = "Count the ones in this sequence of bits. Write their number in binary, most significant bit first."

    def sample_hard(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        ones = (torch.rand(len(sizes), 1, generator=generator) * (sizes[:, :1] + 1)).long()
        return self._draw_rows_with_ones(ones, sizes, generator)

    def _draw_rows_with_ones(self, ones: Int[Tensor, "b 1"] | int, sizes: Tensor, generator: Generator) -> Problems:
        """Draw rows with ``ones`` ones each, at most the row's length, at random positions."""
        length, width = sizes[:, :1], int(sizes.max())
        draw = torch.rand(len(sizes), width, generator=generator).masked_fill(torch.arange(width) >= length, 2)
        return self.from_rows(sizes, (draw.argsort(1).argsort(1) < length.clamp(max=ones)).long())

    @property
    def families(self) -> Sequence[Family]:
        counts = (
            Family(f"{n}-ones", f"Rows with exactly {n} ones.", partial(self._draw_rows_with_ones, n), smallest=n)
            for n in COUNTS_OF_ONES
        )
        return (*super().families, Family.from_function(self._near_power_of_two, self._near_power_of_two), *counts)

    def _near_power_of_two(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        """Rows whose number of ones differs from a power of two by at most one: 7, 8, 9."""
        length = sizes[:, 0]
        power = 2 ** (torch.rand(len(sizes), generator=generator) * _count_bits(length)).long()
        ones = power + torch.randint(-1, 2, (len(sizes),), generator=generator)
        return self._draw_rows_with_ones(ones[:, None], sizes, generator)

    def from_rows(self, sizes: Int[Tensor, "b axes"], bits: Int[Tensor, "b p"]) -> Problems:
        length, count = sizes[:, 0], bits.sum(1)
        bit_count = _count_bits(count)
        answer = count[:, None] >> torch.arange(int(bit_count.max())) & 1
        return Problems(sizes, bits, length, answer, bit_count, length)

    def format(self, answer: Int[Tensor, " a"]) -> str:
        """Return the number of ones as binary text, most significant bit first."""
        return self.vocab.decode(answer.flip(0))

    def reference(self, prompt: str) -> str:
        return f"{prompt.count('1'):b}"[::-1]

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        return {"ones": problems.prompt.sum(1)}

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return _count_bits(sizes[:, 0])


def _count_bits(number: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
    """Return each number's count of binary digits; zero has one."""
    return number.double().frexp().exponent.clamp(min=1).long()  # exact up to 2⁵³


OR_ID = 2  # id of the sign between two vectors


def one_at_the_start(pair: PairSampler) -> Digits:
    """Vectors with a single 1, in the first position of the shorter vector."""
    one = (pair.digit_index == 0).long().expand(len(pair.lengths), -1)
    return pair.stack_by_length(torch.zeros_like(one), one)


def one_at_the_end(pair: PairSampler) -> Digits:
    """Vectors with a single 1, in the last position of the shorter vector."""
    one = (pair.digit_index == pair.shorter_length - 1).long()
    return pair.stack_by_length(torch.zeros_like(one), one)


def one_in_the_longer(pair: PairSampler) -> Digits:
    """Vectors with a single 1, at a uniform position of the longer vector, possibly beyond the shorter one's end."""
    one = (pair.digit_index == pair.draw_position(pair.longer_length)).long()
    return pair.stack_by_length(one, torch.zeros_like(one))


def no_one(pair: PairSampler) -> Digits:
    """Vectors of zeros only."""
    return torch.zeros(len(pair.lengths), 2, pair.width, dtype=torch.long)


@dataclass(frozen=True)
class BitwiseOr(PairTask):
    """Two vectors → their bitwise or, with the length of the longer one. In uniform problems one vector, never the
    longer one, holds a single 1, at a uniform position; the other vector is all zeros. T is the length of the longer
    vector."""

    symbols = ("0", "1", "|")
    signs = ("|",)
    axes = ("first", "second")
    base, leading_zeros = 2, True
    # ``sample`` draws vectors with a single 1 only; some families hold other vectors, which people may type.
    patterns = (
        *EACH_NUMBER_PATTERNS, one_at_the_start, one_at_the_end, one_in_the_longer, no_one, PairSampler.all_highest,
        PairSampler.twice, PairSampler.complement, PairSampler.zeros,
    )  # fmt: skip
    question = (
        "Give the bitwise or of these two vectors of bits. They are aligned at their first bits, and the shorter one "
        "is filled up with zeros at its end."
    )

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        first, second = sizes.unbind(1)
        coin = torch.rand(len(sizes), generator=generator) < 0.5
        is_in_first = torch.where(first == second, coin, first < second)  # whether the first vector holds the 1
        one = (torch.rand(len(sizes), generator=generator) * sizes.amin(1)).long()
        position = torch.where(is_in_first, one, first + 1 + one)
        bits = torch.zeros(len(sizes), int(sizes.sum(1).max()) + 1, dtype=SYMBOL_DTYPE)
        return self._build_problems(sizes, bits.scatter_(1, position[:, None], 1))

    def from_operands(self, sizes: Int[Tensor, "b axes"], operands: Digits) -> Problems:
        first, second = operands.unbind(1)
        return self._build_problems(sizes, join_numbers(first, second, sizes, "least", 0))

    def parse(self, text: str) -> Problems:
        """Read two vectors of bits with ``|`` between them, such as 01|0011."""
        first, second = split_numbers(self, text, OR_ID, "vectors")
        bits = torch.cat([first, torch.zeros(1, dtype=torch.long), second])
        return self._build_problems(torch.tensor([[len(first), len(second)]]), bits[None])

    def _build_problems(self, sizes: Int[Tensor, "b axes"], bits: Int[Tensor, "b p"]) -> Problems:
        """Return problems, given rows of the first vector's bits, a zero in place of the sign, and the second vector's
        bits."""
        first, second, longest = *sizes.unbind(1), sizes.amax(1)
        width = int(longest.max())
        answer = zero_after(bits[:, :width], first) | zero_after(shift_right(bits, -1 - first, width), second)
        prompt = bits.scatter(1, first[:, None], OR_ID)
        return Problems(sizes, prompt, sizes.sum(1) + 1, answer, longest, longest)

    def reference(self, prompt: str) -> str:
        first, second = prompt.split("|")
        width = max(len(first), len(second))
        pairs = zip(first.ljust(width, "0"), second.ljust(width, "0"), strict=True)
        return "".join("1" if "1" in pair else "0" for pair in pairs)

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        return {"position of the one": problems.answer.argmax(1) + 1}

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return sizes.amax(1)
