"""Addition and multiplication of two numbers (Fan et al. 2025; McLeish et al. 2024), and addition of several numbers
(Cho et al. 2025, ICLR), in any base from 2 to 10, with digits in either order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
from jaxtyping import Int
from torch import Generator, Tensor
from torch.nn import functional as F

from lengthwise.base.rows import length_mask, shift_right, zero_after
from lengthwise.base.types import SYMBOL_DTYPE, Problems, UsageError
from lengthwise.tasks import parse_symbols
from lengthwise.tasks.digits import (
    Base,
    Order,
    count_digits,
    join_numbers,
    propagate_carries,
    reorder,
    replace_leading_zeros,
)
from lengthwise.tasks.family import enumerate_rows
from lengthwise.tasks.operands import SHARED_PATTERNS, ArithmeticTask, Digits, NumberTask, PairSampler


@dataclass(frozen=True)
class Addition(ArithmeticTask):
    """Two numbers → their sum. T is the number of digits of the longer operand: a carry travels one digit per round.

    With ``equal_lengths`` both operands have ``length`` digits; without it, the axes are ``first`` and ``second``. With
    ``leading_zeros`` every digit is uniform (the operand is uniform in [0, base^n − 1]), and the answer always has one
    digit more than the longer operand. Without ``leading_zeros``, an operand is a uniform number of exactly n digits (a
    one-digit operand may be 0), and the answer has no leading zeros. The harder set has many long carries.
    """

    base: Base = 10  # base of the numbers, 2 to 10
    order: Order = "most"  # which digit is written first: the least or the most significant
    equal_lengths: bool = False  # both operands have the same number of digits
    leading_zeros: bool = False  # every digit is uniform, and the answer has one digit more than the longer operand

    signs = ("+",)
    harder = "long-carry"
    patterns = (*SHARED_PATTERNS, *PairSampler.sum_patterns)

    @property
    def axes(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("length",) if self.equal_lengths else ("first", "second")

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        """Return each sum's ``longest carry``: the number of columns from the column where a carry starts to the last
        column that passes it on."""
        totals = self.stack_columns(problems)[0].sum(2)
        without_carry = F.pad(totals, (0, 1))[:, 1:] % self.base
        carried = self.extract_answer_digits(problems, totals.shape[1] + 1)[:, 1:] != without_carry
        position = torch.arange(totals.shape[1])
        start = torch.where(totals >= self.base, position, -1).cummax(1).values
        return {"longest carry": ((position - start + 1) * carried).amax(1)}

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return sizes.max(1).values + 1

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        columns = torch.randint(self.base, (len(sizes), int(sizes.max()), 2), generator=generator, dtype=SYMBOL_DTYPE)
        return self._trim_operands(sizes, columns.mT.contiguous(), generator)

    def sample_hard(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        """Draw sums with one long carry. The carry starts at a uniform position and ends at a uniform later one (in
        half of the rows at the top digit). Each column in between adds up to base − 1; in half of the rows it consists
        of the largest digit and a zero, as in 99…9 + 1. The other columns are uniform."""
        pair = PairSampler(sizes.expand(-1, 2), self.base, self.leading_zeros, generator)
        return self._trim_operands(sizes, pair.carry_chain(always_carries=True).to(SYMBOL_DTYPE), generator)

    def _trim_operands(self, sizes: Int[Tensor, "b axes"], operands: Digits, generator: Generator) -> Problems:
        """Return problems on the operands, with digits beyond their lengths set to 0. If leading zeros are not allowed,
        top digits that are 0 are redrawn."""
        lengths = sizes.expand(-1, 2)
        if not self.leading_zeros:
            others = torch.randint(1, self.base, operands.mT.shape, generator=generator, dtype=SYMBOL_DTYPE)
            operands = replace_leading_zeros(operands, lengths, others.mT)
        return self.from_operands(sizes, zero_after(operands, lengths))

    def from_operands(self, sizes: Int[Tensor, "b axes"], operands: Digits) -> Problems:
        lengths = sizes.expand(-1, 2)
        longest = lengths.amax(1)
        first, second = operands.unbind(1)
        totals = F.pad(first + second, (0, 1))
        total = propagate_carries(totals, self.base, largest_total=2 * (self.base - 1))
        answer_length = longest + 1 if self.leading_zeros else count_digits(total)
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

    def extract_answer_digits(self, problems: Problems, count: int) -> Int[Tensor, "b count"]:
        """Return the answers' lowest ``count`` digits, least significant first, padded with zeros."""
        lowest = reorder(problems.answer, problems.answer_length, self.order)[:, :count]
        return F.pad(lowest, (0, count - lowest.shape[1]))

    def order_answer(self, digits: Int[Tensor, " n"]) -> Int[Tensor, " a"]:
        """Convert an answer's digits, least significant first, to the task's digit order."""
        row = digits[None]
        length = torch.tensor([len(digits)]) if self.leading_zeros else count_digits(row)
        return reorder(row, length, self.order)[0, : int(length)]

    def reference(self, prompt: str) -> str:
        operands = prompt.split("+")
        width = max(map(len, operands)) + 1 if self.leading_zeros else 1
        return self.write_number(sum(map(self.read_number, operands)), width)


