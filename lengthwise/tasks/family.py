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
    about: str  # one sentence
    sample: Sampler
    smallest: int = 0

    @staticmethod
    def of(function: Callable[..., object], sample: Sampler) -> Family:
        """Name a family after a function (``one_symbol`` → ``one-symbol``), and describe it by its docstring."""
        about = " ".join((function.__doc__ or "").split("\n\n")[0].split())
        return Family(function.__name__.strip("_").replace("_", "-"), about, sample)


def draw_mixture(families: Sequence[Family], sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
    """Draw one problem per row of sizes, each from a random family whose ``smallest`` is not above the size (from the
    first family if there is none). Rows of one family are contiguous."""
    fits = sizes[:, 0] >= torch.tensor([[family.smallest] for family in families])
    chosen = torch.randint(len(families), (len(sizes),), generator=generator) % fits.sum(0).clamp(min=1)
    chosen = fits.int().argsort(dim=0, descending=True, stable=True).gather(0, chosen[None])[0]
    rows = ((family, sizes[chosen == number]) for number, family in enumerate(families))
    return Problems.join([family.sample(own_sizes, generator) for family, own_sizes in rows if len(own_sizes)])


def choose_families(families: Sequence[Family], names: Sequence[str], task: str) -> Sequence[Family]:
    """Return the families called ``names``, or all families if ``names`` is empty. Raises UsageError for an unknown
    name."""
    known = {family.name: family for family in families}
    for name in names:
        if name not in known:
            listed = ", ".join(known) or "none"
            raise UsageError(f"{task} has no family {name!r}{suggest(name, known)}; it has: {listed}")
    return [known[name] for name in names] if names else families


# Patterns of symbols in a row, of which families are made. Each takes the rows' lengths, the width of the result, the
# number of symbols and a generator, and returns ids below that number. Ids beyond a row's length are ignored.

Pattern = Callable[[Int[Tensor, " b"], int, int, Generator], Int[Tensor, "b width"]]


def one_symbol(length: Int[Tensor, " b"], width: int, count: int, generator: Generator) -> Int[Tensor, "b width"]:
    """One symbol throughout."""
    return _draw_symbols(len(length), 1, count, generator).expand(-1, width).clone()


def odd_one_out(length: Int[Tensor, " b"], width: int, count: int, generator: Generator) -> Int[Tensor, "b width"]:
    """One symbol throughout, except in one position."""
    row = one_symbol(length, width, count, generator)
    return _change_symbols(row, _draw_positions(length, generator), count, generator)


def two_odd(length: Int[Tensor, " b"], width: int, count: int, generator: Generator) -> Int[Tensor, "b width"]:
    """One symbol throughout, except in two neighbouring positions or at both ends."""
    row, start = one_symbol(length, width, count, generator), _draw_positions(length, generator)
    ends = torch.rand(len(length), generator=generator) < 0.5
    second = torch.where(ends, length - 1, (start + 1) % length)
    first = torch.where(ends, 0, start)
    other = (row[:, :1] + _draw_shift(len(length), count, generator)) % count
    position = torch.arange(width)
    return torch.where((position == first[:, None]) | (position == second[:, None]), other, row)


def odd_end(length: Int[Tensor, " b"], width: int, count: int, generator: Generator) -> Int[Tensor, "b width"]:
    """One symbol throughout, except in the first or the last position."""
    row = one_symbol(length, width, count, generator)
    ends = (length - 1) * torch.randint(2, length.shape, generator=generator)
    return _change_symbols(row, ends, count, generator)


def alternating(length: Int[Tensor, " b"], width: int, count: int, generator: Generator) -> Int[Tensor, "b width"]:
    """Two symbols in turn."""
    first = _draw_symbols(len(length), 1, count, generator)
    return (first + torch.arange(width) % 2 * _draw_shift(len(length), count, generator)) % count


def periodic(length: Int[Tensor, " b"], width: int, count: int, generator: Generator) -> Int[Tensor, "b width"]:
    """A block of 2 symbols or more, repeated at least twice."""
    longest = (length // 2).clamp(min=2)
    period = 2 + (torch.rand(len(length), generator=generator) * (longest - 1)).long()
    return _repeat_block(_draw_symbols(len(length), max(width, 2), count, generator), period, width)


def palindrome(length: Int[Tensor, " b"], width: int, count: int, generator: Generator) -> Int[Tensor, "b width"]:
    """Rows that read the same backwards."""
    position = torch.arange(width)
    back = (length[:, None] - 1 - position).clamp(min=0)
    return _draw_symbols(len(length), width, count, generator).gather(1, torch.minimum(position, back))


def runs(length: Int[Tensor, " b"], width: int, count: int, generator: Generator) -> Int[Tensor, "b width"]:
    """Runs of equal symbols, six long on average."""
    turns = torch.rand(len(length), width, generator=generator) < 1 / 6
    steps = torch.randint(1, count, turns.shape, generator=generator) * turns
    return (_draw_symbols(len(length), 1, count, generator) + steps.cumsum(1)) % count


def mostly_lowest(length: Int[Tensor, " b"], width: int, count: int, generator: Generator) -> Int[Tensor, "b width"]:
    """The lowest symbol in nine positions of ten, uniform symbols in the others."""
    return _draw_mostly(0, length, width, count, generator)


def mostly_highest(length: Int[Tensor, " b"], width: int, count: int, generator: Generator) -> Int[Tensor, "b width"]:
    """The highest symbol in nine positions of ten, uniform symbols in the others."""
    return _draw_mostly(count - 1, length, width, count, generator)


def two_blocks(length: Int[Tensor, " b"], width: int, count: int, generator: Generator) -> Int[Tensor, "b width"]:
    """One symbol up to a uniform position, and another from there on."""
    row = one_symbol(length, width, count, generator)
    later = torch.arange(width) > _draw_positions(length, generator)[:, None]
    return (row + later * _draw_shift(len(length), count, generator)) % count


def lowest_first(length: Int[Tensor, " b"], width: int, count: int, generator: Generator) -> Int[Tensor, "b width"]:
    """The lowest symbol up to a uniform position, and uniform symbols after it."""
    row = _draw_symbols(len(length), width, count, generator)
    return row * (torch.arange(width) > _draw_positions(length, generator)[:, None])


def lowest_last(length: Int[Tensor, " b"], width: int, count: int, generator: Generator) -> Int[Tensor, "b width"]:
    """Uniform symbols up to a uniform position, and the lowest symbol from there on."""
    row = _draw_symbols(len(length), width, count, generator)
    return row * (torch.arange(width) < _draw_positions(length, generator)[:, None])


def doubled(length: Int[Tensor, " b"], width: int, count: int, generator: Generator) -> Int[Tensor, "b width"]:
    """The first half twice."""
    return _repeat_block(_draw_symbols(len(length), width, count, generator), (length + 1) // 2, width)


def doubled_but_one(length: Int[Tensor, " b"], width: int, count: int, generator: Generator) -> Int[Tensor, "b width"]:
    """The first half twice, with one symbol changed: similar to ``doubled``, mostly with another answer."""
    return _change_symbols(
        doubled(length, width, count, generator), _draw_positions(length, generator), count, generator
    )


def complemented(length: Int[Tensor, " b"], width: int, count: int, generator: Generator) -> Int[Tensor, "b width"]:
    """The first half, then its complement: 0 for the highest symbol, the highest for 0."""
    row = doubled(length, width, count, generator)
    return torch.where(torch.arange(width) < ((length + 1) // 2)[:, None], row, count - 1 - row)


def two_symbols(length: Int[Tensor, " b"], width: int, count: int, generator: Generator) -> Int[Tensor, "b width"]:
    """Two symbols of the alphabet, equally often."""
    coins = torch.randint(2, (len(length), width), generator=generator)
    return (
        _draw_symbols(len(length), 1, count, generator) + coins * _draw_shift(len(length), count, generator)
    ) % count


def in_order(length: Int[Tensor, " b"], width: int, count: int, generator: Generator) -> Int[Tensor, "b width"]:
    """The alphabet in its order, repeated, from a uniform symbol on."""
    return (_draw_symbols(len(length), 1, count, generator) + torch.arange(width)) % count


def few_in_runs(length: Int[Tensor, " b"], width: int, count: int, generator: Generator) -> Int[Tensor, "b width"]:
    """One to three symbols, different for each row, in runs of any length."""
    rows = len(length)
    return _draw_symbols(rows, 3, count, generator).gather(1, draw_run_ids(rows, width, generator))


def draw_run_ids(rows: int, width: int, generator: Generator) -> Int[Tensor, "rows width"]:
    """Draw runs of numbers below a limit of 1, 2 or 3 per row. A position repeats the number before it with a
    probability that is drawn for each row: uniform, and 1 in a third of the rows."""
    most = torch.randint(1, 4, (rows, 1), generator=generator)
    keeps = 1.5 * torch.rand(rows, 1, generator=generator)
    number = (torch.rand(rows, width, generator=generator) * most).long()
    new = torch.rand(rows, width, generator=generator) >= keeps
    return number.gather(1, (new * torch.arange(width)).cummax(1).values)


PATTERNS: tuple[Pattern, ...] = (
    one_symbol, odd_one_out, two_odd, odd_end, alternating, periodic, palindrome, runs, few_in_runs, mostly_lowest,
    mostly_highest, two_blocks, lowest_first, lowest_last, doubled, doubled_but_one, complemented,
)  # fmt: skip


def suitable_patterns(count: int) -> tuple[Pattern, ...]:
    """Return the patterns that are valid for ``count`` symbols."""
    if count == 1:  # there is one row of each length
        return (one_symbol,)
    return PATTERNS if count == 2 else (*PATTERNS, two_symbols, in_order)


def enumerate_rows(count: int, length: int, limit: int) -> Int[Tensor, "n length"] | None:
    """Return all rows of ``length`` symbols, or None if there are more than ``limit``."""
    if count**length > limit:
        return None
    powers = torch.tensor([count**position for position in reversed(range(length))])
    return torch.arange(count**length)[:, None] // powers % count


def _draw_symbols(rows: int, width: int, count: int, generator: Generator) -> Int[Tensor, "rows width"]:
    return torch.randint(count, (rows, width), generator=generator)


def _draw_shift(rows: int, count: int, generator: Generator) -> Int[Tensor, "rows 1"]:
    """Draw differences (modulo ``count``) that lead from any symbol to another."""
    return torch.randint(1, count, (rows, 1), generator=generator)


def _draw_positions(length: Int[Tensor, " b"], generator: Generator) -> Int[Tensor, " b"]:
    """Draw a uniform position in each row."""
    return (torch.rand(len(length), generator=generator) * length).long()


def _change_symbols(
    row: Int[Tensor, "b width"], position: Int[Tensor, " b"], count: int, generator: Generator
) -> Int[Tensor, "b width"]:
    """Change the symbol in one position of each row."""
    chosen = torch.arange(row.shape[1]) == position[:, None]
    return (row + chosen * _draw_shift(len(row), count, generator)) % count


def _repeat_block(block: Int[Tensor, "b n"], period: Int[Tensor, " b"], width: int) -> Int[Tensor, "b width"]:
    return block.gather(1, torch.arange(width) % period[:, None])


def _draw_mostly(
    symbol: int, length: Int[Tensor, " b"], width: int, count: int, generator: Generator
) -> Int[Tensor, "b width"]:
    row = _draw_symbols(len(length), width, count, generator)
    return row.masked_fill(torch.rand(row.shape, generator=generator) < 0.9, symbol)
