"""Prefix sums: n bits → the parity of each prefix (Schwarzschild et al. 2021; Bansal et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from lengthwise.base.rows import zero_after
from lengthwise.base.types import Problems
from lengthwise.tasks import SequenceTask


@dataclass(frozen=True)
class PrefixSum(SequenceTask):
    """n uniform bits → n bits, the i-th of which is the parity of the first i. T(n) = n: one more prefix per round."""

    symbols = ("0", "1")
    answers_each_symbol = True
    question = (
        "For each bit of this sequence, in order, write 1 if the number of ones up to and including it is odd, and 0 "
        "if it is even."
    )

    def from_rows(self, sizes: Int[Tensor, "b axes"], bits: Int[Tensor, "b p"]) -> Problems:
        length = sizes[:, 0]
        answer = zero_after(bits.cumsum(1) % 2, length).to(bits.dtype)
        return Problems(sizes, bits, length, answer, length, length)

    def reference(self, prompt: str) -> str:
        return "".join(str(prompt[: i + 1].count("1") % 2) for i in range(len(prompt)))

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        return {"ones": problems.prompt.sum(1)}

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return sizes[:, 0]
