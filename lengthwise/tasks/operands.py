"""Structured pairs of numbers: families of problems of tasks on two operands, digit by digit.

Each function fills the digits of a ``Pair``, least significant first; ``written`` sees to numbers that must not start
with a zero.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from lengthwise.base.rows import zero_after
from lengthwise.base.types import SYMBOL, Problems
from lengthwise.tasks import patterns
from lengthwise.tasks.family import Family

Digits = Int[Tensor, "b 2 n"]

TRIES = 8  # drawings of a row that starts with a zero, where none may


@dataclass(frozen=True)
class Pair:
    """What is known of the two numbers of each row, before their digits are."""

    lengths: Int[Tensor, "b 2"]
    base: int
    leading_zeros: bool
    generator: Generator

    def take(self, rows: Bool[Tensor, " b"]) -> Pair:
        """Select rows."""
        return replace(self, lengths=self.lengths[rows])

    @property
    def width(self) -> int:
        return int(self.lengths.max())

    @property
    def top(self) -> int:
        """The largest digit."""
        return self.base - 1

    @property
    def shorter(self) -> Int[Tensor, "b 1"]:
        """Digits of the shorter number."""
        return self.lengths.amin(1, keepdim=True)

    def digits(self, low: int = 0) -> Int[Tensor, "b n"]:
        """Uniform digits of one number, from ``low`` up."""
        return torch.randint(low, self.base, (len(self.lengths), self.width), generator=self.generator)

    def chance(self) -> Float[Tensor, "b 1"]:
        """A number from 0 to 1 for each row."""
        return torch.rand(len(self.lengths), 1, generator=self.generator)

    def position(self, length: Int[Tensor, "b 1"]) -> Int[Tensor, "b 1"]:
        """A uniform position in each row's first ``length``."""
        return (self.chance() * length).long()

    def either_way(self, first: Int[Tensor, "b n"], second: Int[Tensor, "b n"]) -> Digits:
        """Two numbers in either order: the first is the longer, of two as long either."""
        one, two = self.lengths[:, :1], self.lengths[:, 1:]
        swap = (one < two) | ((one == two) & (self.chance() < 0.5))
        return torch.stack([torch.where(swap, second, first), torch.where(swap, first, second)], 1)


PairPattern = Callable[[Pair], Digits]


def all_highest(pair: Pair) -> Digits:
    """The largest digit throughout: 999+999."""
    return torch.full((len(pair.lengths), 2, pair.width), pair.top)


def complement(pair: Pair) -> Digits:
    """Columns that all add up to the largest digit: 372+627. Nothing carries, but one more would carry everywhere."""
    longer = _passing(pair)
    return pair.either_way(longer, pair.top - longer)


def complement_and_one(pair: Pair) -> Digits:
    """Columns that add up to the largest digit, but the lowest to one more: 372+628. A carry travels through all."""
    longer = _passing(pair)
    lowest = torch.arange(pair.width) == 0
    longer = torch.where(lowest, longer.clamp(min=1), longer)
    return pair.either_way(longer, pair.top - longer + lowest)


def interrupted_carry(pair: Pair) -> Digits:
    """As complement-and-one, with one less in some column: 372+618. A carry travels to it and ends there; where it is
    the lowest column, there is none."""
    first, second = complement_and_one(pair).unbind(1)
    here = torch.arange(pair.width) == pair.position(pair.shorter)
    less_of_first = here & (first > 0)
    return torch.stack([first - less_of_first.long(), second - (here & ~less_of_first & (second > 0)).long()], 1)


def highest_and_one(pair: Pair) -> Digits:
    """Largest digits and a 1: 999+001. In half of the rows a smaller digit stands in the way: 989+001."""
    longer = torch.full((len(pair.lengths), pair.width), pair.top)
    at = torch.arange(pair.width)
    stands = (at == pair.position(pair.lengths.amax(1, keepdim=True))) & (pair.chance() < 0.5)
    longer = longer - stands.long() * torch.randint(1, pair.base, longer.shape, generator=pair.generator)
    one = (at == 0).long().expand_as(longer)
    return pair.either_way(longer, one)


def every_column_carries(pair: Pair) -> Digits:
    """Columns that all add up to the base or more; where one number is longer, those that both have."""
    first = pair.digits(low=1)
    more = (torch.rand(first.shape, generator=pair.generator) * first).long()
    return torch.stack([first, pair.base - first + more], 1)


