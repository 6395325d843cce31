"""Unique set: n symbols → each distinct one, in the order of first appearance (Fan et al. 2025, section 6.1)."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.ranges import Range
from lengthwise.base.rows import length_mask, zero_after
from lengthwise.base.types import Problems
from lengthwise.tasks import SequenceTask
from lengthwise.tasks.patterns import Pattern

_ALPHABET = string.ascii_letters + string.digits


@dataclass(frozen=True)
class UniqueSet(SequenceTask):
    """n uniform symbols of an alphabet → each one at its first appearance. T(n) = n: one symbol per round. In the
    harder set each row draws from its own subset of 1 to n symbols, of uniform size, so that most rows have repeats."""

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
        number = (torch.rand(rows, width, generator=generator) * few).long()  # in the row's subset
        subset = torch.rand(rows, self.alphabet, generator=generator).argsort(1)
        return self.from_rows(sizes, zero_after(subset.gather(1, number), sizes[:, 0]))

    @property
    def patterns(self) -> tuple[Pattern, ...]:  # type: ignore[override]
        return (*super().patterns, all_different, first_comes_again)

    def from_rows(self, sizes: Int[Tensor, "b axes"], row: Int[Tensor, "b p"]) -> Problems:
        length, width = sizes[:, 0], row.shape[1]
        position = torch.arange(width).expand(len(row), -1)
        first = torch.full((len(row), self.alphabet), width)  # the first position of each symbol
        first.scatter_reduce_(1, symbols := row.long(), position, "amin")
        is_first = (first.gather(1, symbols) == position) & length_mask(length, width)
        place = is_first.cumsum(1)  # of a first symbol in the answer, from 1; repeats add 0 to the place before
        answer = row.new_zeros(len(row), width + 1).scatter_add_(1, place, row * is_first)[:, 1:]
        return Problems(sizes, row, length, answer[:, : int(place.max())], place[:, -1], length)

    def reference(self, prompt: str) -> str:
        return "".join(dict.fromkeys(prompt))

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        return {"repeats": problems.prompt_length - problems.answer_length}

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return sizes[:, 0].clamp(max=self.alphabet)


def all_different(length: Int[Tensor, " b"], width: int, count: int, generator: Generator) -> Int[Tensor, "b width"]:
    """All symbols differ; a row longer than the alphabet repeats it."""
    order = torch.rand(len(length), count, generator=generator).argsort(1)
    return order[:, torch.arange(width) % count]


def first_comes_again(
    length: Int[Tensor, " b"], width: int, count: int, generator: Generator
) -> Int[Tensor, "b width"]:
    """All symbols differ, except that the last is the first again."""
    row = all_different(length, width, count, generator)
    return torch.where(torch.arange(width) == length[:, None] - 1, row[:, :1], row)
