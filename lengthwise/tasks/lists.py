"""Structured lists of numbers: the families of sorting.

Each function returns the digits of a ``NumberList``, least significant first, and each number's length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from lengthwise.tasks.digits import number_length

Numbers = tuple[Int[Tensor, "b n d"], Int[Tensor, "b n"]]  # digits, and their number


@dataclass(frozen=True)
class NumberList:
    """The sizes of lists whose numbers are to be drawn."""

    sizes: Int[Tensor, "b 2"]  # the number of numbers, and their largest number of digits
    generator: Generator

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.sizes), int(self.sizes[:, 0].max()), int(self.sizes[:, 1].max())

    @property
    def position(self) -> Int[Tensor, " d"]:
        return torch.arange(self.shape[2])

    def full(self) -> Int[Tensor, "b n"]:
        """Return the largest number of digits of each number."""
        return self.sizes[:, 1:].expand(-1, self.shape[1]).clone()

    def chance(self, *shape: int) -> Float[Tensor, "*shape"]:
        """Draw numbers from 0 to 1."""
        return torch.rand(shape, generator=self.generator)

    def digits(self, numbers: int) -> Int[Tensor, "b numbers d"]:
        """Draw uniform digits of ``numbers`` numbers per row, without leading zeros."""
        rows, _, width = self.shape
        drawn = torch.randint(10, (rows, numbers, width), generator=self.generator)
        return torch.where(self.top & (drawn == 0), 1, drawn)

    @property
    def top(self) -> Bool[Tensor, "b 1 d"]:
        """True at the top digit of numbers of several digits."""
        return (self.position == self.sizes[:, 1:] - 1)[:, None] & (self.sizes[:, 1] > 1)[:, None, None]


Listing = Callable[[NumberList], Numbers]


def all_equal(numbers: NumberList) -> Numbers:
    """All numbers are equal: the labels keep their order."""
    return numbers.digits(1).expand(-1, numbers.shape[1], -1), numbers.full()


def odd_one_out(numbers: NumberList) -> Numbers:
    """Equal numbers, except one that differs in a single digit."""
    rows, count, _ = numbers.shape
    place = numbers.position == (numbers.chance(rows, 1, 1) * numbers.sizes[:, 1:, None]).long()
    other = torch.randint(1, 10, (rows, 1, 1), generator=numbers.generator)
    digits = numbers.digits(1)
    changed = (digits + place * other) % 10
    changed = torch.where(numbers.top & (changed == 0), torch.where(digits == 5, 6, 5), changed)
    odd = torch.arange(count) == (numbers.chance(rows, 1) * numbers.sizes[:, :1]).long()
    return torch.where(odd[..., None], changed, digits), numbers.full()


def two_values(numbers: NumberList) -> Numbers:
    """Two numbers, about equally often."""
    rows, count, width = numbers.shape
    which = torch.randint(2, (rows, count, 1), generator=numbers.generator).expand(-1, -1, width)
    return numbers.digits(2).gather(1, which), numbers.full()


def same_length(numbers: NumberList) -> Numbers:
    """Numbers that all have the largest number of digits."""
    return numbers.digits(numbers.shape[1]), numbers.full()


def one_digit(numbers: NumberList) -> Numbers:
    """Numbers of one digit: many are equal."""
    digits, length = numbers.digits(numbers.shape[1]), torch.ones_like(numbers.full())
    digits[..., 0] = torch.randint(10, digits.shape[:2], generator=numbers.generator)
    return digits, length


def shared_front(numbers: NumberList) -> Numbers:
    """Numbers that differ only in their last digit."""
    own = torch.randint(1, 10, (*numbers.shape[:2], 1), generator=numbers.generator)
    return torch.where(numbers.position == 0, own, numbers.digits(1)), numbers.full()


def shared_back(numbers: NumberList) -> Numbers:
    """Numbers that differ only in their first digit."""
    own = torch.randint(1, 10, (*numbers.shape[:2], 1), generator=numbers.generator)
    front = (numbers.position == numbers.sizes[:, 1:] - 1)[:, None]
    return torch.where(front, own, numbers.digits(1)), numbers.full()


def powers(numbers: NumberList) -> Numbers:
    """Powers of ten, and one less or one more: 99, 100, 101."""
    length = _draw_lengths(numbers)
    change = torch.randint(-1, 2, (*length.shape, 1), generator=numbers.generator)
    power = (numbers.position == length[..., None] - 1).long()
    return torch.where(change < 0, 9, torch.where((change > 0) & (numbers.position == 0), 1, power)), length


def all_highest(numbers: NumberList) -> Numbers:
    """Nines: 9, 99, 999."""
    length = _draw_lengths(numbers)
    return torch.full((*length.shape, numbers.shape[2]), 9), length


def repeated_digit(numbers: NumberList) -> Numbers:
    """Numbers of one digit, repeated: 444, 77, 3."""
    length = _draw_lengths(numbers)
    digit = torch.randint(1, 10, (*length.shape, 1), generator=numbers.generator)
    return digit.expand(-1, -1, numbers.shape[2]), length


def zeros(numbers: NumberList) -> Numbers:
    """About half of the numbers are zero."""
    digits, length = numbers.digits(numbers.shape[1]), _draw_lengths(numbers)
    zero = numbers.chance(*length.shape) < 0.5
    length = torch.where(zero, 1, length)
    digits = torch.where(digits == 0, 1, digits)
    return digits.masked_fill(zero[..., None], 0), length


def ascending(numbers: NumberList) -> Numbers:
    """Consecutive numbers in order."""
    return _draw_consecutive(numbers, torch.arange(numbers.shape[1]).expand(numbers.shape[:2]))


def descending(numbers: NumberList) -> Numbers:
    """Consecutive numbers in reverse order."""
    rank = (numbers.sizes[:, :1] - 1 - torch.arange(numbers.shape[1])).clamp(min=0)
    return _draw_consecutive(numbers, rank)


def neighbours(numbers: NumberList) -> Numbers:
    """Consecutive numbers in random order: 42, 44, 43."""
    padding = torch.arange(numbers.shape[1]) >= numbers.sizes[:, :1]
    order = numbers.chance(*numbers.shape[:2]).masked_fill(padding, 2).argsort(1).argsort(1)
    return _draw_consecutive(numbers, order)


LISTS: tuple[Listing, ...] = (
    all_equal, odd_one_out, two_values, same_length, one_digit, shared_front, shared_back, powers, all_highest,
    repeated_digit, zeros, ascending, descending, neighbours,
)  # fmt: skip


def _draw_lengths(numbers: NumberList) -> Int[Tensor, "b n"]:
    """Draw uniform lengths."""
    return (numbers.chance(*numbers.shape[:2]) * numbers.sizes[:, 1:]).long() + 1


def _draw_consecutive(numbers: NumberList, rank: Int[Tensor, "b n"]) -> Numbers:
    """Draw a uniform start and return start + ``rank``, clamped to the largest number."""
    low_digits = torch.minimum(numbers.sizes[:, 1], torch.tensor(3))  # these change; the others are shared
    room = 10**low_digits
    start = (numbers.chance(len(room)) * (room - numbers.sizes[:, 0]).clamp(min=1)).long()
    value = torch.minimum(start[:, None] + rank, room[:, None] - 1)
    low = value[..., None] // 10 ** torch.arange(3) % 10
    digits = numbers.digits(1).expand(-1, numbers.shape[1], -1).clone()
    width = min(3, numbers.shape[2])
    changes = torch.arange(width) < low_digits[:, None, None]
    digits[..., :width] = torch.where(changes, low[..., :width], digits[..., :width])
    shown = digits * (numbers.position < numbers.sizes[:, 1:, None])
    length = number_length(shown.flatten(0, 1)).view(shown.shape[:2])
    return digits, length
