"""Base classes of tasks on numbers, and families of structured pairs of numbers."""

from __future__ import annotations

import string
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import wraps

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor
from torch.nn import functional as F

from lengthwise.base.rows import zero_after
from lengthwise.base.types import SYMBOL_DTYPE, Problems
from lengthwise.tasks import Task
from lengthwise.tasks.digits import Order, count_digits, split_numbers, to_reading_order
from lengthwise.tasks.family import Pattern, RowSampler, draw_run_ids, enumerate_rows

Digits = Int[Tensor, "b 2 n"]


@dataclass(frozen=True)
class PairSampler:
    """A sampler of the digits of two numbers per row, least significant first. Each method in ``number_patterns`` and
    ``sum_patterns`` draws a family. ``PairTask`` sets digits beyond a number's length to zero, and replaces leading
    zeros if the task has none."""

    lengths: Int[Tensor, "b 2"]
    base: int
    leading_zeros: bool
    generator: Generator

    @property
    def width(self) -> int:
        return int(self.lengths.max())

    @property
    def largest_digit(self) -> int:
        return self.base - 1

    @property
    def longer_length(self) -> Int[Tensor, "b 1"]:
        return self.lengths.amax(1, keepdim=True)

    @property
    def shorter_length(self) -> Int[Tensor, "b 1"]:
        return self.lengths.amin(1, keepdim=True)

    @property
    def digit_index(self) -> Int[Tensor, " n"]:
        return torch.arange(self.width)

    def draw_digits(self, low: int = 0) -> Int[Tensor, "b n"]:
        """Draw a number for each row; its digits are uniform from ``low`` to ``base`` − 1."""
        shape = len(self.lengths), self.width
        return torch.randint(low, self.base, shape, generator=self.generator, dtype=SYMBOL_DTYPE)

    def draw_fraction(self) -> Float[Tensor, "b 1"]:
        """Draw a uniform number in [0, 1) for each row."""
        return torch.rand(len(self.lengths), 1, generator=self.generator)

    def draw_position(self, length: Int[Tensor, "b 1"]) -> Int[Tensor, "b 1"]:
        """Draw a uniform position below ``length`` for each row."""
        return (self.draw_fraction() * length).long()

    def draw_complementable_number(self) -> Int[Tensor, "b n"]:
        """Draw the longer number of each row such that a shorter number can bring every column's sum to the largest
        digit. Where the shorter number has no digit, the longer one has the largest digit. Unless leading zeros are
        allowed or the base is 2, neither number starts with a zero."""
        digits = self.draw_digits()
        if not self.leading_zeros and self.base > 2:
            between = torch.randint(1, self.base - 1, digits.shape, generator=self.generator)
            digits = torch.where(self.digit_index == self.shorter_length - 1, between, digits)
        return torch.where(self.digit_index >= self.shorter_length, self.largest_digit, digits)

    def stack_by_length(self, longer: Int[Tensor, "b n"], shorter: Int[Tensor, "b n"]) -> Digits:
        """Stack two numbers per row so that the longer one gets the larger of the row's ``lengths``. The order is
        random if both lengths are equal."""
        first, second = self.lengths[:, :1], self.lengths[:, 1:]
        swap = (first < second) | ((first == second) & (self.draw_fraction() < 0.5))
        return torch.stack([torch.where(swap, shorter, longer), torch.where(swap, longer, shorter)], 1)

    def is_leading_zero(self, digits: Digits) -> Bool[Tensor, "b 2 n"]:
        """Return a mask that is True at the top digit of numbers of several digits if that digit is zero."""
        lengths = self.lengths[..., None]
        return (self.digit_index == lengths - 1) & (digits == 0) & (lengths > 1)

    def all_highest(self) -> Digits:
        """Numbers of largest digits only: 999+999."""
        return torch.full((len(self.lengths), 2, self.width), self.largest_digit)

    def complement(self) -> Digits:
        """Numbers whose digits add up to the largest digit in all columns: 372+627. No column carries, but a carry into
        the lowest column would pass through all."""
        longer = self.draw_complementable_number()
        return self.stack_by_length(longer, self.largest_digit - longer)

    def complement_and_one(self) -> Digits:
        """Numbers whose digits add up to the largest digit in all columns but the lowest, and there to one more:
        372+628. A carry passes through all columns."""
        longer, lowest = self.draw_complementable_number(), self.digit_index == 0
        longer = torch.where(lowest, longer.clamp(min=1), longer)
        return self.stack_by_length(longer, self.largest_digit - longer + lowest)

    def interrupted_carry(self) -> Digits:
        """Numbers of complement-and-one with one digit decreased by one: 372+618. The carry ends at this digit; if it
        is the lowest, nothing carries."""
        first, second = self.complement_and_one().unbind(1)
        chosen = self.digit_index == self.draw_position(self.shorter_length)
        from_first = chosen & (first > 0)
        return torch.stack([first - from_first.long(), second - (chosen & ~from_first & (second > 0)).long()], 1)

    def highest_and_one(self) -> Digits:
        """A number of largest digits and the number 1: 999+001. In half of the rows, a smaller digit stops the carry:
        989+001."""
        longer = torch.full((len(self.lengths), self.width), self.largest_digit)
        stops = (self.digit_index == self.draw_position(self.longer_length)) & (self.draw_fraction() < 0.5)
        longer = longer - stops.long() * torch.randint(1, self.base, longer.shape, generator=self.generator)
        return self.stack_by_length(longer, (self.digit_index == 0).long().expand_as(longer))

    def every_column_carries(self) -> Digits:
        """Numbers whose digits add up to the base or more in every column that both numbers have."""
        first = self.draw_digits(low=1)
        excess = (torch.rand(first.shape, generator=self.generator) * first).long()
        return torch.stack([first, self.base - first + excess], 1)

    def no_column_carries(self) -> Digits:
        """Numbers whose digits add up to the largest digit or less in every column."""
        first = self.draw_digits()
        second = (torch.rand(first.shape, generator=self.generator) * (self.base - first)).long()
        return self.stack_by_length(first, second)

    def twice(self) -> Digits:
        """A number and itself or, if the lengths differ, its lowest digits: 372+372, 4372+372."""
        digits = self.draw_digits()
        return torch.stack([digits, digits], 1)

    def mirrored(self) -> Digits:
        """A number and its reverse or, if the lengths differ, the reverse of its lowest digits: 372+273."""
        digits = self.draw_digits()
        return torch.stack([digits, digits.gather(1, (self.shorter_length - 1 - self.digit_index).clamp(min=0))], 1)

    def powers(self) -> Digits:
        """Powers of the base, and numbers one above or below: 1000, 1001, 999."""
        numbers = []
        for length in self.lengths.split(1, 1):
            # The 1 of the power is at a uniform digit or, without leading zeros, at the top digit.
            one_index = self.draw_position(length) if self.leading_zeros else length - 1
            change = torch.randint(-1, 2, (len(length), 1), generator=self.generator)
            end = one_index if self.leading_zeros else length
            one_less = torch.where(self.digit_index < end, self.largest_digit, 0)
            power = (self.digit_index == one_index).long()
            one_more = power | (self.digit_index == 0).long()
            numbers.append(torch.where(change < 0, one_less, torch.where(change > 0, one_more, power)))
        return torch.stack(numbers, 1)

    def zeros(self) -> Digits:
        """Pairs in which one or both numbers are zero or, if leading zeros are not allowed, a 1 followed by zeros."""
        digits = torch.stack([self.draw_digits(), self.draw_digits()], 1)
        nonzero = torch.randint(3, (len(digits), 1, 1), generator=self.generator)  # 2: neither
        return digits * (torch.tensor([[0], [1]]) == nonzero)

    def one_and_any(self) -> Digits:
        """Pairs in which one number is 1 or, if leading zeros are not allowed, 1001: 372+001."""
        return self.stack_by_length(self.draw_digits(), (self.digit_index == 0).long().expand(len(self.lengths), -1))

    def small_and_large(self) -> Digits:
        """A number with zeros above its lowest digits, and a number without a zero: 006+372."""
        half = (self.shorter_length // 2).clamp(min=1)
        small = self.draw_digits() * (self.digit_index < 1 + self.draw_position(half))
        return self.stack_by_length(self.draw_digits(low=1), small)

    def carry_chain(self, *, always_carries: bool = False) -> Digits:
        """Sums with a chain of columns that add up to the largest digit: 1372+0628. In half of the rows a carry enters
        the chain. The other columns are uniform."""
        # With ``always_carries``, a carry enters in all rows: the harder set of addition.
        longer, shorter, place = self.longer_length, self.shorter_length, self.digit_index
        carries = torch.tensor(True) if always_carries else self.draw_fraction() < 0.5
        start = self.draw_position(shorter)
        end = start + 1 + self.draw_position(longer - start)
        end = torch.where(self.draw_fraction() < 0.5, longer, end)
        if not always_carries:  # without a carry, a chain may start at the lowest digit
            start = torch.where(~carries & (self.draw_fraction() < 0.5), -1, start)
        chained, first = (place > start) & (place < end), place == start
        # Beyond the shorter number's end, the longer one alone must pass the carry on.
        passing = torch.where((self.draw_fraction() < 0.5) | (place >= shorter), self.largest_digit, self.draw_digits())
        above = torch.where(chained, passing, self.draw_digits())
        above = torch.where(first & carries, above.clamp(min=1), above)
        below = torch.where(chained, self.largest_digit - passing, self.draw_digits())
        # In a chain's first column, digits add up to the base or more if a carry starts there, else to less.
        carry, no_carry = self.base - above + below % above.clamp(min=1), below % (self.base - above)
        below = torch.where(first, torch.where(carries, carry, no_carry), below)
        return self.stack_by_length(above, below)

    def few_columns(self) -> Digits:
        """Numbers written with one to three different columns of digits, in runs of any length: 77733+22244."""
        rows = len(self.lengths)
        columns = torch.randint(self.base, (rows, 2, 3), generator=self.generator)
        return columns.gather(2, draw_run_ids(rows, self.width, self.generator)[:, None].expand(-1, 2, -1))

    def rich_in_one_digit(self) -> Digits:
        """Uniform numbers in which one digit, often the largest, replaces a random fraction of the digits."""
        rows = len(self.lengths)
        fixed = torch.randint(self.base, (rows, 2, 1), generator=self.generator)
        fixed = torch.where(torch.rand(rows, 2, 1, generator=self.generator) < 0.5, self.largest_digit, fixed)
        chosen = torch.rand(rows, 2, self.width, generator=self.generator) < self.draw_fraction()[..., None]
        return torch.where(chosen, fixed, torch.stack([self.draw_digits(), self.draw_digits()], 1))

    number_patterns = (
        all_highest, twice, mirrored, powers, zeros, one_and_any, small_and_large, few_columns, rich_in_one_digit
    )  # fmt: skip
    sum_patterns = (
        complement, complement_and_one, interrupted_carry, highest_and_one, every_column_carries, no_column_carries,
        carry_chain,
    )  # fmt: skip


PairPattern = Callable[[PairSampler], Digits]


def _apply_to_each_number(pattern: Pattern) -> PairPattern:
    """Convert a pattern of rows to a pattern of pairs that draws the two numbers independently."""

    @wraps(pattern)
    def draw_pair(pair: PairSampler) -> Digits:
        rows = RowSampler(pair.lengths.flatten(), pair.width, pair.base, pair.generator)
        return pattern(rows).view(len(pair.lengths), 2, pair.width)

    return draw_pair


EACH_NUMBER_PATTERNS: tuple[PairPattern, ...] = tuple(_apply_to_each_number(pattern) for pattern in (
    RowSampler.one_symbol, RowSampler.odd_one_out, RowSampler.alternating, RowSampler.palindrome, RowSampler.runs,
    RowSampler.mostly_lowest, RowSampler.mostly_highest,
))  # fmt: skip
SHARED_PATTERNS: tuple[PairPattern, ...] = (*EACH_NUMBER_PATTERNS, *PairSampler.number_patterns)


class PairTask(Task):
    """A task on two numbers, whose ``patterns`` draw the digits of pairs of numbers."""

    base: int
    leading_zeros: bool

    @abstractmethod
    def from_operands(self, sizes: Int[Tensor, "b axes"], operands: Digits) -> Problems:
        """Return the problems on these operands: digits, least significant first and padded with zeros."""

    def draw_pattern(self, pattern: PairPattern, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        pair = PairSampler(sizes.expand(-1, 2), self.base, self.leading_zeros, generator)
        digits = pattern(pair)
        if not self.leading_zeros:
            # Rows with a leading zero are drawn again; a zero that the pattern requires, as in 999+001, becomes a 1.
            for _ in range(8):
                if not (wrong := pair.is_leading_zero(digits).any(2).any(1)).any():
                    break
                redrawn = pattern(replace(pair, lengths=pair.lengths[wrong]))
                digits[wrong, :, : redrawn.shape[2]] = redrawn
            digits = torch.where(pair.is_leading_zero(digits), 1, digits)
        return self.from_operands(sizes, zero_after(digits.to(SYMBOL_DTYPE).contiguous(), pair.lengths))

    def enumerate(self, size: Sequence[int], limit: int) -> Problems | None:
        lengths = size[0], size[-1]
        rows = enumerate_rows(self.base, sum(lengths), limit)
        if rows is None:
            return None
        width = max(lengths)
        operands = torch.stack([F.pad(row, (0, width - row.shape[1])) for row in rows.split(lengths, 1)], 1)
        if not self.leading_zeros:
            tops = [(operands[:, axis, length - 1] > 0) | (length == 1) for axis, length in enumerate(lengths)]
            operands = operands[tops[0] & tops[1]]
        return self.from_operands(torch.tensor([list(size)]).repeat(len(operands), 1), operands.to(SYMBOL_DTYPE))


class NumberTask(Task):
    """A task on numbers in a base from 2 to 10."""

    base: int
    order: Order  # which digit of a number is written first
    answers_numbers = True

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*string.digits[: self.base], *self.signs)

    @property
    def answer_order(self) -> Order:
        """The digit of an answer that is written first."""
        return self.order

    def format(self, answer: Int[Tensor, " a"]) -> str:
        """Return an answer as text, most significant digit first, without leading zeros."""
        return self.vocab.decode(answer if self.answer_order == "most" else answer.flip(0)).lstrip("0") or "0"

    def to_text(self, prompt: Int[Tensor, " p"]) -> str:
        """Return a prompt as text, each number's most significant digit first."""
        return to_reading_order(self.vocab.decode(prompt), self.order)

    def read_number(self, digits: str) -> int:
        """Return the value of a number whose digits are in the prompt's order."""
        return int(digits if self.order == "most" else digits[::-1], self.base)

    def write_number(self, value: int, width: int = 1) -> str:
        """Return a number's digits in the answer's order, with leading zeros up to ``width`` digits."""
        digits = np.base_repr(value, self.base).rjust(width, "0")
        return digits if self.answer_order == "most" else digits[::-1]

    @property
    def question(self) -> str:
        # The instruction that ReTran (ACL 2025) uses, with the base unless it is 10.
        base = f" All numbers are written in base {self.base}, most significant digit first." if self.base != 10 else ""
        return f"Answer the math question.{base}"


class ArithmeticTask(PairTask, NumberTask):
    """A sum or product of two numbers."""

    def parse(self, text: str) -> Problems:
        """Read two numbers, most significant digit first. If the task has one axis, the shorter number gets leading
        zeros."""
        numbers = list(split_numbers(self, text, self.base))
        if not self.leading_zeros:
            numbers = [number[len(number) - int(count_digits(number.flip(0)[None])) :] for number in numbers]
        width = max(map(len, numbers))
        if len(self.axes) == 1:
            numbers = [F.pad(number, (width - len(number), 0)) for number in numbers]
        operands = torch.stack([F.pad(number.flip(0), (0, width - len(number))) for number in numbers])
        sizes = [len(number) for number in numbers][: len(self.axes)]
        return self.from_operands(torch.tensor([sizes]), operands[None].to(SYMBOL_DTYPE))
