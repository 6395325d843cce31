"""Strings written again, as they are or in another order: copied, reversed, twice, every second symbol first,
sorted."""

from __future__ import annotations

import string
from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Int
from torch import Tensor

from lengthwise.base.ranges import Range
from lengthwise.base.rows import length_mask, zero_after
from lengthwise.base.types import Problems
from lengthwise.tasks import SequenceTask

_ALPHABET = string.digits + string.ascii_lowercase


@dataclass(frozen=True)
class _OnAlphabet(SequenceTask):
    alphabet: Annotated[int, Range(2, 36)] = 2  # how many symbols, 2–36: 0–9, then a–z

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(_ALPHABET[: self.alphabet])


@dataclass(frozen=True)
class Copy(_OnAlphabet):
    """n uniform symbols of an alphabet → the same (Fan et al. 2025, section 6.1). T(n) = n: the row moves on by one
    position per round."""

    answers_each_symbol = True
    question = "Write this sequence of symbols again, just as it stands."

    def from_rows(self, sizes: Int[Tensor, "b axes"], row: Int[Tensor, "b p"]) -> Problems:
        return Problems(sizes, row, sizes[:, 0], row, sizes[:, 0], sizes[:, 0])

    def reference(self, prompt: str) -> str:
        return prompt

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        """The longest run of equal symbols."""
        row, position = problems.prompt, torch.arange(1, problems.prompt.shape[1] + 1)
        equal = torch.nn.functional.pad(row[:, 1:] == row[:, :-1], (0, 1))
        goes_on = equal & length_mask(problems.prompt_length - 1, row.shape[1])
        return {"longest run": (position - torch.where(goes_on, 0, position).cummax(1).values).amax(1) + 1}


@dataclass(frozen=True)
class _RearrangementTask(_OnAlphabet):
    times = 1  # length of the answer, in multiples of the prompt's

    @property
    def answers_each_symbol(self) -> bool:  # type: ignore[override]
        return self.times == 1

    @abstractmethod
    def source_positions(self, length: Int[Tensor, "b 1"], row: Int[Tensor, "b p"]) -> Int[Tensor, "b a"]:
        """Return the position in the prompt of each symbol of the answer; after its end, any."""

    def from_rows(self, sizes: Int[Tensor, "b axes"], row: Int[Tensor, "b p"]) -> Problems:
        length = sizes[:, 0]
        places = self.source_positions(sizes, row).clamp(min=0, max=row.shape[1] - 1)
        answer_length = self.times * length
        return Problems(sizes, row, length, zero_after(row.gather(1, places), answer_length), answer_length, length)

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return self.times * sizes[:, 0]


@dataclass(frozen=True)
class Reverse(_RearrangementTask):
    """n uniform symbols → the same in reverse order (Delétang et al. 2023). T(n) = n."""

    question = "Write this sequence of symbols in reverse order."

    def source_positions(self, length: Int[Tensor, "b 1"], row: Int[Tensor, "b p"]) -> Int[Tensor, "b a"]:
        return length - 1 - torch.arange(row.shape[1])

    def reference(self, prompt: str) -> str:
        return prompt[::-1]


@dataclass(frozen=True)
class Duplicate(_RearrangementTask):
    """n uniform symbols → the same twice, one after the other (Delétang et al. 2023). T(n) = n."""

    question = "Write this sequence of symbols twice, one copy directly after the other."
    times = 2

    def source_positions(self, length: Int[Tensor, "b 1"], row: Int[Tensor, "b p"]) -> Int[Tensor, "b a"]:
        return torch.arange(2 * row.shape[1]) % length

    def reference(self, prompt: str) -> str:
        return prompt + prompt


@dataclass(frozen=True)
class OddsFirst(_RearrangementTask):
    """n uniform symbols → the first, third, fifth and so on, then the second, fourth and so on (Delétang et al. 2023).
    T(n) = n."""

    question = "Write every second symbol of this sequence, beginning with the first, and then all the others in order."

    def source_positions(self, length: Int[Tensor, "b 1"], row: Int[Tensor, "b p"]) -> Int[Tensor, "b a"]:
        position, odds = torch.arange(row.shape[1]), (length + 1) // 2
        return torch.where(position < odds, 2 * position, 2 * (position - odds) + 1)

    def reference(self, prompt: str) -> str:
        return prompt[::2] + prompt[1::2]


@dataclass(frozen=True)
class BucketSort(_RearrangementTask):
    """n uniform symbols of a small alphabet → the same in ascending order (Delétang et al. 2023). T(n) = n."""

    alphabet: Annotated[int, Range(2, 36)] = 5  # how many symbols, 2–36: 0–9, then a–z

    question = "Write the symbols of this sequence in ascending order, digits before letters."

    def source_positions(self, length: Int[Tensor, "b 1"], row: Int[Tensor, "b p"]) -> Int[Tensor, "b a"]:
        after = torch.arange(row.shape[1]) >= length
        return row.long().masked_fill(after, self.alphabet).argsort(1)

    def reference(self, prompt: str) -> str:
        return "".join(sorted(prompt))
