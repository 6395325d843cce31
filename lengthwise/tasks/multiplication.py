"""Multiplication, binary of a short number and a long one (Fan et al. 2025, section 6.1), or in any base from 2 to 10
(McLeish et al. 2024, section 4)."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from lengthwise.base.rows import zero_after
from lengthwise.base.types import SYMBOL, Problems
from lengthwise.tasks import Task
from lengthwise.tasks.digits import (
    Base,
    Order,
    arithmetic,
    as_read,
    carry,
    join_numbers,
    number_length,
    reorder,
    split_numbers,
    strip_zeros,
    without_leading_zeros,
)
from lengthwise.tasks.family import Family
from lengthwise.tasks.operands import SHARED, Pair, PairPattern, every_pair, families, fit_pattern


@dataclass(frozen=True)
class Multiplication(Task):
    """n1 digits times n2 digits → their product. T = n1 · n2: a digit of the first adds the second in, and a carry
    travels one digit per round.

    With ``leading_zeros`` every digit is uniform, and the product always has n1 + n2 digits; without, an operand is a
    uniform number of exactly n digits (of one digit: 0 may be drawn) and the product has no leading zeros. Unchanged,
    the task is that of Fan et al. 2025, whose first operand has one or two bits; ``base=10 order=least
    leading_zeros=false`` is McLeish et al.'s. In the harder set each problem has its own, uniform share of largest
    digits (bits: ones), so that many carry far.
    """

    base: Base = 2  # of the numbers, 2 to 10
    order: Order = "most"  # which digit of an operand is written first
    product: Order = "least"  # which digit of the product is
    leading_zeros: bool = True  # every digit is uniform, and the product has n1 + n2 digits

    axes = ("first", "second")
    signs = ("*",)
    harder = "high-digits"
    answers_numbers = True

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*string.digits[: self.base], "*")

    @property
    def mirrored(self) -> bool:  # type: ignore[override]
        return self.order != self.product

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self._problems(sizes, *(self._operand(length, generator) for length in sizes.unbind(1)))

    def sample_hard(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        share = torch.rand(len(sizes), 1, generator=generator)
        return self._problems(sizes, *(self._operand(length, generator, share) for length in sizes.unbind(1)))

    @property
    def families(self) -> Sequence[Family]:
        return (*super().families, *families(SHARED, self._draw_pattern))

    def _draw_pattern(self, pattern: PairPattern, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        pair = Pair(sizes, self.base, self.leading_zeros, generator)
        return self._of(sizes, fit_pattern(pattern, pair))

    def enumerate(self, size: Sequence[int], most: int) -> Problems | None:
        operands = every_pair((size[0], size[1]), self.base, self.leading_zeros, most)
        return None if operands is None else self._of(torch.tensor([list(size)]).repeat(len(operands), 1), operands)

    def _of(self, sizes: Int[Tensor, "b axes"], operands: Int[Tensor, "b 2 n"]) -> Problems:
        first, second = (part[:, : int(sizes[:, axis].max())] for axis, part in enumerate(operands.unbind(1)))
        return self._problems(sizes, first.to(SYMBOL), second.to(SYMBOL))

    def _operand(
        self, length: Int[Tensor, " b"], generator: Generator, largest: Float[Tensor, "b 1"] | None = None
    ) -> Int[Tensor, "b n"]:
        """Uniform digits; or, in each row, a share of ``largest`` are the largest, and the others uniform below it."""
        shape = len(length), int(length.max())

        def digits(low: int, high: int) -> Tensor:
            return torch.randint(low, high, shape, generator=generator, dtype=SYMBOL)

        drawn = digits(0, self.base)
        if largest is not None:
            chosen = torch.rand(shape, generator=generator) < largest
            drawn = torch.where(chosen, self.base - 1, digits(0, self.base - 1))
        if not self.leading_zeros:
            drawn = without_leading_zeros(drawn, length, digits(1, self.base))
        return zero_after(drawn, length)

    def _problems(
        self, sizes: Int[Tensor, "b axes"], first: Int[Tensor, "b n"], second: Int[Tensor, "b m"]
    ) -> Problems:
        """From the operands' digits, least significant first and padded with zeros."""
        product = _product(first, second, self.base)
        length = sizes.sum(1) if self.leading_zeros else number_length(product)
        answer = reorder(product, length, self.product)[:, : int(length.max())]
        prompt = join_numbers(first, second, sizes, self.order, self.base)
        return Problems(sizes, prompt, sizes.sum(1) + 1, answer, length, sizes.prod(1))

    def parse(self, text: str) -> Problems:
        """Two numbers as they are read: most significant digit first."""
        first, second = split_numbers(self, text, self.base)
        if not self.leading_zeros:
            first, second = strip_zeros(first), strip_zeros(second)
        return self._problems(torch.tensor([[len(first), len(second)]]), first.flip(0)[None], second.flip(0)[None])

    def format(self, answer: Int[Tensor, " a"]) -> str:
        """Most significant digit first, without leading zeros."""
        return self.vocab.decode(answer if self.product == "most" else answer.flip(0)).lstrip("0") or "0"

    def to_text(self, prompt: Int[Tensor, " p"]) -> str:
        """Most significant digit first."""
        return as_read(self.vocab.decode(prompt), self.order)

    @property
    def question(self) -> str:
        return arithmetic(self.base)

    def reference(self, prompt: str) -> str:
        turn = slice(None, None, -1 if self.order == "least" else 1)
        first, second = (int(operand[turn], self.base) for operand in prompt.split("*"))
        product, digits = first * second, ""
        while product or not digits:
            product, digit = divmod(product, self.base)
            digits += str(digit)
        if self.leading_zeros:
            digits = digits.ljust(len(prompt) - 1, "0")
        return digits if self.product == "least" else digits[::-1]

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        """How many digits are not zero."""
        return {"ones" if self.base == 2 else "digits above 0": (problems.prompt % self.base > 0).sum(1)}

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return sizes.sum(1)


def _product(first: Int[Tensor, "b n"], second: Int[Tensor, "b m"], base: int) -> Int[Tensor, "b n+m"]:
    """Long multiplication, least significant digit first: the columns' totals, then what they carry."""
    shorter, longer = sorted((first.double(), second.double()), key=lambda digits: digits.shape[1])
    size, width = longer.shape[1], shorter.shape[1] + longer.shape[1]
    totals = longer.new_zeros(len(longer), width)
    for position, digit in enumerate(shorter.split(1, 1)):
        totals[:, position : position + size].addcmul_(digit, longer)
    return carry(totals, base, most=shorter.shape[1] * (base - 1) ** 2)
