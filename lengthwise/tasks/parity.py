"""Parity: n bits → their exclusive or (Fan et al. 2025, section 6.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.tasks import Task, symbols_of, within
from lengthwise.types import Problems


@dataclass(frozen=True)
class Parity(Task):
    """n uniform bits → 1 if an odd number of them is 1, else 0. T(n) = n: one bit is folded in per round."""

    symbols = ("0", "1")

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        length = sizes[:, 0]
        width = int(length.max())
        bits = torch.randint(2, (len(sizes), width), generator=generator)
        return self._problems(sizes, bits * within(length, width))

    def parse(self, text: str) -> Problems:
        bits = symbols_of(self, text)
        return self._problems(torch.tensor([[len(bits)]]), bits[None])

    def _problems(self, sizes: Int[Tensor, "b axes"], bits: Int[Tensor, "b p"]) -> Problems:
        length = sizes[:, 0]
        return Problems(sizes, bits, length, bits.sum(1, keepdim=True) % 2, torch.ones_like(length), length)

    def reference(self, prompt: str) -> str:
        return str(prompt.count("1") % 2)

    def room(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return torch.ones_like(sizes[:, 0])
