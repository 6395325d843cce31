"""Modular arithmetic with brackets, and equations with one unknown (Delétang et al. 2023): context-free tasks."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from lengthwise.base.ranges import Range
from lengthwise.base.rows import length_mask, shift_right, zero_after
from lengthwise.base.types import SYMBOL, Problems, UsageError
from lengthwise.tasks import Task, parse_symbols
from lengthwise.tasks import modular_arithmetic as flat

# Families: each returns numbers for the operations, which are computed in ascending order of these numbers.


def left_nested(sizes: Int[Tensor, "b 1"], width: int) -> Float[Tensor, "b n"]:
    """All brackets open at the start: (((1+2)*3)-4)."""
    return torch.arange(float(width)).expand(len(sizes), -1)


def right_nested(sizes: Int[Tensor, "b 1"], width: int) -> Float[Tensor, "b n"]:
    """All brackets close at the end: (1+(2*(3-4)))."""
    return -left_nested(sizes, width)


def nested_from_both_ends(sizes: Int[Tensor, "b 1"], width: int) -> Float[Tensor, "b n"]:
    """The outermost operations are at the two ends in turn, so the deepest is in the middle."""
    place = torch.arange(float(width))
    from_end = sizes - 2 - place
    return torch.where(place <= from_end, -2 * place, -2 * from_end - 1)


def balanced(sizes: Int[Tensor, "b 1"], width: int) -> Float[Tensor, "b n"]:
    """Brackets are as shallow as possible: ((1+2)*(3-4))."""
    place = torch.arange(1, width + 1)
    power = place & -place  # the largest power of two that divides it
    return (power + place / (2 * width)).expand(len(sizes), -1)


NESTINGS = (left_nested, right_nested, nested_from_both_ends, balanced)
NUMBERS = (flat.sums, flat.subtractions, flat.mostly_zeros, flat.mostly_ones, flat.largest, flat.one_number)


class BracketedTask(Task):
    """A task on expressions of n numbers below ``modulus``, with brackets around each operation: 4n − 3 symbols.

    In uniform problems the operations are nested in random order. The families nest them in other ways, or use other
    numbers.
    """

    modulus: int  # a field of each task; numbers are below it

    axes = ("numbers",)
    operations: ClassVar[str] = flat.OPERATIONS

    @property
    def writes(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple("0123456789"[: self.modulus])

    @property
    def expression_symbols(self) -> tuple[str, ...]:
        """The symbols of expressions."""
        return (*self.writes, *self.operations, "(", ")")

    @abstractmethod
    def from_expressions(
        self, sizes: Int[Tensor, "b axes"], row: Int[Tensor, "b p"], numbers: Int[Tensor, "b n"], generator: Generator
    ) -> Problems:
        """Return problems on the expressions in ``row``; ``numbers`` are the positions of their numbers."""

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self.draw_pattern(None, sizes, generator)

    def draw_pattern(self, pattern: Callable | None, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        shape = len(sizes), int(sizes.max())
        numbers = torch.randint(self.modulus, shape, generator=generator)
        operations = torch.randint(len(self.operations), shape, generator=generator)
        order = torch.rand(shape, generator=generator)
        if pattern in NESTINGS:
            order = pattern(sizes, shape[1])
        elif pattern:
            numbers, operations = pattern(numbers, operations, self.modulus, generator)
        row, places = self._write_brackets(sizes, numbers, operations, order)
        return self.from_expressions(sizes, row, places, generator)

    def _write_brackets(
        self, sizes: Int[Tensor, "b 1"], numbers: Int[Tensor, "b n"], operations: Int[Tensor, "b n"], order: Tensor
    ) -> tuple[Int[Tensor, "b p"], Int[Tensor, "b n"]]:
        """Return expressions and the positions of their numbers. Of neighbouring operations, the one with the largest
        ``order`` is computed last."""
        width = 4 * numbers.shape[1] - 3
        place = torch.arange(numbers.shape[1])
        real, between = place < sizes, place < sizes - 1
        # An operation's bracket extends on each side up to the next operation that is computed later. So the operations
        # between it and the bracket's first (or last) number come before it, and the one beyond that number after it.
        order = order.masked_fill(~between, torch.inf)
        own = order[:, None].expand(-1, len(place), -1)
        right, left = (part & between[:, None] for part in (place >= place[:, None], place < place[:, None]))
        to_right = own.masked_fill(~right, -torch.inf).cummax(2).values
        to_left = own.masked_fill(~left, -torch.inf).flip(2).cummax(2).values.flip(2)
        before = torch.nn.functional.pad(order[:, :-1], (1, 0), value=torch.inf)
        opened = (right & (own == to_right) & (own < before[..., None])).sum(2)
        closed = (left & (own == to_left) & (own < order[..., None])).sum(2)
        number = opened.cumsum(1) + (closed + 2).cumsum(1) - closed - 2
        operation = number + closed + 1
        position = torch.arange(width)[:, None]
        inside = (position >= number[:, None]) & real[:, None], (position >= operation[:, None]) & between[:, None]
        opening = len(self.writes) + len(self.operations)
        row = torch.where(inside[0].sum(2) == inside[1].sum(2), opening, opening + 1)
        row = torch.nn.functional.pad(row, (0, 1))  # a place for symbols beyond a row's end
        row = row.scatter(1, number.where(real, width), numbers)
        row = row.scatter(1, operation.where(between, width), operations + len(self.writes))[:, :width]
        return zero_after(row.to(SYMBOL), 4 * sizes[:, 0] - 3), number

    def evaluate(self, row: Int[Tensor, "b p"], length: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        """Return the values of expressions, computed symbol by symbol with a stack."""
        count, opening = len(self.writes), len(self.writes) + len(self.operations)
        values = torch.zeros(len(row), row.shape[1] + 2, dtype=torch.long)
        operations, depth = values.clone(), torch.zeros(len(row), 1, dtype=torch.long)
        for symbol, real in zip(row.long().split(1, 1), length_mask(length, row.shape[1]).split(1, 1), strict=True):
            number, closes = real & (symbol < count), real & (symbol == opening + 1)
            operates = real & (symbol >= count) & (symbol < opening)
            values = torch.where(number, values.scatter(1, depth, symbol), values)
            top, below = (depth - 1).clamp(min=0), (depth - 2).clamp(min=0)
            operations = torch.where(operates, operations.scatter(1, top, symbol - count), operations)
            first, second, which = values.gather(1, below), values.gather(1, top), operations.gather(1, below)
            signed = torch.where(which == flat.OPERATIONS.index("-"), first - second, first + second)
            result = torch.where(which == flat.OPERATIONS.index("*"), first * second, signed) % self.modulus
            values = torch.where(closes, values.scatter(1, below, result), values)
            depth = depth + number.long() - closes.long()
        return values[:, 0]

    def reduce(self, expression: str) -> str:
        """Replace brackets around two numbers by their value, repeatedly, until one number is left; return it."""

        def compute(match: re.Match[str]) -> str:
            first, second = int(match[1]), int(match[3])
            result = {"+": first + second, "-": first - second, "*": first * second}[match[2]]
            return str(result % self.modulus)

        while (shorter := re.sub(r"\((\d)([+*-])(\d)\)", compute, expression)) != expression:
            expression = shorter
        return expression

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return torch.ones_like(sizes[:, 0])


@dataclass(frozen=True)
class BracketedArithmetic(BracketedTask):
    """n numbers below ``modulus`` with +, - or * between them, each operation in brackets, as ``(2*(3-4))`` → the value
    modulo ``modulus`` (Delétang et al. 2023, modular arithmetic). The size is the number of numbers. T(n) = n."""

    modulus: Annotated[int, Range(2, 10)] = 5  # numbers are below it

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.expression_symbols

    @property
    def question(self) -> str:
        return f"Write the value of this expression modulo {self.modulus}."

    patterns = (*NESTINGS, flat.one_product, *NUMBERS)

    def from_expressions(
        self, sizes: Int[Tensor, "b axes"], row: Int[Tensor, "b p"], numbers: Int[Tensor, "b n"], generator: Generator
    ) -> Problems:
        return self.from_rows(sizes, row)

    def from_rows(self, sizes: Int[Tensor, "b axes"], row: Int[Tensor, "b p"]) -> Problems:
        count = sizes[:, 0]
        length = 4 * count - 3
        answer = self.evaluate(row, length)[:, None].to(SYMBOL)
        return Problems(sizes, row, length, answer, torch.ones_like(count), count)

    def enumerate(self, size: Sequence[int], limit: int) -> Problems | None:
        if size[0] > 1 or self.modulus > limit:
            return None
        numbers = torch.arange(self.modulus)[:, None]
        return self.from_rows(torch.ones_like(numbers), numbers.to(SYMBOL))

    def parse(self, text: str) -> Problems:
        row = parse_symbols(self, text)
        if len(self.reduce(self.vocab.decode(row))) > 1:
            raise UsageError(f"{self.name}: {text!r} needs brackets around every two numbers, as in (2*(3-4))")
        return self.from_rows(torch.tensor([[(len(row) + 3) // 4]]), row[None])

    def reference(self, prompt: str) -> str:
        return self.reduce(prompt)


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
        return (*self.expression_symbols, "x", EQUALS)

    @property
    def question(self) -> str:
        return (
            f"An expression with one unknown x, a colon, and its value modulo {self.modulus}: write the number below "
            f"{self.modulus} that x stands for."
        )

    patterns = (*NESTINGS, *NUMBERS)

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

    def enumerate(self, size: Sequence[int], limit: int) -> Problems | None:
        if size[0] > 1 or self.modulus > limit:
            return None
        values = torch.arange(self.modulus)
        unknown, equals = (torch.full_like(values, self.symbols.index(symbol)) for symbol in ("x", EQUALS))
        return self.from_rows(torch.ones(len(values), 1).long(), torch.stack([unknown, equals, values], 1).to(SYMBOL))

    def parse(self, text: str) -> Problems:
        row = parse_symbols(self, text)
        equation = self.vocab.decode(row)
        if equation.count("x") != 1 or not re.fullmatch(rf"\d{EQUALS}\d", self._substitute(equation, 0)):
            raise UsageError(f"{self.name}: {text!r} is not an equation with one x, such as (2-(x+4)):1")
        return self.from_rows(torch.tensor([[(len(row) + 1) // 4]]), row[None])

    def _substitute(self, equation: str, value: int) -> str:
        """Return the equation with ``value`` for x and its left side computed."""
        return self.reduce(equation.replace("x", str(value)))

    def reference(self, prompt: str) -> str:
        right = f"{prompt[-1]}{EQUALS}{prompt[-1]}"
        return str(next(value for value in range(self.modulus) if self._substitute(prompt, value) == right))
