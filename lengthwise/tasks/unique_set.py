"""Unique set: n symbols → each distinct one, in the order of first appearance (Fan et al. 2025, section 6.1)."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.ranges import Range
from lengthwise.base.rows import within, zero_after
from lengthwise.base.types import Problems
from lengthwise.tasks import SequenceTask
from lengthwise.tasks.family import Family

_ALPHABET = string.ascii_letters + string.digits


@dataclass(frozen=True)
class UniqueSet(SequenceTask):
    """n uniform symbols of an alphabet → those seen for the first time. T(n) = n: one symbol is looked at per round. In
    the harder set each row draws from symbols of its own, uniformly 1 to n of them, so that most rows have repeats."""

    harder = "few-symbols"
    question = (
        "Write each different symbol of this sequence once, in the order in which they first appear, "
        "with nothing between them. Upper and lower case are different."
    )

    alphabet: Annotated[int, Range(2, 62)] = 50  # how many symbols, 2–62: a–z, A–Z, then 0–9

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(_ALPHABET[: self.alphabet])

    def sample_hard(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        rows, width = len(sizes), int(sizes.max())
        most = sizes.clamp(max=self.alphabet)
        few = (torch.rand(rows, 1, generator=generator) * most).long() + 1
        number = (torch.rand(rows, width, generator=generator) * few).long()  # among the row's own symbols
        own = torch.rand(rows, self.alphabet, generator=generator).argsort(1)
        return self.from_rows(sizes, zero_after(own.gather(1, number), sizes[:, 0]))

    @property
    def families(self) -> Sequence[Family]:
        own = (self._all_different, self._first_comes_again)
        return (*super().families, *(Family.of(function, function) for function in own))

    def _all_different(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        """No symbol twice, as far as the alphabet goes."""
        return self.from_rows(sizes, zero_after(self._draw_alphabets(sizes, generator), sizes[:, 0]))

    def _first_comes_again(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        """No symbol twice but the last, which is the first again."""
        row = self._draw_alphabets(sizes, generator)
        row = torch.where(torch.arange(row.shape[1]) == sizes - 1, row[:, :1], row)
        return self.from_rows(sizes, zero_after(row, sizes[:, 0]))

    def _draw_alphabets(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Int[Tensor, "b n"]:
        """The alphabet in an order of each row's own, round and round."""
        order = torch.rand(len(sizes), self.alphabet, generator=generator).argsort(1)
        width = int(sizes.max())
        return order[:, torch.arange(width) % self.alphabet]

    def from_rows(self, sizes: Int[Tensor, "b axes"], row: Int[Tensor, "b p"]) -> Problems:
        length, width = sizes[:, 0], row.shape[1]
        position = torch.arange(width).expand(len(row), -1)
        first = torch.full((len(row), self.alphabet), width)  # where each symbol stands first
        first.scatter_reduce_(1, symbols := row.long(), position, "amin")
        kept = (first.gather(1, symbols) == position) & within(length, width)
        counted = kept.cumsum(1)  # a kept symbol's position in the answer, from 1; others add nothing to the one before
        answer = row.new_zeros(len(row), width + 1).scatter_add_(1, counted, row * kept)[:, 1:]
        return Problems(sizes, row, length, answer[:, : int(counted.max())], counted[:, -1], length)

    def reference(self, prompt: str) -> str:
        return "".join(dict.fromkeys(prompt))

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        return {"repeats": problems.prompt_length - problems.answer_length}

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return sizes[:, 0].clamp(max=self.alphabet)
