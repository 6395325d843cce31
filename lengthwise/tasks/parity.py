"""Parity: n bits → their exclusive or (Fan et al. 2025, section 6.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from lengthwise.base.types import Problems
from lengthwise.tasks import SequenceTask


@dataclass(frozen=True)
class Parity(SequenceTask):
    """n uniform bits → 1 if an odd number of them is 1, else 0. T(n) = n: one bit is folded in per round."""

    symbols = ("0", "1")
    question = "Write 1 if the number of ones in this sequence of bits is odd, and 0 if it is even."

    def from_rows(self, sizes: Int[Tensor, "b axes"], bits: Int[Tensor, "b p"]) -> Problems:
        length = sizes[:, 0]
        return Problems(sizes, bits, length, bits.sum(1, keepdim=True) % 2, torch.ones_like(length), length)

    def reference(self, prompt: str) -> str:
        return str(prompt.count("1") % 2)

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        return {"ones": problems.prompt.sum(1)}

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return torch.ones_like(sizes[:, 0])
