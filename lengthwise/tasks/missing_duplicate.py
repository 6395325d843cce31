"""A string written twice, with one symbol hidden (Delétang et al. 2023): a context-sensitive task."""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.ranges import Range
from lengthwise.base.types import SYMBOL, Problems, UsageError
from lengthwise.tasks import Task, parse_symbols
from lengthwise.tasks.patterns import Pattern, every_row, suitable_patterns

HIDDEN = "?"  # layouts pad with _


@dataclass(frozen=True)
class MissingDuplicate(Task):
    """n symbols of an alphabet, twice, with ``?`` for one of them → the hidden symbol: ``01?010`` → ``0`` (Delétang et
    al. 2023). The size is n, so a prompt has 2n symbols. T(n) = n."""

    alphabet: Annotated[int, Range(2, 10)] = 2  # how many symbols, 2–10: from 0 up

    question = f"This is a sequence of symbols, written twice. One of them is hidden, as {HIDDEN}; write it."

    @property
    def writes(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(string.digits[: self.alphabet])

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.writes, HIDDEN)

    @property
    def patterns(self) -> tuple[Pattern, ...]:  # type: ignore[override]
        return suitable_patterns(self.alphabet)

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        shape = len(sizes), int(sizes.max())
        return self._hide(sizes, torch.randint(self.alphabet, shape, generator=generator), generator)

    def draw_pattern(self, pattern: Pattern, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self._hide(sizes, pattern(sizes[:, 0], int(sizes.max()), self.alphabet, generator), generator)

    def _hide(self, sizes: Int[Tensor, "b axes"], row: Int[Tensor, "b n"], generator: Generator) -> Problems:
        return self.from_rows(sizes, row, (2 * torch.rand(len(sizes), 1, generator=generator) * sizes).long())

    def from_rows(self, sizes: Int[Tensor, "b axes"], row: Int[Tensor, "b n"], place: Int[Tensor, "b 1"]) -> Problems:
        """Return problems on these strings, each with the symbol hidden that stands at ``place`` of the prompt."""
        position, length = torch.arange(2 * row.shape[1]), 2 * sizes[:, 0]
        prompt = row.gather(1, position % sizes).where(position < 2 * sizes, 0)
        answer = row.gather(1, place % sizes).to(SYMBOL)
        prompt = prompt.masked_fill(position == place, self.alphabet).to(SYMBOL)
        return Problems(sizes, prompt, length, answer, torch.ones_like(length), sizes[:, 0])

    def enumerate(self, size: Sequence[int], most: int) -> Problems | None:
        count = 2 * size[0]
        rows = every_row(self.alphabet, size[0], most // count)
        if rows is None:
            return None
        places = torch.arange(count).repeat(len(rows))[:, None]
        return self.from_rows(torch.full_like(places, size[0]), rows.repeat_interleave(count, 0), places)

    def parse(self, text: str) -> Problems:
        row = parse_symbols(self, text).long()
        half, place = len(row) // 2, (row == self.alphabet).nonzero()
        copies = row[: 2 * half].view(2, half)
        if len(row) % 2 or len(place) != 1 or (copies[0] != copies[1]).sum() != 1:
            raise UsageError(
                f"{self.name}: {text!r} is not a sequence written twice with one {HIDDEN} in it, such as 01{HIDDEN}010"
            )
        return self.from_rows(torch.tensor([[half]]), copies.amin(0, keepdim=True), place)

    def reference(self, prompt: str) -> str:
        place, half = prompt.index(HIDDEN), len(prompt) // 2
        return prompt[place - half]

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return torch.ones_like(sizes[:, 0])
