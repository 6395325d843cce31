"""Addition in any base from 2 to 10, digits in either order (Fan et al. 2025; McLeish et al. 2024)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.rows import shift_right, zero_after
from lengthwise.base.types import SYMBOL, Problems
from lengthwise.tasks.digits import Base, Order, carry, count_digits, join_numbers, reorder, replace_leading_zeros
from lengthwise.tasks.operands import SHARED, SUMS, ArithmeticTask, Digits, Pair


@dataclass(frozen=True)
class Addition(ArithmeticTask):
    """Two numbers → their sum. T = the longer operand's digits: a carry travels one digit per round.

    With ``equal_lengths`` both operands have ``length`` digits; without, the axes are ``first`` and ``second``. With
    ``leading_zeros`` every digit is uniform (the operand is uniform in [0, base^n − 1]) and the answer always has one
    digit more than the longer operand; without, an operand is a uniform number of exactly n digits (a one-digit operand
    may be 0) and the answer has no leading zeros. The harder set is rich in long carries.
    """

    base: Base = 10  # base of the numbers, 2 to 10
    order: Order = "most"  # which digit is written first: the least or the most significant
    equal_lengths: bool = False  # both operands have the same number of digits
    leading_zeros: bool = False  # every digit is uniform, and the answer has one digit more than the longer operand

    signs = ("+",)
    harder = "long-carry"
    patterns = (*SHARED, *SUMS)

    @property
    def axes(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("length",) if self.equal_lengths else ("first", "second")

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        """Return the length of the longest carry: the number of columns from its start to the last column that passes
        it on."""
        totals = self.stack_columns(problems)[0].sum(2)
        above = torch.nn.functional.pad(totals, (0, 1))[:, 1:] % self.base
        carried = self.answer_digits(problems, totals.shape[1] + 1)[:, 1:] != above
        position = torch.arange(totals.shape[1])
        start = torch.where(totals >= self.base, position, -1).cummax(1).values
        return {"longest carry": ((position - start + 1) * carried).amax(1)}

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return sizes.max(1).values + 1

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        columns = torch.randint(self.base, (len(sizes), int(sizes.max()), 2), generator=generator, dtype=SYMBOL)
        return self._trim_operands(sizes, columns.mT.contiguous(), generator)

    def sample_hard(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        """Draw sums with one long carry. It starts at a uniform position and ends at a uniform later one (in half of
        the rows at the very end), through columns that add up to base − 1; in half of the rows these columns hold a
        largest digit above a zero, as in 99…9 + 1. The other columns are uniform."""
        pair = Pair(sizes.expand(-1, 2), self.base, self.leading_zeros, generator)
        return self._trim_operands(sizes, pair.carry_chain(always=True).to(SYMBOL), generator)

    def _trim_operands(self, sizes: Int[Tensor, "b axes"], operands: Digits, generator: Generator) -> Problems:
        """Set digits beyond each operand's length to 0. Without leading zeros, redraw a top digit that is 0."""
        lengths = sizes.expand(-1, 2)
        if not self.leading_zeros:
            others = torch.randint(1, self.base, operands.mT.shape, generator=generator, dtype=SYMBOL)
            operands = replace_leading_zeros(operands, lengths, others.mT)
        return self.from_operands(sizes, zero_after(operands, lengths))

    def from_operands(self, sizes: Int[Tensor, "b axes"], operands: Digits) -> Problems:
        lengths = sizes.expand(-1, 2)
        longest = lengths.amax(1)
        first, second = operands.unbind(1)
        totals = torch.nn.functional.pad(first + second, (0, 1))
        total = carry(totals, self.base, largest_total=2 * (self.base - 1))
        # Top digits are not 0, so only a carry makes a sum longer than its operands.
        further = torch.ones_like(longest) if self.leading_zeros else (total.gather(1, longest[:, None]) > 0)[:, 0]
        answer_length = longest + further
        prompt = join_numbers(first, second, lengths, self.order, self.base)
        answer = reorder(total, answer_length, self.order)[:, : int(answer_length.max())]
        return Problems(sizes, prompt, lengths.sum(1) + 1, answer, answer_length, longest)

    def stack_columns(self, problems: Problems) -> tuple[Int[Tensor, "b n 2"], Int[Tensor, " b"]]:
        """Return the operands' digits in columns, least significant first and padded with zeros, and each row's number
        of columns."""
        plus = (problems.prompt == self.base).long().argmax(1)
        lengths = torch.stack([plus, problems.prompt_length - plus - 1], 1)
        width = int(lengths.max())
        operands = []
        for start, length in ((torch.zeros_like(plus), lengths[:, 0]), (plus + 1, lengths[:, 1])):
            digits = zero_after(shift_right(problems.prompt, -start, width), length)
            operands.append(reorder(digits, length, self.order))
        return torch.stack(operands, -1), lengths.max(1).values

    def answer_digits(self, problems: Problems, count: int) -> Int[Tensor, "b count"]:
        """Return the answers' lowest ``count`` digits, least significant first, padded with zeros."""
        lowest = reorder(problems.answer, problems.answer_length, self.order)[:, :count]
        return torch.nn.functional.pad(lowest, (0, count - lowest.shape[1]))

    def order_answer(self, digits: Int[Tensor, " n"]) -> Int[Tensor, " a"]:
        """Return an answer in the task's digit order, given its digits least significant first."""
        row = digits[None]
        length = torch.tensor([len(digits)]) if self.leading_zeros else count_digits(row)
        return reorder(row, length, self.order)[0, : int(length)]

    def reference(self, prompt: str) -> str:
        operands = prompt.split("+")
        digits = np.base_repr(sum(map(self.read_number, operands)), self.base)
        if self.leading_zeros:
            digits = digits.rjust(max(map(len, operands)) + 1, "0")
        return digits if self.order == "most" else digits[::-1]
