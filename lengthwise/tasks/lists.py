"""Structured lists of numbers: families of problems of sorting.

Each function fills the digits of a ``NumberList`` list, least significant first, and says how many each number has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from lengthwise.tasks.digits import number_length

Numbers = tuple[Int[Tensor, "b n d"], Int[Tensor, "b n"]]  # digits, and how many of them


@dataclass(frozen=True)
class NumberList:
    """What is known of each row's list before its numbers are."""

    sizes: Int[Tensor, "b 2"]  # how many numbers, and the digits that each has at most
    generator: Generator

    @property
    def shape(self) -> tuple[int, int, int]:
        return len(self.sizes), int(self.sizes[:, 0].max()), int(self.sizes[:, 1].max())

    @property
    def position(self) -> Int[Tensor, " d"]:
        return torch.arange(self.shape[2])

    def full(self) -> Int[Tensor, "b n"]:
        """As many digits as each number may have."""
        return self.sizes[:, 1:].expand(-1, self.shape[1]).clone()

    def chance(self, *shape: int) -> Float[Tensor, "*shape"]:
        """Numbers from 0 to 1."""
        return torch.rand(shape, generator=self.generator)

    def digits(self, numbers: int) -> Int[Tensor, "b numbers d"]:
        """Uniform digits of so many numbers per row, none of which starts with a zero."""
        rows, _, width = self.shape
        drawn = torch.randint(10, (rows, numbers, width), generator=self.generator)
        front = (self.position == self.sizes[:, 1:] - 1)[:, None] & (self.sizes[:, 1] > 1)[:, None, None]
        return torch.where(front & (drawn == 0), 1, drawn)

    def one_of(self) -> Int[Tensor, "b n 1"]:
        """A uniform one of each row's numbers is 1, the others are 0."""
        rows, count, _ = self.shape
        at = (self.chance(rows, 1) * self.sizes[:, :1]).long()
        return (torch.arange(count) == at).long()[..., None]


Listing = Callable[[NumberList], Numbers]


def all_equal(drawn: NumberList) -> Numbers:
    """One number, again and again: the labels come out as they stand."""
    return drawn.digits(1).expand(-1, drawn.shape[1], -1), drawn.full()


def odd_one_out(drawn: NumberList) -> Numbers:
    """One number, again and again, but for one that differs in a single digit."""
    rows = len(drawn.sizes)
    at = drawn.position == (drawn.chance(rows, 1, 1) * drawn.sizes[:, 1:, None]).long()
    other = torch.randint(1, 10, (rows, 1, 1), generator=drawn.generator)
    digits = drawn.digits(1)
    changed = (digits + at * other) % 10
    top = (drawn.position == drawn.sizes[:, 1:] - 1)[:, None] & (drawn.sizes[:, 1] > 1)[:, None, None]
    changed = torch.where(top & (changed == 0), torch.where(digits == 5, 6, 5), changed)
    return torch.where(drawn.one_of() > 0, changed, digits), drawn.full()


def two_values(drawn: NumberList) -> Numbers:
    """Two numbers, each about as often."""
    rows, count, width = drawn.shape
    which = torch.randint(2, (rows, count, 1), generator=drawn.generator).expand(-1, -1, width)
    return drawn.digits(2).gather(1, which), drawn.full()


def same_length(drawn: NumberList) -> Numbers:
    """Numbers that all have the most digits."""
    return drawn.digits(drawn.shape[1]), drawn.full()


def one_digit(drawn: NumberList) -> Numbers:
    """Numbers of one digit: many are equal."""
    digits, length = drawn.digits(drawn.shape[1]), torch.ones_like(drawn.full())
    digits[..., 0] = torch.randint(10, digits.shape[:2], generator=drawn.generator)
    return digits, length


def shared_front(drawn: NumberList) -> Numbers:
    """Numbers that differ in their last digit alone."""
    own = torch.randint(1, 10, (*drawn.shape[:2], 1), generator=drawn.generator)
    return torch.where(drawn.position == 0, own, drawn.digits(1)), drawn.full()


