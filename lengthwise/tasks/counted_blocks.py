"""The languages aⁿbⁿ and aⁿbⁿcⁿ, which take counting."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.ranges import Range
from lengthwise.base.types import Problems, UsageError
from lengthwise.tasks import Task, symbols_of
from lengthwise.tasks.family import Family
from lengthwise.tasks.patterns import every_row


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

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        kind = torch.rand(len(sizes), 1, generator=generator)
        blocks = torch.where(kind < 0.5, self._equal(sizes), self._other_counts(sizes, generator))
        return self.from_rows(sizes, torch.where(kind < 0.875, blocks, self._any_order(sizes, generator)))

    @property
    def families(self) -> Sequence[Family]:
        return (
            Family(
                "members", "Words of the language alone.", lambda sizes, _: self.from_rows(sizes, self._equal(sizes))
            ),
            Family("one-moved", "One letter too many in a block, and one too few in another.", self._one_moved),
            Family(
                "two-swapped", "A word of the language with two neighbouring blocks' ends swapped.", self._draw_swaps
            ),
            Family("one-changed", "A word of the language with one letter changed.", self._one_changed),
            Family("one-letter", "One letter throughout.", self._one_letter),
            Family("other-counts", "Blocks in the right order, with any counts.", self._draw_miscounts),
            Family("shuffled", "The right counts of letters, in any order.", self._draw_shuffles),
            Family("repeated", "Single letters in their order, again and again.", self._draw_repeats),
        )

    def _equal(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, "b p"]:
        position = torch.arange(self.letters * int(sizes.max()))
        return (position // sizes).clamp(max=self.letters - 1)

    def _blocks(self, sizes: Int[Tensor, "b axes"], ends: Int[Tensor, "b cuts"]) -> Int[Tensor, "b p"]:
        """Blocks that end at these positions, the last at the row's end."""
        position = torch.arange(self.letters * int(sizes.max()))
        return (position >= ends[..., None]).sum(1)

    def _other_counts(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Int[Tensor, "b p"]:
        shape = len(sizes), self.letters - 1
        ends = (torch.rand(shape, generator=generator) * (self.letters * sizes + 1)).long().sort(1).values
        return self._blocks(sizes, ends)

    def _any_order(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Int[Tensor, "b p"]:
        row = self._equal(sizes)
        order = torch.rand(row.shape, generator=generator)
        order = order.masked_fill(torch.arange(row.shape[1]) >= self.letters * sizes, 2.0).argsort(1)
        return row.gather(1, order)

    def _draw_miscounts(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self.from_rows(sizes, self._other_counts(sizes, generator))

    def _draw_shuffles(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self.from_rows(sizes, self._any_order(sizes, generator))

    def _draw_repeats(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        row = torch.arange(self.letters * int(sizes.max())) % self.letters
        return self.from_rows(sizes, row.expand(len(sizes), -1))

    def _one_changed(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        row = self._equal(sizes)
        place = (torch.rand(len(sizes), 1, generator=generator) * self.letters * sizes).long()
        other = torch.randint(1, self.letters, (len(sizes), 1), generator=generator)
        return self.from_rows(sizes, (row + other * (torch.arange(row.shape[1]) == place)) % self.letters)

    def _one_moved(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        ends = sizes * torch.arange(1, self.letters)
        which = torch.randint(self.letters - 1, (len(sizes), 1), generator=generator)
        step = 2 * torch.randint(2, (len(sizes), 1), generator=generator) - 1
        return self.from_rows(sizes, self._blocks(sizes, ends + step * (torch.arange(self.letters - 1) == which)))

    def _draw_swaps(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        row = self._equal(sizes)
        which = torch.randint(1, self.letters, (len(sizes), 1), generator=generator)
        end = which * sizes
        position = torch.arange(row.shape[1])
        row = torch.where(position == end - 1, which, torch.where(position == end, which - 1, row))
        return self.from_rows(sizes, row)

    def _one_letter(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        letter = torch.randint(self.letters, (len(sizes), 1), generator=generator)
        return self.from_rows(sizes, letter.expand(-1, self.letters * int(sizes.max())))

    def from_rows(self, sizes: Int[Tensor, "b axes"], row: Int[Tensor, "b p"]) -> Problems:
        """These rows of letters as problems with their answers."""
        length = self.letters * sizes[:, 0]
        real = torch.arange(row.shape[1]) < length[:, None]
        row = row.masked_fill(~real, 0).to(torch.int8)
        right = ((row == self._equal(sizes)) | ~real).all(1)
        answer = (right.to(torch.int8) + self.letters)[:, None]
        return Problems(sizes, row, length, answer, torch.ones_like(length), sizes[:, 0])

    def enumerate(self, size: Sequence[int], most: int) -> Problems | None:
        rows = every_row(self.letters, self.letters * size[0], most)
        return None if rows is None else self.from_rows(torch.full((len(rows), 1), size[0]), rows.long())

    def parse(self, text: str) -> Problems:
        row = symbols_of(self, text)
        if len(row) % self.letters:
            raise UsageError(
                f"{self.name}: a word has a multiple of {self.letters} letters, and {text!r} has {len(row)}"
            )
        return self.from_rows(torch.tensor([[len(row) // self.letters]]), row[None])

    def reference(self, prompt: str) -> str:
        blocks = re.fullmatch("".join(f"({letter}*)" for letter in self.reads), prompt)
        return str(int(blocks is not None and len({len(block) for block in blocks.groups()}) == 1))

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return torch.ones_like(sizes[:, 0])