def no_column_carries(pair: Pair) -> Digits:
    """Columns that all add up to the largest digit or less."""
    first = pair.digits()
    second = (torch.rand(first.shape, generator=pair.generator) * (pair.base - first)).long()
    return pair.either_way(first, second)


def twice(pair: Pair) -> Digits:
    """A number and itself, or its lowest digits alone, where lengths differ: 372+372, 4372+372."""
    digits = pair.digits()
    return torch.stack([digits, digits], 1)


def mirrored(pair: Pair) -> Digits:
    """A number and the same read backwards, or its lowest digits alone, where lengths differ: 372+273."""
    digits = pair.digits()
    back = (pair.shorter - 1 - torch.arange(pair.width)).clamp(min=0)
    return torch.stack([digits, digits.gather(1, back)], 1)


def powers(pair: Pair) -> Digits:
    """Powers of the base, and one more or one less: 1000, 1001, 999."""
    return torch.stack([_power(pair, axis) for axis in (0, 1)], 1)


def zeros(pair: Pair) -> Digits:
    """One number is zero, or both are; where a number must not start with a zero: 1000."""
    digits = torch.stack([pair.digits(), pair.digits()], 1)
    which = torch.randint(3, (len(digits), 1, 1), generator=pair.generator)
    return digits * (torch.tensor([[0], [1]]) == which)


def one_and_any(pair: Pair) -> Digits:
    """One number is 1: 372+001; where a number must not start with a zero: 1001."""
    return pair.either_way(pair.digits(), (torch.arange(pair.width) == 0).long().expand(len(pair.lengths), -1))


