"""Binary multiplication: a short number times a long one (Fan et al. 2025, section 6.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.tasks import Task, symbols_of, within
from lengthwise.types import Problems, UsageError

TIMES = 2  # the id of the sign between the operands


@dataclass(frozen=True)
class Multiplication(Task):
    """n1 uniform bits times n2 uniform bits, both most significant bit first → their product, least significant bit
    first, always in n1 + n2 bits. T = n1 · n2: a bit of the first adds the second in, and a carry travels one place
    per round. The first operand is meant to be short: one or two bits."""

    symbols = ("0", "1", "*")
    signs = ("*",)
    mirrored = True
    axes = ("first", "second")

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        places = torch.arange(int(sizes.sum(1).max()) + 1)
        prompt = torch.randint(2, (len(sizes), len(places)), generator=generator)
        prompt = prompt.masked_fill(places == sizes[:, :1], TIMES) * within(sizes.sum(1) + 1, len(places))
        return self._problems(sizes, prompt)

    def parse(self, text: str) -> Problems:
        ids = symbols_of(self, text)
        sign = (ids == TIMES).nonzero().flatten()
        if len(sign) != 1 or sign[0] == 0 or sign[0] == len(ids) - 1:
            raise UsageError(f"multiplication: a prompt is two numbers and one '*' between them, not {text.strip()!r}")
        first = int(sign[0])
        return self._problems(torch.tensor([[first, len(ids) - first - 1]]), ids[None])

    def _problems(self, sizes: Int[Tensor, "b axes"], prompt: Int[Tensor, "b p"]) -> Problems:
        first, second = sizes[:, :1], sizes[:, 1:]
        length = sizes.sum(1)
        answer = _product(_bits(prompt, first, first - 1), _bits(prompt, second, first + second))
        return Problems(sizes, prompt, length + 1, answer[:, : int(length.max())], length, sizes.prod(1))

    def format(self, answer: Int[Tensor, " a"]) -> str:
        """In binary, most significant bit first, without leading zeros."""
        return self.vocab.decode(answer.flip(0)).lstrip("0") or "0"

    def reference(self, prompt: str) -> str:
        first, second = prompt.split("*")
        return f"{int(first, 2) * int(second, 2):b}".rjust(len(first) + len(second), "0")[::-1]

    def traits(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        return {"ones": (problems.prompt == 1).sum(1)}

    def room(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return sizes.sum(1)


def _bits(prompt: Int[Tensor, "b p"], length: Int[Tensor, "b 1"], last: Int[Tensor, "b 1"]) -> Int[Tensor, "b n"]:
    """An operand's bits, least significant first and padded with zeros, where its last one stands at ``last``."""
    place = torch.arange(int(length.max()))
    return prompt.gather(1, (last - place).clamp(min=0)) * (place < length)


def _product(first: Int[Tensor, "b m"], second: Int[Tensor, "b n"]) -> Int[Tensor, "b m+n"]:
    """Long multiplication, least significant bit first: the columns' totals, then the carries from column to column."""
    totals = torch.zeros(len(first), first.shape[1] + second.shape[1], dtype=torch.long)
    for place in range(first.shape[1]):
        totals[:, place : place + second.shape[1]] += first[:, place, None] * second
    carry = torch.zeros(len(first), dtype=torch.long)
    for column in totals.unbind(1):
        column += carry
        carry = column >> 1
        column &= 1
    return totals
