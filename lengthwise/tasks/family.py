"""Families: kinds of structured problems, each with a name, that are rare among uniform problems."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.fields import suggest
from lengthwise.base.types import Problems, UsageError

Sampler = Callable[[Int[Tensor, "b axes"], Generator], Problems]


@dataclass(frozen=True)
class Family:
    """One kind of structured problem. ``sample`` draws one problem for each row of sizes. Sizes below ``smallest``, on
    the first axis, are neither measured nor drawn for training."""

    name: str
    about: str  # a sentence that describes the problems
    sample: Sampler
    smallest: int = 0

    @staticmethod
    def from_function(function: Callable[..., object], sample: Sampler) -> Family:
        """Return a family with the name (``one_symbol`` → ``one-symbol``) and the docstring of a function."""
        about = " ".join((function.__doc__ or "").split("\n\n")[0].split())
        return Family(function.__name__.strip("_").replace("_", "-"), about, sample)


def draw_mixture(families: Sequence[Family], sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
    """Draw one problem per row of sizes, each from a random family whose ``smallest`` is not above the size. If there
    is no such family, use the first. Rows of one family are contiguous."""
    fits = sizes[:, 0] >= torch.tensor([[family.smallest] for family in families])
    chosen = torch.randint(len(families), (len(sizes),), generator=generator) % fits.sum(0).clamp(min=1)
    chosen = fits.int().argsort(dim=0, descending=True, stable=True).gather(0, chosen[None])[0]
    rows = ((family, sizes[chosen == number]) for number, family in enumerate(families))
    return Problems.join([family.sample(own_sizes, generator) for family, own_sizes in rows if len(own_sizes)])


def choose_families(families: Sequence[Family], names: Sequence[str], task_name: str) -> Sequence[Family]:
    """Return the families called ``names``, or all families if ``names`` is empty. Raises UsageError for an unknown
    name."""
    by_name = {family.name: family for family in families}
    for name in names:
        if name not in by_name:
            listed = ", ".join(by_name) or "none"
            raise UsageError(f"{task_name} has no family {name!r}{suggest(name, by_name)}; it has: {listed}")
    return [by_name[name] for name in names] if names else families


@dataclass(frozen=True)
class RowSampler:
    """A sampler of rows of symbol ids below ``symbol_count``. Each method in ``patterns`` draws the rows of one
    family. Ids after a row's end are arbitrary: the caller sets them to zero."""

    length: Int[Tensor, " b"]
    width: int  # columns of the rows
    symbol_count: int
    generator: Generator

    @property
    def position(self) -> Int[Tensor, " width"]:
        return torch.arange(self.width)

    def draw_symbols(self, width: int) -> Int[Tensor, "b width"]:
        """Draw ``width`` uniform symbols for each row."""
        return torch.randint(self.symbol_count, (len(self.length), width), generator=self.generator)

    def draw_offsets(self) -> Int[Tensor, "b 1"]:
        """Draw an offset from 1 to ``symbol_count`` − 1 for each row. The offset, added to an id modulo
        ``symbol_count``, gives another symbol."""
        return torch.randint(1, self.symbol_count, (len(self.length), 1), generator=self.generator)

    def draw_positions(self) -> Int[Tensor, "b 1"]:
        """Draw a uniform position in each row."""
        return (torch.rand(len(self.length), generator=self.generator) * self.length).long()[:, None]

    def change_symbols(self, rows: Int[Tensor, "b width"], position: Int[Tensor, "b 1"]) -> Int[Tensor, "b width"]:
        """Change the symbol in one position of each row."""
        return (rows + (self.position == position) * self.draw_offsets()) % self.symbol_count

    def one_symbol(self) -> Int[Tensor, "b width"]:
        """Rows of one repeated symbol."""
        return self.draw_symbols(1).expand(-1, self.width).clone()

    def odd_one_out(self) -> Int[Tensor, "b width"]:
        """Rows of one repeated symbol, except in one position."""
        return self.change_symbols(self.one_symbol(), self.draw_positions())

    def two_odd(self) -> Int[Tensor, "b width"]:
        """Rows of one repeated symbol, except in two neighbouring positions or at both ends."""
        rows, start, length = self.one_symbol(), self.draw_positions(), self.length[:, None]
        ends = torch.rand(length.shape, generator=self.generator) < 0.5
        first, second = torch.where(ends, 0, start), torch.where(ends, length - 1, (start + 1) % length)
        other = (rows[:, :1] + self.draw_offsets()) % self.symbol_count
        return torch.where((self.position == first) | (self.position == second), other, rows)

    def odd_end(self) -> Int[Tensor, "b width"]:
        """Rows of one repeated symbol, except in the first or the last position."""
        rows, last = self.one_symbol(), self.length[:, None] - 1
        return self.change_symbols(rows, last * torch.randint(2, last.shape, generator=self.generator))

    def alternating(self) -> Int[Tensor, "b width"]:
        """Rows in which two symbols alternate."""
        return (self.draw_symbols(1) + self.position % 2 * self.draw_offsets()) % self.symbol_count

    def periodic(self) -> Int[Tensor, "b width"]:
        """Rows that repeat a block of two symbols or more at least twice."""
        longest = (self.length // 2).clamp(min=2)
        period = 2 + (torch.rand(len(longest), generator=self.generator) * (longest - 1)).long()
        return self.draw_symbols(max(self.width, 2)).gather(1, self.position % period[:, None])

    def palindrome(self) -> Int[Tensor, "b width"]:
        """Rows that read the same backwards."""
        mirrored = (self.length[:, None] - 1 - self.position).clamp(min=0)
        return self.draw_symbols(self.width).gather(1, torch.minimum(self.position, mirrored))

    def runs(self) -> Int[Tensor, "b width"]:
        """Rows of runs of equal symbols; a run is six symbols long on average."""
        turns = torch.rand(len(self.length), self.width, generator=self.generator) < 1 / 6
        steps = torch.randint(1, self.symbol_count, turns.shape, generator=self.generator) * turns
        return (self.draw_symbols(1) + steps.cumsum(1)) % self.symbol_count

    def mostly_lowest(self) -> Int[Tensor, "b width"]:
        """Rows with the lowest symbol at 90 % of the positions, and uniform symbols elsewhere."""
        rows = self.draw_symbols(self.width)
        return rows.masked_fill(torch.rand(rows.shape, generator=self.generator) < 0.9, 0)

    def mostly_highest(self) -> Int[Tensor, "b width"]:
        """Rows with the highest symbol at 90 % of the positions, and uniform symbols elsewhere."""
        rows = self.draw_symbols(self.width)
        return rows.masked_fill(torch.rand(rows.shape, generator=self.generator) < 0.9, self.symbol_count - 1)

    def two_blocks(self) -> Int[Tensor, "b width"]:
        """Rows of one symbol up to a random position, and of another symbol after it."""
        rows, later = self.one_symbol(), self.position > self.draw_positions()
        return (rows + later * self.draw_offsets()) % self.symbol_count

    def lowest_first(self) -> Int[Tensor, "b width"]:
        """Rows with the lowest symbol up to a random position, and uniform symbols after it."""
        return self.draw_symbols(self.width) * (self.position > self.draw_positions())

    def lowest_last(self) -> Int[Tensor, "b width"]:
        """Rows with uniform symbols before a random position, and the lowest symbol from there on."""
        return self.draw_symbols(self.width) * (self.position < self.draw_positions())

    def doubled(self) -> Int[Tensor, "b width"]:
        """Rows whose second half repeats the first half."""
        return self.draw_symbols(self.width).gather(1, self.position % ((self.length[:, None] + 1) // 2))

    def doubled_but_one(self) -> Int[Tensor, "b width"]:
        """Rows of ``doubled`` with one symbol changed, which usually changes the answer."""
        return self.change_symbols(self.doubled(), self.draw_positions())

    def complemented(self) -> Int[Tensor, "b width"]:
        """Rows whose second half is the complement of the first: the highest symbol becomes the lowest, and so on."""
        row, half = self.doubled(), (self.length[:, None] + 1) // 2
        return torch.where(self.position < half, row, self.symbol_count - 1 - row)

    def two_symbols(self) -> Int[Tensor, "b width"]:
        """Rows of two symbols of the alphabet, both equally likely at each position."""
        coins = torch.randint(2, (len(self.length), self.width), generator=self.generator)
        return (self.draw_symbols(1) + coins * self.draw_offsets()) % self.symbol_count

    def in_order(self) -> Int[Tensor, "b width"]:
        """Rows that repeat the alphabet in order, from a random symbol on."""
        return (self.draw_symbols(1) + self.position) % self.symbol_count

    def few_in_runs(self) -> Int[Tensor, "b width"]:
        """Rows of one to three symbols, different from row to row, in runs of any length."""
        return self.draw_symbols(3).gather(1, draw_run_ids(len(self.length), self.width, self.generator))

    patterns = (
        one_symbol, odd_one_out, two_odd, odd_end, alternating, periodic, palindrome, runs, few_in_runs, mostly_lowest,
        mostly_highest, two_blocks, lowest_first, lowest_last, doubled, doubled_but_one, complemented,
    )  # fmt: skip


Pattern = Callable[[RowSampler], Int[Tensor, "b width"]]


def select_patterns(symbol_count: int) -> tuple[Pattern, ...]:
    """Return the patterns that apply to an alphabet of ``symbol_count`` symbols."""
    if symbol_count == 1:  # there is one row of each length
        return (RowSampler.one_symbol,)
    return RowSampler.patterns + ((RowSampler.two_symbols, RowSampler.in_order) if symbol_count > 2 else ())


def draw_run_ids(row_count: int, width: int, generator: Generator) -> Int[Tensor, "rows width"]:
    """Draw rows of integers below a limit of 1, 2 or 3, which is drawn per row. Each position repeats the integer
    before it with a probability that is also drawn per row: for a third of the rows it is 1, for the others it is
    uniform."""
    limit = torch.randint(1, 4, (row_count, 1), generator=generator)
    repeat_probability = 1.5 * torch.rand(row_count, 1, generator=generator)
    number = (torch.rand(row_count, width, generator=generator) * limit).long()
    new = torch.rand(row_count, width, generator=generator) >= repeat_probability
    return number.gather(1, (new * torch.arange(width)).cummax(1).values)


def enumerate_rows(symbol_count: int, length: int, limit: int) -> Int[Tensor, "n length"] | None:
    """Return all rows of ``length`` ids below ``symbol_count``, or None if there are more than ``limit`` rows."""
    if symbol_count**length > limit:
        return None
    powers = torch.tensor([symbol_count**position for position in reversed(range(length))])
    return torch.arange(symbol_count**length)[:, None] // powers % symbol_count