def shared_back(drawn: NumberList) -> Numbers:
    """Numbers that differ in their first digit alone."""
    own = torch.randint(1, 10, (*drawn.shape[:2], 1), generator=drawn.generator)
    front = (drawn.position == drawn.sizes[:, 1:] - 1)[:, None]
    return torch.where(front, own, drawn.digits(1)), drawn.full()


def powers(drawn: NumberList) -> Numbers:
    """Powers of ten, and one less or one more: 99, 100, 101."""
    length = _lengths(drawn)
    at = drawn.position
    change = torch.randint(-1, 2, (*length.shape, 1), generator=drawn.generator)
    power = (at == length[..., None] - 1).long()
    return torch.where(change < 0, 9, torch.where((change > 0) & (at == 0), 1, power)), length


def all_highest(drawn: NumberList) -> Numbers:
    """Nines: 9, 99, 999."""
    length = _lengths(drawn)
    return torch.full((*length.shape, drawn.shape[2]), 9), length


def repeated_digit(drawn: NumberList) -> Numbers:
    """Numbers of one digit, repeated: 444, 77, 3."""
    length = _lengths(drawn)
    digit = torch.randint(1, 10, (*length.shape, 1), generator=drawn.generator)
    return digit.expand(-1, -1, drawn.shape[2]), length


def zeros(drawn: NumberList) -> Numbers:
    """Zero in about half of the positions."""
    digits, length = drawn.digits(drawn.shape[1]), _lengths(drawn)
    zero = drawn.chance(*length.shape) < 0.5
    length = torch.where(zero, 1, length)
    digits = torch.where(digits == 0, 1, digits)
    return digits.masked_fill(zero[..., None], 0), length


def ascending(drawn: NumberList) -> Numbers:
    """In order already."""
    return _consecutive(drawn, torch.arange(drawn.shape[1]).expand(drawn.shape[:2]))


def descending(drawn: NumberList) -> Numbers:
    """In reverse order."""
    rank = (drawn.sizes[:, :1] - 1 - torch.arange(drawn.shape[1])).clamp(min=0)
    return _consecutive(drawn, rank)


def neighbours(drawn: NumberList) -> Numbers:
    """Numbers one after the other, in no order: 42, 44, 43."""
    behind = torch.arange(drawn.shape[1]) >= drawn.sizes[:, :1]  # what is not there comes last in every order
    order = drawn.chance(*drawn.shape[:2]).masked_fill(behind, 2).argsort(1).argsort(1)
    return _consecutive(drawn, order)


LISTS: tuple[Listing, ...] = (
    all_equal,
    odd_one_out,
    two_values,
    same_length,
    one_digit,
    shared_front,
    shared_back,
    powers,
    all_highest,
    repeated_digit,
    zeros,
    ascending,
    descending,
    neighbours,
)


def _lengths(drawn: NumberList) -> Int[Tensor, "b n"]:
    """Uniform numbers of digits."""
    return (drawn.chance(*drawn.shape[:2]) * drawn.sizes[:, 1:]).long() + 1


def _consecutive(drawn: NumberList, rank: Int[Tensor, "b n"]) -> Numbers:
    """A uniform number and those that follow it, as ``rank`` says; beyond the largest they are all the largest."""
    last = torch.minimum(drawn.sizes[:, 1], torch.tensor(3))  # two or three digits change; the others are shared
    room = 10**last
    start = (drawn.chance(len(room)) * (room - drawn.sizes[:, 0]).clamp(min=1)).long()
    value = torch.minimum(start[:, None] + rank, room[:, None] - 1)
    low = value[..., None] // 10 ** torch.arange(3) % 10
    digits = drawn.digits(1).expand(-1, drawn.shape[1], -1).clone()
    width = min(3, drawn.shape[2])
    digits[..., :width] = torch.where(torch.arange(width) < last[:, None, None], low[..., :width], digits[..., :width])
    shown = digits * (drawn.position < drawn.sizes[:, 1:, None])
    length = number_length(shown.flatten(0, 1)).view(shown.shape[:2])
    return digits, length
