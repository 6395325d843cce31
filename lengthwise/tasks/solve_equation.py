"""Equations modulo a number, with brackets and one unknown (Delétang et al. 2023): a context-free task."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.ranges import Range
from lengthwise.base.rows import shift_right
from lengthwise.base.types import SYMBOL, Problems, UsageError
from lengthwise.tasks import parse_symbols
from lengthwise.tasks.bracketed_arithmetic import NESTINGS, NUMBERS, BracketedTask

EQUALS = ":"  # layouts write = before an answer


@dataclass(frozen=True)
class SolveEquation(BracketedTask):
    """n numbers below ``modulus``, one of them written ``x``, with + or - between them, each operation in brackets, and
    the value modulo ``modulus`` after a colon, as ``(2-(x+4)):1`` → x (Delétang et al. 2023).

    There are no products, as in the paper's code, so there is always one solution. The size is the number of numbers.
    T(n) = n.
    """

    modulus: Annotated[int, Range(2, 10)] = 5  # numbers are below it

    operations = "+-"

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.brackets, "x", EQUALS)

    @property
    def question(self) -> str:
        return (
            f"An expression with one unknown x, a colon, and its value modulo {self.modulus}: write the number below "
            f"{self.modulus} that x stands for."
        )

    @property
    def patterns(self) -> tuple[Callable, ...]:  # type: ignore[override]
        return (*NESTINGS, *NUMBERS)

    def from_expressions(
        self, sizes: Int[Tensor, "b axes"], row: Int[Tensor, "b p"], numbers: Int[Tensor, "b n"], generator: Generator
    ) -> Problems:
        value = self.evaluate(row, 4 * sizes[:, 0] - 3)
        chosen = (torch.rand(len(sizes), 1, generator=generator) * sizes).long()
        unknown = row.scatter(1, numbers.gather(1, chosen), self.symbols.index("x"))
        end = torch.stack([torch.full_like(value, self.symbols.index(EQUALS)), value], 1).to(SYMBOL)
        end = shift_right(torch.nn.functional.pad(end, (0, row.shape[1])), 4 * sizes[:, 0] - 3, row.shape[1] + 2)
        return self.from_rows(sizes, torch.nn.functional.pad(unknown, (0, 2)) + end)

    def from_rows(self, sizes: Int[Tensor, "b axes"], row: Int[Tensor, "b p"]) -> Problems:
        count = sizes[:, 0]
        length, unknown = 4 * count - 1, row == self.symbols.index("x")
        both = torch.cat([row.masked_fill(unknown, value) for value in (0, 1)])
        zero, one = self.evaluate(both, (length - 2).repeat(2)).chunk(2)
        value = row.gather(1, length[:, None] - 1)[:, 0]
        answer = ((value - zero) * (one - zero) % self.modulus)[:, None].to(SYMBOL)  # x is added or subtracted once
        return Problems(sizes, row, length, answer, torch.ones_like(count), count)

    def enumerate(self, size: Sequence[int], most: int) -> Problems | None:
        if size[0] > 1 or self.modulus > most:
            return None
        values = torch.arange(self.modulus)
        unknown, equals = (torch.full_like(values, self.symbols.index(symbol)) for symbol in ("x", EQUALS))
        return self.from_rows(torch.ones(len(values), 1).long(), torch.stack([unknown, equals, values], 1).to(SYMBOL))

    def parse(self, text: str) -> Problems:
        row = parse_symbols(self, text)
        equation = self.vocab.decode(row)
        if equation.count("x") != 1 or not re.fullmatch(rf"\d{EQUALS}\d", self._insert(equation, 0)):
            raise UsageError(f"{self.name}: {text!r} is not an equation with one x, such as (2-(x+4)):1")
        return self.from_rows(torch.tensor([[(len(row) + 1) // 4]]), row[None])

    def _insert(self, equation: str, value: int) -> str:
        """Return the equation with this value for x, its left side computed."""
        return self.reduce(equation.replace("x", str(value)))

    def reference(self, prompt: str) -> str:
        solutions = (
            value for value in range(self.modulus) if self._insert(prompt, value) == f"{prompt[-1]}{EQUALS}{prompt[-1]}"
        )
        return str(next(solutions))
