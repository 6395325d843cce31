"""Sums of several numbers (Cho et al. 2025, ICLR)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from jaxtyping import Int
from torch import Generator, Tensor
from torch.nn import functional as F

from lengthwise.base.rows import length_mask, zero_after
from lengthwise.base.types import SYMBOL, Problems, UsageError
from lengthwise.tasks import parse_symbols
from lengthwise.tasks.digits import Base, Order, carry, count_digits, reorder
from lengthwise.tasks.family import enumerate_rows
from lengthwise.tasks.operands import NumberTask

Operands = Int[Tensor, "b m n"]


# Families. Each returns changed digits, least significant first, given uniform ones.


def all_highest(digits: Operands, base: int, sizes: Tensor, generator: Generator) -> Operands:
    """The largest digit throughout: 99+99+99."""
    return torch.full_like(digits, base - 1)


def one_carry_throughout(digits: Operands, base: int, sizes: Tensor, generator: Generator) -> Operands:
    """The largest digit once in each column, else zeros, and one more in the lowest column: a carry passes all."""
    count = sizes[:, :1, None]
    owner = (torch.rand(len(digits), 1, digits.shape[2], generator=generator) * count).long()
    number = torch.arange(digits.shape[1])[:, None]
    extra = (number == (owner[..., :1] + 1) % count) & (count > 1) & (torch.arange(digits.shape[2]) == 0)
    return torch.where(number == owner, base - 1, 0) + extra.long()


def no_column_carries(digits: Operands, base: int, sizes: Tensor, generator: Generator) -> Operands:
    """Columns that all add up to the largest digit or less."""
    return digits % ((base - 1) // sizes[:, :1, None] + 1)


def one_counts(digits: Operands, base: int, sizes: Tensor, generator: Generator) -> Operands:
    """All numbers but one are zero."""
    which = (torch.rand(len(digits), 1, generator=generator) * sizes[:, :1]).long()
    return digits.where((torch.arange(digits.shape[1]) == which)[..., None], 0)


def equal_operands(digits: Operands, base: int, sizes: Tensor, generator: Generator) -> Operands:
    """All numbers are the same."""
    return digits[:, :1].expand_as(digits)


def mostly_zeros(digits: Operands, base: int, sizes: Tensor, generator: Generator) -> Operands:
    """Zero in nine places of ten."""
    return digits.masked_fill(torch.rand(digits.shape, generator=generator) < 0.9, 0)


def mostly_highest(digits: Operands, base: int, sizes: Tensor, generator: Generator) -> Operands:
    """The largest digit in nine places of ten."""
    return digits.masked_fill(torch.rand(digits.shape, generator=generator) < 0.9, base - 1)


def one_digit(digits: Operands, base: int, sizes: Tensor, generator: Generator) -> Operands:
    """Numbers of one digit, with zeros before it."""
    return digits.where(torch.arange(digits.shape[2]) == 0, 0)


@dataclass(frozen=True)
class MultiOperandAddition(NumberTask):
    """m numbers of n digits each → their sum, without leading zeros (Cho et al. 2025). Every digit is uniform, so a
    number may start with zeros. T = m · n."""

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
        """Return problems on sums, given the numbers' digits, least significant first."""
        (count, length), (_, most, width) = sizes.unbind(1), digits.shape
        real = length_mask(count, most)[..., None] & length_mask(length, width)[:, None]
        digits = digits.where(real, 0)
        further = len(np.base_repr(most, self.base))
        total = carry(F.pad(digits.sum(1), (0, further)), self.base, most * (self.base - 1))
        answer_length = count_digits(total)
        # Position p of a prompt is digit p mod (n + 1) of number p // (n + 1), or the sign after it.
        position, block = torch.arange(most * (width + 1) - 1), length[:, None] + 1
        place = position % block
        digit = place if self.order == "least" else length[:, None] - 1 - place
        index = (position // block).clamp(max=most - 1) * width + digit.clamp(min=0, max=width - 1)
        prompt = digits.flatten(1).gather(1, index).masked_fill(place == length[:, None], self.base)
        prompt_length = count * (length + 1) - 1
        answer = reorder(total, answer_length, self.order)[:, : int(answer_length.max())]
        prompt = zero_after(prompt.to(SYMBOL), prompt_length)
        return Problems(sizes, prompt, prompt_length, answer, answer_length, sizes.prod(1))

    def enumerate(self, size: Sequence[int], limit: int) -> Problems | None:
        digits = enumerate_rows(self.base, size[0] * size[1], limit)
        if digits is None:
            return None
        return self.from_operands(torch.tensor([[*size]] * len(digits)), digits.view(-1, *size))

    def parse(self, text: str) -> Problems:
        """Read numbers, most significant digit first; shorter ones get leading zeros."""
        numbers = self.vocab.decode(parse_symbols(self, text)).split("+")
        if not all(numbers):
            raise UsageError(f"{self.name}: a prompt is numbers with + between them, such as 12+34+56, not {text!r}")
        width = max(map(len, numbers))
        digits = torch.tensor([[[int(digit) for digit in number.zfill(width)[::-1]] for number in numbers]])
        return self.from_operands(torch.tensor([[len(numbers), width]]), digits)

    def reference(self, prompt: str) -> str:
        digits = np.base_repr(sum(map(self.read_number, prompt.split("+"))), self.base)
        return digits if self.order == "most" else digits[::-1]

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return torch.tensor([_count_sum_digits(count, length, self.base) for count, length in sizes.tolist()])


@cache
def _count_sum_digits(count: int, length: int, base: int) -> int:
    """Return the number of digits of the largest sum."""
    return len(np.base_repr(count * (base**length - 1), base))