@dataclass(frozen=True)
class Multiplication(ArithmeticTask):
    """Two numbers, of n1 and n2 digits → their product. T = n1 · n2: for each digit of the first number, the second is
    added once, and its carry travels one digit per round.

    With ``leading_zeros`` every digit is uniform, and the product always has n1 + n2 digits. Without it, an operand is
    a uniform number of exactly n digits (a one-digit operand may be 0), and the product has no leading zeros. The
    default is the task of Fan et al. 2025, in which the first operand has one or two bits; ``base=10 order=least
    leading_zeros=false`` is the task of McLeish et al. 2024. In each problem of the harder set, the fraction of largest
    digits (in binary: ones) is uniform from 0 to 1, so that many columns carry.
    """

    base: Base = 2  # base of the numbers, 2 to 10
    order: Order = "most"  # which digit of an operand is written first
    product: Order = "least"  # which digit of the product is written first
    leading_zeros: bool = True  # every digit is uniform, and the product has n1 + n2 digits

    axes = ("first", "second")
    signs = ("*",)
    harder = "high-digits"
    patterns = SHARED_PATTERNS

    @property
    def answer_order(self) -> Order:
        return self.product

    @property
    def mirrored(self) -> bool:  # type: ignore[override]
        return self.order != self.product

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self._draw_problems(sizes, generator)

    def sample_hard(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self._draw_problems(sizes, generator, torch.rand(len(sizes), 1, generator=generator))

    def _draw_problems(self, sizes: Tensor, generator: Generator, largest_fraction: Tensor | None = None) -> Problems:
        """Draw operands of uniform digits; with ``largest_fraction``, this fraction of the digits has the largest value
        and the others are uniform below it."""
        operands = []
        for length in sizes.unbind(1):
            shape = len(length), int(length.max())
            draw_digits = partial(torch.randint, size=shape, generator=generator, dtype=SYMBOL_DTYPE)
            digits = draw_digits(0, self.base)
            if largest_fraction is not None:
                chosen = torch.rand(shape, generator=generator) < largest_fraction
                digits = torch.where(chosen, self.base - 1, draw_digits(0, self.base - 1))
            if not self.leading_zeros:
                digits = replace_leading_zeros(digits, length, draw_digits(1, self.base))
            operands.append(F.pad(zero_after(digits, length), (0, int(sizes.max()) - shape[1])))
        return self.from_operands(sizes, torch.stack(operands, 1))

    def from_operands(self, sizes: Int[Tensor, "b axes"], operands: Digits) -> Problems:
        first, second = (operands[:, i, : int(sizes[:, i].max())] for i in (0, 1))
        # Long multiplication: add up the columns, then carry.
        shorter, longer = sorted((first.double(), second.double()), key=lambda digits: digits.shape[1])
        totals = longer.new_zeros(len(longer), shorter.shape[1] + longer.shape[1])
        for position, digit in enumerate(shorter.split(1, 1)):
            totals[:, position : position + longer.shape[1]].addcmul_(digit, longer)
        product = propagate_carries(totals, self.base, largest_total=shorter.shape[1] * (self.base - 1) ** 2)
        length = sizes.sum(1) if self.leading_zeros else count_digits(product)
        answer = reorder(product, length, self.product)[:, : int(length.max())]
        prompt = join_numbers(first, second, sizes, self.order, self.base)
        return Problems(sizes, prompt, sizes.sum(1) + 1, answer, length, sizes.prod(1))

    def reference(self, prompt: str) -> str:
        first, second = map(self.read_number, prompt.split("*"))
        return self.write_number(first * second, len(prompt) - 1 if self.leading_zeros else 1)

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        """Return the number of digits other than zero in each prompt."""
        return {"ones" if self.base == 2 else "digits above 0": (problems.prompt % self.base > 0).sum(1)}

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return sizes.sum(1)


# Digits of several numbers per row, least significant first. A family's function takes uniform digits and changes them.
Operands = Int[Tensor, "b m n"]


def all_highest(digits: Operands, base: int, sizes: Tensor, generator: Generator) -> Operands:
    """Numbers of largest digits only: 99+99+99."""
    return torch.full_like(digits, base - 1)


def one_carry_throughout(digits: Operands, base: int, sizes: Tensor, generator: Generator) -> Operands:
    """Sums with one largest digit per column, a 1 in the lowest column and zeros elsewhere: a carry passes through all
    columns."""
    count = sizes[:, :1, None]
    owner = (torch.rand(len(digits), 1, digits.shape[2], generator=generator) * count).long()
    number = torch.arange(digits.shape[1])[:, None]
    extra = (number == (owner[..., :1] + 1) % count) & (count > 1) & (torch.arange(digits.shape[2]) == 0)
    return torch.where(number == owner, base - 1, 0) + extra.long()


def no_column_carries(digits: Operands, base: int, sizes: Tensor, generator: Generator) -> Operands:
    """Numbers whose digits add up to the largest digit or less in every column."""
    return digits % ((base - 1) // sizes[:, :1, None] + 1)


def one_counts(digits: Operands, base: int, sizes: Tensor, generator: Generator) -> Operands:
    """Sums in which all numbers except one are zero."""
    which = (torch.rand(len(digits), 1, generator=generator) * sizes[:, :1]).long()
    return digits.where((torch.arange(digits.shape[1]) == which)[..., None], 0)


def equal_operands(digits: Operands, base: int, sizes: Tensor, generator: Generator) -> Operands:
    """Sums of equal numbers."""
    return digits[:, :1].expand_as(digits)


def mostly_zeros(digits: Operands, base: int, sizes: Tensor, generator: Generator) -> Operands:
    """Numbers with zeros at 90 % of the positions, and uniform digits elsewhere."""
    return digits.masked_fill(torch.rand(digits.shape, generator=generator) < 0.9, 0)


def mostly_highest(digits: Operands, base: int, sizes: Tensor, generator: Generator) -> Operands:
    """Numbers with the largest digit at 90 % of the positions, and uniform digits elsewhere."""
    return digits.masked_fill(torch.rand(digits.shape, generator=generator) < 0.9, base - 1)


def one_digit(digits: Operands, base: int, sizes: Tensor, generator: Generator) -> Operands:
    """Numbers of one digit, with leading zeros."""
    return digits.where(torch.arange(digits.shape[2]) == 0, 0)


@dataclass(frozen=True)
class MultiOperandAddition(NumberTask):
    """m numbers of n digits each → their sum, without leading zeros (Cho et al. 2025). Every digit is uniform, so a
    number may start with zeros. T = m · n. In the paper's code the numbers may differ in length, only the sum is
    reversed, and leading zeros extend all numbers to the length of the largest possible sum."""

    base: Base = 10  # base of the numbers, 2 to 10
    order: Order = "least"  # which digit is written first: the least or the most significant

    axes = ("operands", "digits")
    signs = ("+",)

    patterns = (
        all_highest, one_carry_throughout, no_column_carries, one_counts, equal_operands, mostly_zeros, mostly_highest,
        one_digit,
    )  # fmt: skip

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self.draw_pattern(lambda digits, base, sizes, generator: digits, sizes, generator)

    def draw_pattern(self, pattern: Callable, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        shape = len(sizes), int(sizes[:, 0].max()), int(sizes[:, 1].max())
        digits = torch.randint(self.base, shape, generator=generator)
        return self.from_operands(sizes, pattern(digits, self.base, sizes, generator))

    def from_operands(self, sizes: Int[Tensor, "b axes"], digits: Operands) -> Problems:
        """Return the problems of adding these numbers, given as digits, least significant first."""
        (count, length), (_, operand_count, width) = sizes.unbind(1), digits.shape
        real = length_mask(count, operand_count)[..., None] & length_mask(length, width)[:, None]
        digits = digits.where(real, 0)
        carry_width = len(np.base_repr(operand_count, self.base))
        total = propagate_carries(F.pad(digits.sum(1), (0, carry_width)), self.base, operand_count * (self.base - 1))
        answer_length = count_digits(total)
        # Position p of a prompt is digit p mod (n + 1) of number p // (n + 1), or the sign after it.
        position, block = torch.arange(operand_count * (width + 1) - 1), length[:, None] + 1
        place = position % block
        digit = place if self.order == "least" else length[:, None] - 1 - place
        index = (position // block).clamp(max=operand_count - 1) * width + digit.clamp(min=0, max=width - 1)
        prompt = digits.flatten(1).gather(1, index).masked_fill(place == length[:, None], self.base)
        prompt_length = count * (length + 1) - 1
        answer = reorder(total, answer_length, self.order)[:, : int(answer_length.max())]
        prompt = zero_after(prompt.to(SYMBOL_DTYPE), prompt_length)
        return Problems(sizes, prompt, prompt_length, answer, answer_length, sizes.prod(1))

    def enumerate(self, size: Sequence[int], limit: int) -> Problems | None:
        digits = enumerate_rows(self.base, size[0] * size[1], limit)
        if digits is None:
            return None
        return self.from_operands(torch.tensor([[*size]] * len(digits)), digits.view(-1, *size))

    def parse(self, text: str) -> Problems:
        """Read numbers, most significant digit first; leading zeros make all numbers equally long."""
        numbers = self.vocab.decode(parse_symbols(self, text)).split("+")
        if not all(numbers):
            raise UsageError(f"{self.name}: write numbers with + between them, such as 12+34+56, not {text!r}")
        width = max(map(len, numbers))
        digits = torch.tensor([[[int(digit) for digit in number.zfill(width)[::-1]] for number in numbers]])
        return self.from_operands(torch.tensor([[len(numbers), width]]), digits)

    def reference(self, prompt: str) -> str:
        return self.write_number(sum(map(self.read_number, prompt.split("+"))))

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return torch.tensor([_count_sum_digits(count, length, self.base) for count, length in sizes.tolist()])


@cache
def _count_sum_digits(count: int, length: int, base: int) -> int:
    """Return the number of digits of the largest sum of ``count`` numbers of ``length`` digits."""
    return len(np.base_repr(count * (base**length - 1), base))
