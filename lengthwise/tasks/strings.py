"""Tasks on strings: copy, reverse, duplicate or sort symbols; write symbols at odd positions before symbols at even
positions; find the hidden symbol of a string written twice; list the distinct symbols."""

from __future__ import annotations

import string
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.ranges import Range
from lengthwise.base.rows import length_mask, zero_after
from lengthwise.base.types import SYMBOL_DTYPE, Problems, UsageError
from lengthwise.tasks import SequenceTask, Task, parse_symbols
from lengthwise.tasks.family import Pattern, RowSampler, enumerate_rows, select_patterns


@dataclass(frozen=True)
class _AlphabetTask(SequenceTask):
    alphabet: Annotated[int, Range(2, 36)] = 2  # how many symbols, 2–36: 0–9, then a–z

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple((string.digits + string.ascii_lowercase)[: self.alphabet])


@dataclass(frozen=True)
class Copy(_AlphabetTask):
    """n uniform symbols of an alphabet → the same symbols (Fan et al. 2025, section 6.1). T(n) = n: the row moves by
    one position per round."""

    answers_each_symbol = True
    question = "Write this sequence of symbols again, just as it stands."

    def from_rows(self, sizes: Int[Tensor, "b axes"], rows: Int[Tensor, "b p"]) -> Problems:
        return Problems(sizes, rows, sizes[:, 0], rows, sizes[:, 0], sizes[:, 0])

    def reference(self, prompt: str) -> str:
        return prompt

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        """Return the length of each prompt's longest run of equal symbols."""
        row, position = problems.prompt, torch.arange(1, problems.prompt.shape[1] + 1)
        equal = torch.nn.functional.pad(row[:, 1:] == row[:, :-1], (0, 1))
        goes_on = equal & length_mask(problems.prompt_length - 1, row.shape[1])
        return {"longest run": (position - torch.where(goes_on, 0, position).cummax(1).values).amax(1) + 1}


@dataclass(frozen=True)
class _RearrangementTask(_AlphabetTask):
    times = 1  # length of an answer / length of its prompt

    @property
    def answers_each_symbol(self) -> bool:  # type: ignore[override]
        return self.times == 1

    @abstractmethod
    def find_source_positions(self, length: Int[Tensor, "b 1"], rows: Int[Tensor, "b p"]) -> Int[Tensor, "b a"]:
        """Return each answer symbol's position in the prompt; positions after an answer's end are arbitrary."""

    def from_rows(self, sizes: Int[Tensor, "b axes"], rows: Int[Tensor, "b p"]) -> Problems:
        length = sizes[:, 0]
        places = self.find_source_positions(sizes, rows).clamp(min=0, max=rows.shape[1] - 1)
        answer_length = self.times * length
        return Problems(sizes, rows, length, zero_after(rows.gather(1, places), answer_length), answer_length, length)

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return self.times * sizes[:, 0]


@dataclass(frozen=True)
class Reverse(_RearrangementTask):
    """n uniform symbols → the same symbols in reverse order (Delétang et al. 2023). T(n) = n."""

    question = "Write this sequence of symbols in reverse order."

    def find_source_positions(self, length: Int[Tensor, "b 1"], rows: Int[Tensor, "b p"]) -> Int[Tensor, "b a"]:
        return length - 1 - torch.arange(rows.shape[1])

    def reference(self, prompt: str) -> str:
        return prompt[::-1]


@dataclass(frozen=True)
class Duplicate(_RearrangementTask):
    """n uniform symbols → the same string twice, one copy after the other (Delétang et al. 2023). T(n) = n."""

    question = "Write this sequence of symbols twice, one copy directly after the other."
    times = 2

    def find_source_positions(self, length: Int[Tensor, "b 1"], rows: Int[Tensor, "b p"]) -> Int[Tensor, "b a"]:
        return torch.arange(2 * rows.shape[1]) % length

    def reference(self, prompt: str) -> str:
        return prompt + prompt


@dataclass(frozen=True)
class OddsFirst(_RearrangementTask):
    """n uniform symbols → the first, third, fifth and so on, then the second, fourth and so on (Delétang et al. 2023).
    T(n) = n. The paper's code, unlike its text, writes the symbols at even positions first."""

    question = "Write every second symbol of this sequence, beginning with the first, and then all the others in order."

    def find_source_positions(self, length: Int[Tensor, "b 1"], rows: Int[Tensor, "b p"]) -> Int[Tensor, "b a"]:
        position, odds = torch.arange(rows.shape[1]), (length + 1) // 2
        return torch.where(position < odds, 2 * position, 2 * (position - odds) + 1)

    def reference(self, prompt: str) -> str:
        return prompt[::2] + prompt[1::2]


@dataclass(frozen=True)
class BucketSort(_RearrangementTask):
    """n uniform symbols of a small alphabet → the same symbols in ascending order (Delétang et al. 2023). T(n) = n."""

    alphabet: Annotated[int, Range(2, 36)] = 5  # how many symbols, 2–36: 0–9, then a–z

    question = "Write the symbols of this sequence in ascending order, digits before letters."

    def find_source_positions(self, length: Int[Tensor, "b 1"], rows: Int[Tensor, "b p"]) -> Int[Tensor, "b a"]:
        is_padding = torch.arange(rows.shape[1]) >= length
        return rows.long().masked_fill(is_padding, self.alphabet).argsort(1)

    def reference(self, prompt: str) -> str:
        return "".join(sorted(prompt))


HIDDEN_MARK = "?"  # not _, as layouts use it for padding


