"""Bitwise or of two vectors of bits, aligned at their first symbols (McLeish et al. 2024, section 4)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor

from lengthwise.digits import parted
from lengthwise.tasks import Task, within
from lengthwise.types import Problems

OR = 2  # the id of the sign between the vectors


@dataclass(frozen=True)
class BitwiseOr(Task):
    """Two vectors → their bitwise or, as long as the longer. One is all zeros; the shorter (of two as long, either)
    holds a single 1, at a uniform place. T = the longer's length."""

    symbols = ("0", "1", "|")
    signs = ("|",)
    axes = ("first", "second")
    question = (
        "Give the bitwise or of these two vectors of bits. They are aligned at their first bits, and the shorter one "
        "is filled up with zeros at its end."
    )

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        first, second = sizes.unbind(1)
        coin = torch.rand(len(sizes), generator=generator) < 0.5
        holds = torch.where(first == second, coin, first < second)  # does the first vector hold the 1?
        one = (torch.rand(len(sizes), generator=generator) * sizes.amin(1)).long()
        at = torch.where(holds, one, first + 1 + one)
        width = int(sizes.sum(1).max()) + 1
        return self._problems(sizes, (torch.arange(width) == at[:, None]).long())

    def parse(self, text: str) -> Problems:
        """Any two vectors."""
        first, second = parted(self, text, OR, "vectors")
        bits = torch.cat([first, torch.zeros(1, dtype=torch.long), second])
        return self._problems(torch.tensor([[len(first), len(second)]]), bits[None])

    def _problems(self, sizes: Int[Tensor, "b axes"], bits: Int[Tensor, "b p"]) -> Problems:
        """``bits`` are those of both vectors, with a zero at the sign's place."""
        first, second, longest = sizes[:, :1], sizes[:, 1:], sizes.amax(1)
        place = torch.arange(int(longest.max()))
        answer = self._bits(bits, place.expand(len(bits), -1), place < first)
        answer |= self._bits(bits, first + 1 + place, place < second)
        prompt = bits.masked_fill(torch.arange(bits.shape[1]) == first, OR)
        return Problems(
            sizes, prompt * within(sizes.sum(1) + 1, bits.shape[1]), sizes.sum(1) + 1, answer, longest, longest
        )

    @staticmethod
    def _bits(bits: Int[Tensor, "b p"], at: Int[Tensor, "b a"], inside: Bool[Tensor, "b a"]) -> Int[Tensor, "b a"]:
        return bits.gather(1, at.clamp(max=bits.shape[1] - 1)) * inside

    def reference(self, prompt: str) -> str:
        first, second = prompt.split("|")
        width = max(len(first), len(second))
        pairs = zip(first.ljust(width, "0"), second.ljust(width, "0"), strict=True)
        return "".join("1" if "1" in pair else "0" for pair in pairs)

    def traits(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        return {"place of the one": problems.answer.argmax(1) + 1}

    def room(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return sizes.amax(1)
