"""Modular arithmetic (Delétang et al. 2023): a regular task."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.ranges import Range
from lengthwise.base.rows import zero_after
from lengthwise.base.types import Problems, UsageError
from lengthwise.tasks import Task, parse_symbols
from lengthwise.tasks.family import enumerate_rows

OPERATIONS = "+-*"
Pattern = Callable[[Tensor, Tensor, int, Generator], tuple[Tensor, Tensor]]


# Families. Each returns changed numbers and operations, given uniform ones.


def one_product(numbers: Tensor, operations: Tensor, modulus: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """One long product of numbers other than zero."""
    return numbers.clamp(min=1), torch.full_like(operations, OPERATIONS.index("*"))


def alternating_products(
    numbers: Tensor, operations: Tensor, modulus: int, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Products of two numbers, added and subtracted."""
    inside = torch.arange(numbers.shape[1]) % 2 == 0
    return numbers, torch.where(inside, OPERATIONS.index("*"), operations % 2)


def sums(numbers: Tensor, operations: Tensor, modulus: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Only additions and subtractions."""
    return numbers, operations % 2


def subtractions(numbers: Tensor, operations: Tensor, modulus: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Only subtractions."""
    return numbers, torch.full_like(operations, OPERATIONS.index("-"))


def mostly_ones(numbers: Tensor, operations: Tensor, modulus: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """The number 1 in nine places of ten."""
    return numbers.masked_fill(torch.rand(numbers.shape, generator=generator) < 0.9, 1), operations


def mostly_zeros(numbers: Tensor, operations: Tensor, modulus: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """The number 0 in nine places of ten."""
    return numbers.masked_fill(torch.rand(numbers.shape, generator=generator) < 0.9, 0), operations


def largest(numbers: Tensor, operations: Tensor, modulus: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """The largest number throughout."""
    return torch.full_like(numbers, modulus - 1), operations


def one_number(numbers: Tensor, operations: Tensor, modulus: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """One number throughout, not zero, and one operation."""
    return numbers[:, :1].clamp(min=1).expand_as(numbers), operations[:, :1].expand_as(operations)


@dataclass(frozen=True)
class ModularArithmetic(Task):
    """n numbers below ``modulus`` with +, - or * between them → the value modulo ``modulus`` (Delétang et al. 2023).

    * is computed before + and -. The size is the number of numbers, so a prompt has 2n − 1 symbols. T(n) = n.
    """

    modulus: Annotated[int, Range(2, 10)] = 5  # numbers are below it

    axes = ("numbers",)
    signs = tuple(OPERATIONS)

    @property
    def writes(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple("0123456789"[: self.modulus])

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.writes, *OPERATIONS)

    @property
    def question(self) -> str:
        return f"Write the value of this expression modulo {self.modulus}, where * comes before + and -."

    patterns = (one_product, alternating_products, sums, subtractions, mostly_zeros, mostly_ones, largest, one_number)

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self.from_rows(sizes, *_draw_uniform(sizes, self.modulus, generator))

    def draw_pattern(self, pattern: Pattern, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        numbers, operations = _draw_uniform(sizes, self.modulus, generator)
        return self.from_rows(sizes, *pattern(numbers, operations, self.modulus, generator))

    def from_rows(
        self, sizes: Int[Tensor, "b axes"], numbers: Int[Tensor, "b n"], operations: Int[Tensor, "b n"]
    ) -> Problems:
        """Return problems, given each expression's numbers and the operation after each number."""
        count = sizes[:, 0]
        total, term = torch.zeros(len(sizes), dtype=torch.long), numbers[:, 0].long()
        for place in range(1, numbers.shape[1]):
            number, operation, goes_on = numbers[:, place].long(), operations[:, place - 1], place < count
            multiplies = operation == OPERATIONS.index("*")
            signed = torch.where(operation == OPERATIONS.index("-"), -number, number)
            total = torch.where(goes_on & ~multiplies, total + term, total)
            term = torch.where(goes_on, torch.where(multiplies, term * number, signed) % self.modulus, term)
        prompt = torch.stack([numbers, operations + self.modulus], 2).flatten(1)[:, : 2 * numbers.shape[1] - 1]
        length = 2 * count - 1
        answer = ((total + term) % self.modulus)[:, None].to(torch.int8)
        return Problems(sizes, zero_after(prompt.to(torch.int8), length), length, answer, torch.ones_like(count), count)

    def enumerate(self, size: Sequence[int], limit: int) -> Problems | None:
        count = size[0]
        numbers = enumerate_rows(self.modulus, count, limit)
        operations = (
            torch.zeros(1, 0, dtype=torch.long) if count == 1 else enumerate_rows(len(OPERATIONS), count - 1, limit)
        )
        if numbers is None or operations is None or len(numbers) * len(operations) > limit:
            return None
        pairs = torch.cartesian_prod(torch.arange(len(numbers)), torch.arange(len(operations)))
        operations = torch.nn.functional.pad(operations[pairs[:, 1]].long(), (0, 1))
        return self.from_rows(torch.full((len(pairs), 1), count), numbers[pairs[:, 0]].long(), operations)

    def parse(self, text: str) -> Problems:
        ids = parse_symbols(self, text)
        if not re.fullmatch(r"\d([*+-]\d)*", self.vocab.decode(ids)):
            raise UsageError(f"{self.name}: {text!r} is not an expression of single numbers, such as 3+2*4")
        numbers, operations = ids[None, ::2], ids[None, 1::2].long() - self.modulus
        operations = torch.nn.functional.pad(operations, (0, 1))
        return self.from_rows(torch.tensor([[numbers.shape[1]]]), numbers, operations)

    def reference(self, prompt: str) -> str:
        value = 0
        for sign, term in re.findall(r"([+-]?)([\d*]+)", prompt):
            product = math.prod(map(int, term.split("*")))
            value += -product if sign == "-" else product
        return str(value % self.modulus)

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return torch.ones_like(sizes[:, 0])


def _draw_uniform(sizes: Int[Tensor, "b axes"], modulus: int, generator: Generator) -> tuple[Tensor, Tensor]:
    """Draw uniform numbers and operations, both of shape "b n"."""
    shape = len(sizes), int(sizes.max())
    numbers = torch.randint(modulus, shape, generator=generator)
    return numbers, torch.randint(len(OPERATIONS), shape, generator=generator)
