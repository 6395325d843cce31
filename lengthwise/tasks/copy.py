"""Copy: n symbols → the same n symbols (Fan et al. 2025, section 6.1)."""

from __future__ import annotations

import string
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.tasks import Task, symbols_of, within
from lengthwise.types import Problems, UsageError

_ALPHABET = string.digits + string.ascii_lowercase


@dataclass(frozen=True)
class Copy(Task):
    """n uniform symbols of an alphabet → the same. T(n) = n: the row moves on by one place per round."""

    alphabet: int = 2  # how many symbols, 2–36: 0–9, then a–z

    def __post_init__(self) -> None:
        if not 2 <= self.alphabet <= len(_ALPHABET):
            raise UsageError(f"copy: alphabet must be 2 to {len(_ALPHABET)}, not {self.alphabet}")

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(_ALPHABET[: self.alphabet])

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        width = int(sizes.max())
        row = torch.randint(self.alphabet, (len(sizes), width), generator=generator)
        return self._problems(sizes, row * within(sizes[:, 0], width))

    def parse(self, text: str) -> Problems:
        row = symbols_of(self, text)
        return self._problems(torch.tensor([[len(row)]]), row[None])

    def _problems(self, sizes: Int[Tensor, "b axes"], row: Int[Tensor, "b p"]) -> Problems:
        length = sizes[:, 0]
        return Problems(sizes, row, length, row, length, length)

    def reference(self, prompt: str) -> str:
        return "".join(list(prompt))

    def room(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return sizes[:, 0]
