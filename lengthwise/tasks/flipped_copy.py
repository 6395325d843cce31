"""Flipped copy: n bits → the same bits, all of them flipped if their parity is odd: two loops, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Int
from torch import Tensor

from lengthwise.base.rows import zero_after
from lengthwise.base.types import Problems
from lengthwise.tasks import SequenceTask


@dataclass(frozen=True)
class FlippedCopy(SequenceTask):
    """n uniform bits → each of them exclusive-or the parity of all. T(n) = 2n: n rounds until the last bit is folded
    into the parity, and n for the outcome to reach the last position of the answer. Ours, of a kind that Fan et al.
    2025 (section 7) name as a limit: two loops in sequence, for which a method that repeats one step is not made."""

    symbols = ("0", "1")
    answers_each_symbol = True
    question = (
        "Write this sequence of bits again: just as it stands if the number of ones in it is even, "
        "and with every bit flipped if it is odd."
    )

    def from_rows(self, sizes: Int[Tensor, "b axes"], bits: Int[Tensor, "b p"]) -> Problems:
        length = sizes[:, 0]
        odd = bits.sum(1, keepdim=True) % 2
        answer = zero_after(bits ^ odd, length)
        return Problems(sizes, bits, length, answer, length, 2 * length)

    def reference(self, prompt: str) -> str:
        return prompt if prompt.count("1") % 2 == 0 else "".join("10"[int(bit)] for bit in prompt)

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        return {"parity": problems.prompt.sum(1) % 2}

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return sizes[:, 0]
