"""Bitwise or of two vectors of bits, aligned at their first symbols (McLeish et al. 2024, section 4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.rows import shift_right, zero_after
from lengthwise.base.types import SYMBOL, Problems
from lengthwise.tasks.digits import join_numbers, split_numbers
from lengthwise.tasks.operands import OF_EACH, Digits, Pair, PairTask

OR = 2  # the id of the sign between the vectors


def one_at_the_start(pair: Pair) -> Digits:
    """A single 1, in the first position of the shorter vector."""
    return _place_single_one(pair, torch.zeros_like(pair.shorter_length))


def one_at_the_end(pair: Pair) -> Digits:
    """A single 1, in the last position of the shorter vector."""
    return _place_single_one(pair, pair.shorter_length - 1)


def one_in_the_longer(pair: Pair) -> Digits:
    """A single 1, in the longer vector, at a uniform position, perhaps beyond the shorter vector's end."""
    one = (pair.digit_index == pair.draw_position(pair.longer_length)).long()
    return pair.stack_by_length(one, torch.zeros_like(one))


def no_one(pair: Pair) -> Digits:
    """Only zeros."""
    return torch.zeros(len(pair.lengths), 2, pair.width, dtype=torch.long)


def _place_single_one(pair: Pair, position: Int[Tensor, "b 1"]) -> Digits:
    """Return pairs of vectors with a single 1, at ``position`` of the shorter vector."""
    one = (pair.digit_index == position).long()
    return pair.stack_by_length(torch.zeros_like(one), one)


@dataclass(frozen=True)
class BitwiseOr(PairTask):
    """Two vectors → their bitwise or, as long as the longer. The longer one is all zeros; the shorter one (either, if
    both are equally long) holds a single 1, at a uniform position. T = the longer's length."""

    symbols = ("0", "1", "|")
    signs = ("|",)
    axes = ("first", "second")
    base, leading_zeros = 2, True
    # Vectors with a single 1, which ``sample`` draws, and any two vectors, which people may type.
    patterns = (
        *OF_EACH, one_at_the_start, one_at_the_end, one_in_the_longer, no_one, Pair.all_highest, Pair.twice,
        Pair.complement, Pair.zeros,
    )  # fmt: skip
    question = (
        "Give the bitwise or of these two vectors of bits. They are aligned at their first bits, and the shorter one "
        "is filled up with zeros at its end."
    )

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        first, second = sizes.unbind(1)
        coin = torch.rand(len(sizes), generator=generator) < 0.5
        in_first = torch.where(first == second, coin, first < second)  # whether the first vector holds the 1
        one = (torch.rand(len(sizes), generator=generator) * sizes.amin(1)).long()
        position = torch.where(in_first, one, first + 1 + one)
        bits = torch.zeros(len(sizes), int(sizes.sum(1).max()) + 1, dtype=SYMBOL)
        return self._build_problems(sizes, bits.scatter_(1, position[:, None], 1))

    def from_operands(self, sizes: Int[Tensor, "b axes"], operands: Digits) -> Problems:
        first, second = operands.unbind(1)
        return self._build_problems(sizes, join_numbers(first, second, sizes, "least", 0))

    def parse(self, text: str) -> Problems:
        """Read any two vectors."""
        first, second = split_numbers(self, text, OR, "vectors")
        bits = torch.cat([first, torch.zeros(1, dtype=torch.long), second])
        return self._build_problems(torch.tensor([[len(first), len(second)]]), bits[None])

    def _build_problems(self, sizes: Int[Tensor, "b axes"], bits: Int[Tensor, "b p"]) -> Problems:
        """Return problems with the ``bits`` of both vectors and a zero at the sign's position."""
        first, second, longest = *sizes.unbind(1), sizes.amax(1)
        width = int(longest.max())
        answer = zero_after(bits[:, :width], first) | zero_after(shift_right(bits, -1 - first, width), second)
        prompt = bits.scatter(1, first[:, None], OR)
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
