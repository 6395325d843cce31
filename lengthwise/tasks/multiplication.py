"""Multiplication: of a short and a long binary number (Fan et al. 2025, section 6.1), or in any base from 2 to 10
(McLeish et al. 2024, section 4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from lengthwise.base.rows import zero_after
from lengthwise.base.types import SYMBOL, Problems
from lengthwise.tasks.digits import Base, Order, carry, count_digits, join_numbers, reorder, replace_leading_zeros
from lengthwise.tasks.operands import SHARED, ArithmeticTask, Digits


@dataclass(frozen=True)
class Multiplication(ArithmeticTask):
    """n1 digits times n2 digits → their product. T = n1 · n2: each digit of the first adds the second once, and a carry
    travels one digit per round.

    With ``leading_zeros`` every digit is uniform, and the product always has n1 + n2 digits; without, an operand is a
    uniform number of exactly n digits (a one-digit operand may be 0) and the product has no leading zeros. By default
    the task is that of Fan et al. 2025, whose first operand has one or two bits;
    ``base=10 order=least leading_zeros=false`` is McLeish et al.'s. In the harder set each problem has its own, uniform
    share of largest digits (in binary: ones), so that many columns carry.
    """

    base: Base = 2  # base of the numbers, 2 to 10
    order: Order = "most"  # which digit of an operand is written first
    product: Order = "least"  # which digit of the product is written first
    leading_zeros: bool = True  # every digit is uniform, and the product has n1 + n2 digits

    axes = ("first", "second")
    signs = ("*",)
    harder = "high-digits"
    patterns = SHARED

    @property
    def answer_order(self) -> Order:
        return self.product

    @property
    def mirrored(self) -> bool:  # type: ignore[override]
        return self.order != self.product

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self._build_problems(sizes, *(self._draw_operand(length, generator) for length in sizes.unbind(1)))

    def sample_hard(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        share = torch.rand(len(sizes), 1, generator=generator)
        return self._build_problems(
            sizes, *(self._draw_operand(length, generator, share) for length in sizes.unbind(1))
        )

    def _draw_operand(
        self, length: Int[Tensor, " b"], generator: Generator, share: Float[Tensor, "b 1"] | None = None
    ) -> Int[Tensor, "b n"]:
        """Draw uniform digits or, with ``share``, this fraction of largest digits and uniform smaller digits."""
        shape = len(length), int(length.max())

        def digits(low: int, high: int) -> Tensor:
            return torch.randint(low, high, shape, generator=generator, dtype=SYMBOL)

        drawn = digits(0, self.base)
        if share is not None:
            chosen = torch.rand(shape, generator=generator) < share
            drawn = torch.where(chosen, self.base - 1, digits(0, self.base - 1))
        if not self.leading_zeros:
            drawn = replace_leading_zeros(drawn, length, digits(1, self.base))
        return zero_after(drawn, length)

    def from_operands(self, sizes: Int[Tensor, "b axes"], operands: Digits) -> Problems:
        return self._build_problems(sizes, *(operands[:, i, : int(sizes[:, i].max())] for i in (0, 1)))

    def _build_problems(
        self, sizes: Int[Tensor, "b axes"], first: Int[Tensor, "b n"], second: Int[Tensor, "b m"]
    ) -> Problems:
        """Return problems, given the operands' digits, least significant first and padded with zeros."""
        product = _multiply(first, second, self.base)
        length = sizes.sum(1) if self.leading_zeros else count_digits(product)
        answer = reorder(product, length, self.product)[:, : int(length.max())]
        prompt = join_numbers(first, second, sizes, self.order, self.base)
        return Problems(sizes, prompt, sizes.sum(1) + 1, answer, length, sizes.prod(1))

    def reference(self, prompt: str) -> str:
        first, second = map(self.read_number, prompt.split("*"))
        digits = np.base_repr(first * second, self.base)
        if self.leading_zeros:
            digits = digits.rjust(len(prompt) - 1, "0")
        return digits if self.product == "most" else digits[::-1]

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        """Return the number of digits other than zero."""
        return {"ones" if self.base == 2 else "digits above 0": (problems.prompt % self.base > 0).sum(1)}

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return sizes.sum(1)


def _multiply(first: Int[Tensor, "b n"], second: Int[Tensor, "b m"], base: int) -> Int[Tensor, "b n+m"]:
    """Multiply numbers, least significant digit first, by long multiplication: add up the columns, then carry."""
    shorter, longer = sorted((first.double(), second.double()), key=lambda digits: digits.shape[1])
    size, width = longer.shape[1], shorter.shape[1] + longer.shape[1]
    totals = longer.new_zeros(len(longer), width)
    for position, digit in enumerate(shorter.split(1, 1)):
        totals[:, position : position + size].addcmul_(digit, longer)
    return carry(totals, base, largest_total=shorter.shape[1] * (base - 1) ** 2)
