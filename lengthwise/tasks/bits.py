"""Tasks on bits that answer each bit: prefix sums, and the flipped copy."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from lengthwise.base.rows import zero_after
from lengthwise.base.types import Problems
from lengthwise.tasks import SequenceTask


@dataclass(frozen=True)
class PrefixSum(SequenceTask):
    """n uniform bits → n bits, the i-th of which is the parity of the first i (Schwarzschild et al. 2021; Bansal et al.
    2022). T(n) = n: one more prefix per round."""

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


@dataclass(frozen=True)
class FlippedCopy(SequenceTask):
    """n uniform bits → each of them exclusive-or the parity of all. T(n) = 2n: n rounds until the last bit is folded
    into the parity, and n for the parity to reach the last position of the answer. Our own example of a limit that Fan
    et al. 2025 (section 7) name: two loops in sequence, while the method repeats one step."""

    symbols = ("0", "1")
    answers_each_symbol = True
    question = (
        "Write this sequence of bits again: just as it stands if the number of ones in it is even, "
        "and with every bit flipped if it is odd."
    )

    def from_rows(self, sizes: Int[Tensor, "b axes"], bits: Int[Tensor, "b p"]) -> Problems:
        length = sizes[:, 0]
        odd = bits.sum(1, keepdim=True) % 2
        return Problems(sizes, bits, length, zero_after(bits ^ odd, length), length, 2 * length)

    def reference(self, prompt: str) -> str:
        return prompt if prompt.count("1") % 2 == 0 else "".join("10"[int(bit)] for bit in prompt)

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        return {"parity": problems.prompt.sum(1) % 2}