def small_and_large(pair: Pair) -> Digits:
    """A number with zeros in all but its lowest positions, and one without a zero: 006+372."""
    small = pair.digits() * (torch.arange(pair.width) < 1 + pair.position((pair.shorter // 2).clamp(min=1)))
    return pair.either_way(pair.digits(low=1), small)


def carry_chain(pair: Pair) -> Digits:
    """A chain of columns that add up to the largest digit, which a carry enters in half of the rows: 1372+0628. The
    other columns are uniform."""
    longer, at = pair.lengths.amax(1, keepdim=True), torch.arange(pair.width)
    carries = pair.chance() < 0.5
    start = pair.position(pair.shorter)
    end = start + 1 + (pair.chance() * (longer - start)).long()
    end = torch.where(pair.chance() < 0.5, longer, end)
    # Where no carry comes, a chain may start with the number.
    start = torch.where(~carries & (pair.chance() < 0.5), -1, start)
    chained, first = (at > start) & (at < end), at == start
    passing = torch.where((pair.chance() < 0.5) | (at >= pair.shorter), pair.top, pair.digits())
    above = torch.where(chained, passing, pair.digits())
    above = torch.where(first & carries, above.clamp(min=1), above)
    below = torch.where(chained, pair.top - passing, pair.digits())
    carry = pair.base - above + below % above.clamp(min=1)
    below = torch.where(first, torch.where(carries, carry, below % (pair.base - above)), below)
    return pair.either_way(above, below)


def few_columns(pair: Pair) -> Digits:
    """One to three different columns, in runs of any length: 77733+22244."""
    rows = len(pair.lengths)
    own = torch.randint(pair.base, (rows, 2, 3), generator=pair.generator)
    return own.gather(2, patterns.which_in_runs(rows, pair.width, pair.generator)[:, None].expand(-1, 2, -1))


def rich_in_one_digit(pair: Pair) -> Digits:
    """Uniform digits, and in a fraction of each number's positions one digit of its own, often the largest."""
    rows = len(pair.lengths)
    own = torch.randint(pair.base, (rows, 2, 1), generator=pair.generator)
    own = torch.where(torch.rand(rows, 2, 1, generator=pair.generator) < 0.5, pair.top, own)
    here = torch.rand(rows, 2, pair.width, generator=pair.generator) < pair.chance()[..., None]
    return torch.where(here, own, torch.stack([pair.digits(), pair.digits()], 1))


SHARED: tuple[PairPattern, ...] = (
    all_highest,
    twice,
    mirrored,
    powers,
    zeros,
    one_and_any,
    small_and_large,
    few_columns,
    rich_in_one_digit,
)
SUMS: tuple[PairPattern, ...] = (
    complement,
    complement_and_one,
    interrupted_carry,
    highest_and_one,
    every_column_carries,
    no_column_carries,
    carry_chain,
)
EACH = (
    patterns.one_symbol,
    patterns.odd_one_out,
    patterns.alternating,
    patterns.palindrome,
    patterns.runs,
    patterns.mostly_lowest,
    patterns.mostly_highest,
)  # of each number on its own


def each(pattern: patterns.Pattern, pair: Pair) -> Digits:
    """One pattern in both numbers, drawn for each."""
    digits = pattern(pair.lengths.flatten(), pair.width, pair.base, pair.generator)
    return digits.view(len(pair.lengths), 2, pair.width)


def fit_pattern(pattern: PairPattern, pair: Pair) -> Digits:
    """A pattern's digits as they can be written: none beyond a number's length. Where no zero may stand in front, rows
    with one are drawn again; a pattern that needs it, as 999+001, gets a 1 in its place."""
    digits = pattern(pair)
    if not pair.leading_zeros:
        for _ in range(TRIES):
            if not (wrong := _in_front(pair, digits).any(2).any(1)).any():
                break
            again = pattern(pair.take(wrong))
            digits[wrong, :, : again.shape[2]] = again
        digits = torch.where(_in_front(pair, digits), 1, digits)
    return zero_after(digits.to(SYMBOL).contiguous(), pair.lengths)


def _in_front(pair: Pair, digits: Digits) -> Bool[Tensor, "b 2 n"]:
    """Zeros in front of numbers of several digits."""
    lengths = pair.lengths[..., None]
    return (torch.arange(pair.width) == lengths - 1) & (digits == 0) & (lengths > 1)


def families(
    pairs: tuple[PairPattern, ...], sample: Callable[[PairPattern, Int[Tensor, "b axes"], Generator], Problems]
) -> tuple[Family, ...]:
    """Those of a task on two numbers; ``sample`` makes problems of a pattern."""
    alone = [(pattern, partial(each, pattern)) for pattern in EACH]
    shared = [(pattern, pattern) for pattern in pairs]
    return tuple(Family.of(named, partial(sample, made)) for named, made in (*alone, *shared))


def every_pair(lengths: tuple[int, int], base: int, leading_zeros: bool, most: int) -> Digits | None:
    """All pairs of numbers of these lengths, if at most so many digits could make them."""
    rows = patterns.every_row(base, sum(lengths), most)
    if rows is None:
        return None
    width = max(lengths)
    numbers = [torch.nn.functional.pad(row, (0, width - row.shape[1])) for row in rows.split(lengths, 1)]
    digits = torch.stack(numbers, 1)
    return digits if leading_zeros else digits[_without_zeros_in_front(digits, lengths)]


def _without_zeros_in_front(digits: Digits, lengths: tuple[int, int]) -> Bool[Tensor, " b"]:
    fronts = [(digits[:, axis, length - 1] > 0) | (length == 1) for axis, length in enumerate(lengths)]
    return fronts[0] & fronts[1]


def _passing(pair: Pair) -> Int[Tensor, "b n"]:
    """The longer number's digits, such that a column can pass a carry on: the largest beyond the shorter number. No
    number starts with a zero, where the base has a digit that neither is nor makes one."""
    at = torch.arange(pair.width)
    digits = pair.digits()
    if not pair.leading_zeros and pair.base > 2:
        between = torch.randint(1, pair.base - 1, digits.shape, generator=pair.generator)
        digits = torch.where(at == pair.shorter - 1, between, digits)
    return torch.where(at >= pair.shorter, pair.top, digits)


def _power(pair: Pair, axis: int) -> Int[Tensor, "b n"]:
    """A power of the base, at a uniform digit or, where a number must not start with a zero, at its first."""
    length, at = pair.lengths[:, axis : axis + 1], torch.arange(pair.width)
    top = pair.position(length) if pair.leading_zeros else length - 1
    change = torch.randint(-1, 2, (len(length), 1), generator=pair.generator)
    below = torch.where(at < (top if pair.leading_zeros else length), pair.top, 0)
    power = (at == top).long()
    above = power | (at == 0).long()
    return torch.where(change < 0, below, torch.where(change > 0, above, power))
