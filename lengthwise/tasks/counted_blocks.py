"""The languages aⁿbⁿ and aⁿbⁿcⁿ, which take counting."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.ranges import Range
from lengthwise.base.types import Problems, UsageError
from lengthwise.tasks import Task, parse_symbols
from lengthwise.tasks.patterns import every_row

Rows = Int[Tensor, "b p"]
Sizes = Int[Tensor, "b 1"]


@dataclass(frozen=True)
class CountedBlocks(Task):
    """Is a word aⁿbⁿcⁿ (with ``letters=2``: aⁿbⁿ)? → 1 if so, else 0. The size is n, and every prompt has ``letters``
    · n symbols, so its length says nothing. T(n) = n.

    Half of uniform problems are in the language. The others are blocks in the right order with other counts, or, one in
    four, the right counts in any order.
    """

    letters: Annotated[int, Range(2, 5)] = 3  # blocks of a word

    axes = ("count",)
    writes = ("0", "1")

    @property
    def chance(self) -> float:
        return 0.5

    @property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple("abcde"[: self.letters])

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.reads, *self.writes)

    @property
    def question(self) -> str:
        blocks = ", then ".join(self.reads)
        return f"Write 1 if this word is one block each of {blocks}, all of the same length, and 0 if it is not."

    def sample(self, sizes: Sizes, generator: Generator) -> Problems:
        kind = torch.rand(len(sizes), 1, generator=generator)
        blocks = torch.where(kind < 0.5, self._members(sizes), self._other_counts(sizes, generator))
        return self.from_rows(sizes, torch.where(kind < 0.875, blocks, self._shuffled(sizes, generator)))

    def draw_pattern(self, pattern: Callable[..., Rows], sizes: Sizes, generator: Generator) -> Problems:
        return self.from_rows(sizes, pattern(self, sizes, generator))

    # Families

    def _members(self, sizes: Sizes, generator: Generator | None = None) -> Rows:
        """Only words of the language."""
        return (self._position(sizes) // sizes).clamp(max=self.letters - 1)

    def _one_moved(self, sizes: Sizes, generator: Generator) -> Rows:
        """One letter too many in a block, and one too few in another."""
        which = torch.randint(self.letters - 1, (len(sizes), 1), generator=generator)
        step = 2 * torch.randint(2, (len(sizes), 1), generator=generator) - 1
        ends = sizes * torch.arange(1, self.letters)
        return self._blocks(sizes, ends + step * (torch.arange(self.letters - 1) == which))

    def _two_swapped(self, sizes: Sizes, generator: Generator) -> Rows:
        """A word of the language with two neighbouring blocks' ends swapped."""
        which = torch.randint(1, self.letters, (len(sizes), 1), generator=generator)
        row, position, end = self._members(sizes), self._position(sizes), which * sizes
        return torch.where(position == end - 1, which, torch.where(position == end, which - 1, row))

    def _one_changed(self, sizes: Sizes, generator: Generator) -> Rows:
        """A word of the language with one letter changed."""
        place = (torch.rand(len(sizes), 1, generator=generator) * self.letters * sizes).long()
        other = torch.randint(1, self.letters, (len(sizes), 1), generator=generator)
        return (self._members(sizes) + other * (self._position(sizes) == place)) % self.letters

    def _one_letter(self, sizes: Sizes, generator: Generator) -> Rows:
        """One letter throughout."""
        letter = torch.randint(self.letters, (len(sizes), 1), generator=generator)
        return letter.expand(-1, self.letters * int(sizes.max()))

    def _other_counts(self, sizes: Sizes, generator: Generator) -> Rows:
        """Blocks in the right order, with any counts."""
        shape = len(sizes), self.letters - 1
        ends = (torch.rand(shape, generator=generator) * (self.letters * sizes + 1)).long().sort(1).values
        return self._blocks(sizes, ends)

    def _shuffled(self, sizes: Sizes, generator: Generator) -> Rows:
        """The right counts of letters, in any order."""
        row = self._members(sizes)
        order = torch.rand(row.shape, generator=generator)
        return row.gather(1, order.masked_fill(self._position(sizes) >= self.letters * sizes, 2.0).argsort(1))

    def _repeated(self, sizes: Sizes, generator: Generator) -> Rows:
        """Single letters in their order, again and again."""
        return (self._position(sizes) % self.letters).expand(len(sizes), -1)

    patterns = (
        _members, _one_moved, _two_swapped, _one_changed, _one_letter, _other_counts, _shuffled, _repeated
    )  # fmt: skip

    def _position(self, sizes: Sizes) -> Int[Tensor, " p"]:
        return torch.arange(self.letters * int(sizes.max()))

    def _blocks(self, sizes: Sizes, ends: Int[Tensor, "b cuts"]) -> Rows:
        """Return blocks that end at these positions, the last at the row's end."""
        return (self._position(sizes) >= ends[..., None]).sum(1)

    def from_rows(self, sizes: Sizes, row: Rows) -> Problems:
        """Return these rows of letters as problems with their answers."""
        length = self.letters * sizes[:, 0]
        real = torch.arange(row.shape[1]) < length[:, None]
        row = row.masked_fill(~real, 0).to(torch.int8)
        right = ((row == self._members(sizes)) | ~real).all(1)
        answer = (right.to(torch.int8) + self.letters)[:, None]
        return Problems(sizes, row, length, answer, torch.ones_like(length), sizes[:, 0])

    def enumerate(self, size: Sequence[int], most: int) -> Problems | None:
        rows = every_row(self.letters, self.letters * size[0], most)
        return None if rows is None else self.from_rows(torch.full((len(rows), 1), size[0]), rows.long())

    def parse(self, text: str) -> Problems:
        row = parse_symbols(self, text)
        if len(row) % self.letters:
            raise UsageError(
                f"{self.name}: a word has a multiple of {self.letters} letters, and {text!r} has {len(row)}"
            )
        return self.from_rows(torch.tensor([[len(row) // self.letters]]), row[None])

    def reference(self, prompt: str) -> str:
        blocks = re.fullmatch("".join(f"({letter}*)" for letter in self.reads), prompt)
        return str(int(blocks is not None and len({len(block) for block in blocks.groups()}) == 1))

    def answer_slots(self, sizes: Sizes) -> Int[Tensor, " b"]:
        return torch.ones_like(sizes[:, 0])
