"""Copy: n symbols → the same n symbols (Fan et al. 2025, section 6.1)."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Int
from torch import Tensor

from lengthwise.base.ranges import Range
from lengthwise.base.rows import within
from lengthwise.base.types import Problems
from lengthwise.tasks import SequenceTask, longest_run

_ALPHABET = string.digits + string.ascii_lowercase


@dataclass(frozen=True)
class Copy(SequenceTask):
    """n uniform symbols of an alphabet → the same. T(n) = n: the row moves on by one position per round."""

    answers_each_symbol = True
    question = "Write this sequence of symbols again, just as it stands."

    alphabet: Annotated[int, Range(2, 36)] = 2  # how many symbols, 2–36: 0–9, then a–z

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(_ALPHABET[: self.alphabet])

    def from_rows(self, sizes: Int[Tensor, "b axes"], row: Int[Tensor, "b p"]) -> Problems:
        length = sizes[:, 0]
        return Problems(sizes, row, length, row, length, length)

    def reference(self, prompt: str) -> str:
        return "".join(list(prompt))

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        row = problems.prompt
        alike = torch.nn.functional.pad(row[:, 1:] == row[:, :-1], (0, 1))
        return {"longest run": longest_run(alike & within(problems.prompt_length - 1, row.shape[1])) + 1}

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return sizes[:, 0]