@dataclass(frozen=True)
class MissingDuplicate(Task):
    """A string of n symbols written twice, with one symbol replaced by ``?`` → that symbol: ``01?010`` → ``0``
    (Delétang et al. 2023). The size is n, so a prompt has 2n symbols; the paper's code appends a blank for odd lengths.
    T(n) = n."""

    alphabet: Annotated[int, Range(2, 10)] = 2  # how many symbols, 2–10: from 0 up

    question = f"This is a sequence of symbols, written twice. One of them is hidden, as {HIDDEN_MARK}; write it."

    @property
    def writes(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(string.digits[: self.alphabet])

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.writes, HIDDEN_MARK)

    @property
    def patterns(self) -> tuple[Pattern, ...]:  # type: ignore[override]
        return select_patterns(self.alphabet)

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self.draw_pattern(lambda rows: rows.draw_symbols(rows.width), sizes, generator)

    def draw_pattern(self, pattern: Pattern, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        row = pattern(RowSampler(sizes[:, 0], int(sizes.max()), self.alphabet, generator))
        hidden = (2 * torch.rand(len(sizes), 1, generator=generator) * sizes).long()
        return self.from_rows(sizes, row, hidden)

    def from_rows(self, sizes: Int[Tensor, "b axes"], rows: Int[Tensor, "b n"], place: Int[Tensor, "b 1"]) -> Problems:
        """Return problems that write each of these strings twice, with the symbol at position ``place`` hidden."""
        position, length = torch.arange(2 * rows.shape[1]), 2 * sizes[:, 0]
        prompt = rows.gather(1, position % sizes).where(position < 2 * sizes, 0)
        answer = rows.gather(1, place % sizes).to(SYMBOL_DTYPE)
        prompt = prompt.masked_fill(position == place, self.alphabet).to(SYMBOL_DTYPE)
        return Problems(sizes, prompt, length, answer, torch.ones_like(length), sizes[:, 0])

    def enumerate(self, size: Sequence[int], limit: int) -> Problems | None:
        count = 2 * size[0]
        rows = enumerate_rows(self.alphabet, size[0], limit // count)
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
                f"{self.name}: {text!r} is not a sequence written twice with one {HIDDEN_MARK}, such as 01?010"
            )
        return self.from_rows(torch.tensor([[half]]), copies.amin(0, keepdim=True), place)

    def reference(self, prompt: str) -> str:
        place, half = prompt.index(HIDDEN_MARK), len(prompt) // 2
        return prompt[place - half]

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return torch.ones_like(sizes[:, 0])


@dataclass(frozen=True)
class UniqueSet(SequenceTask):
    """n uniform symbols of an alphabet → each distinct symbol once, in the order of first appearance. T(n) = n: one
    symbol per round. In the harder set each row draws from its own random subset of 1 to n symbols, so that most
    rows have repeats."""

    harder = "few-symbols"
    question = (
        "Write each different symbol of this sequence once, in the order in which they first appear, "
        "with nothing between them. Upper and lower case are different."
    )

    alphabet: Annotated[int, Range(2, 62)] = 50  # how many symbols, 2–62: a–z, A–Z, then 0–9

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple((string.ascii_letters + string.digits)[: self.alphabet])

    def sample_hard(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        rows, width = len(sizes), int(sizes.max())
        largest_subset = sizes.clamp(max=self.alphabet)
        subset_size = (torch.rand(rows, 1, generator=generator) * largest_subset).long() + 1
        number = (torch.rand(rows, width, generator=generator) * subset_size).long()  # in the row's subset
        subset = torch.rand(rows, self.alphabet, generator=generator).argsort(1)
        return self.from_rows(sizes, zero_after(subset.gather(1, number), sizes[:, 0]))

    @property
    def patterns(self) -> tuple[Pattern, ...]:  # type: ignore[override]
        return (*super().patterns, all_different, first_comes_again)

    def from_rows(self, sizes: Int[Tensor, "b axes"], rows: Int[Tensor, "b p"]) -> Problems:
        length, width = sizes[:, 0], rows.shape[1]
        position = torch.arange(width).expand(len(rows), -1)
        first = torch.full((len(rows), self.alphabet), width)  # the first position of each symbol
        first.scatter_reduce_(1, symbols := rows.long(), position, "amin")
        is_first = (first.gather(1, symbols) == position) & length_mask(length, width)
        # The place in the answer, from 1; a repeat has the place of the symbol before it, and adds 0 there.
        place = is_first.cumsum(1)
        answer = rows.new_zeros(len(rows), width + 1).scatter_add_(1, place, rows * is_first)[:, 1:]
        return Problems(sizes, rows, length, answer[:, : int(place.max())], place[:, -1], length)

    def reference(self, prompt: str) -> str:
        return "".join(dict.fromkeys(prompt))

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        return {"repeats": problems.prompt_length - problems.answer_length}

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return sizes[:, 0].clamp(max=self.alphabet)


def all_different(rows: RowSampler) -> Int[Tensor, "b width"]:
    """Rows of different symbols; a row longer than the alphabet repeats it."""
    order = torch.rand(len(rows.length), rows.symbol_count, generator=rows.generator).argsort(1)
    return order[:, rows.position % rows.symbol_count]


def first_comes_again(rows: RowSampler) -> Int[Tensor, "b width"]:
    """Rows of different symbols, except that the last equals the first."""
    row = all_different(rows)
    return torch.where(rows.position == rows.length[:, None] - 1, row[:, :1], row)
