"""Modular arithmetic (Delétang et al. 2023): without brackets, which is a regular task, and with brackets, as
expressions or as equations with one unknown, which are context-free tasks."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor
from torch.nn import functional as F

from lengthwise.base.ranges import Range
from lengthwise.base.rows import length_mask, shift_right, zero_after
from lengthwise.base.types import SYMBOL_DTYPE, Problems, UsageError
from lengthwise.tasks import Task, parse_symbols
from lengthwise.tasks.family import enumerate_rows

OPERATIONS = "+-*"
MINUS, TIMES = 1, 2  # their indices
# The numbers and operations of expressions. A family's function takes uniform ones and changes them.
Expressions = tuple[Int[Tensor, "b n"], Int[Tensor, "b n"]]


def one_product(numbers: Tensor, operations: Tensor, modulus: int, generator: Generator) -> Expressions:
    """Products of numbers other than zero."""
    return numbers.clamp(min=1), torch.full_like(operations, TIMES)


def alternating_products(numbers: Tensor, operations: Tensor, modulus: int, generator: Generator) -> Expressions:
    """Sums and differences of products of two numbers."""
    inside = torch.arange(numbers.shape[1]) % 2 == 0
    return numbers, torch.where(inside, TIMES, operations % 2)


def sums(numbers: Tensor, operations: Tensor, modulus: int, generator: Generator) -> Expressions:
    """Expressions with additions and subtractions only."""
    return numbers, operations % 2


def subtractions(numbers: Tensor, operations: Tensor, modulus: int, generator: Generator) -> Expressions:
    """Expressions with subtractions only."""
    return numbers, torch.full_like(operations, MINUS)


def mostly_ones(numbers: Tensor, operations: Tensor, modulus: int, generator: Generator) -> Expressions:
    """Expressions whose numbers are 1 at 90 % of the positions, and uniform elsewhere."""
    return numbers.masked_fill(torch.rand(numbers.shape, generator=generator) < 0.9, 1), operations


def mostly_zeros(numbers: Tensor, operations: Tensor, modulus: int, generator: Generator) -> Expressions:
    """Expressions whose numbers are 0 at 90 % of the positions, and uniform elsewhere."""
    return numbers.masked_fill(torch.rand(numbers.shape, generator=generator) < 0.9, 0), operations


def largest(numbers: Tensor, operations: Tensor, modulus: int, generator: Generator) -> Expressions:
    """Expressions in which each number is the largest, ``modulus`` − 1."""
    return torch.full_like(numbers, modulus - 1), operations


def one_number(numbers: Tensor, operations: Tensor, modulus: int, generator: Generator) -> Expressions:
    """Expressions with the same nonzero number and the same operation throughout: 3+3+3."""
    return numbers[:, :1].clamp(min=1).expand_as(numbers), operations[:, :1].expand_as(operations)


@dataclass(frozen=True)
class _ModularTask(Task):
    """A task on expressions of n numbers below ``modulus``."""

    modulus: Annotated[int, Range(2, 10)] = 5  # numbers are below it

    axes = ("numbers",)
    operations: ClassVar[str] = OPERATIONS
    further_symbols: ClassVar[str] = ""  # symbols of prompts besides numbers and operations

    @property
    def writes(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple("0123456789"[: self.modulus])

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return (*self.writes, *self.operations, *self.further_symbols)

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return torch.ones_like(sizes[:, 0])


@dataclass(frozen=True)
class ModularArithmetic(_ModularTask):
    """n numbers below ``modulus`` with +, - or * between them → the value modulo ``modulus`` (Delétang et al. 2023).

    The operation * comes before + and -. The size is the number of numbers, so a prompt has 2n − 1 symbols. T(n) = n.
    """

    signs = tuple(OPERATIONS)

    @property
    def question(self) -> str:
        return f"Write the value of this expression modulo {self.modulus}, where * comes before + and -."

    patterns = (one_product, alternating_products, sums, subtractions, mostly_zeros, mostly_ones, largest, one_number)

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self.draw_pattern(lambda numbers, operations, *_: (numbers, operations), sizes, generator)

    def draw_pattern(self, pattern: Callable, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        shape = len(sizes), int(sizes.max())
        numbers = torch.randint(self.modulus, shape, generator=generator)
        operations = torch.randint(len(OPERATIONS), shape, generator=generator)
        return self.from_rows(sizes, *pattern(numbers, operations, self.modulus, generator))

    def from_rows(
        self, sizes: Int[Tensor, "b axes"], numbers: Int[Tensor, "b n"], operations: Int[Tensor, "b n"]
    ) -> Problems:
        """Return the problems of these expressions, given as numbers and the operation after each number."""
        count = sizes[:, 0]
        total, term = torch.zeros(len(sizes), dtype=torch.long), numbers[:, 0].long()
        for place in range(1, numbers.shape[1]):
            number, operation, goes_on = numbers[:, place].long(), operations[:, place - 1], place < count
            multiplies = operation == TIMES
            signed = torch.where(operation == MINUS, -number, number)
            total = torch.where(goes_on & ~multiplies, total + term, total)
            term = torch.where(goes_on, torch.where(multiplies, term * number, signed) % self.modulus, term)
        prompt = torch.stack([numbers, operations + self.modulus], 2).flatten(1)[:, : 2 * numbers.shape[1] - 1]
        length = 2 * count - 1
        answer = ((total + term) % self.modulus)[:, None].to(torch.int8)
        return Problems(sizes, zero_after(prompt.to(torch.int8), length), length, answer, torch.ones_like(count), count)

    def enumerate(self, size: Sequence[int], limit: int) -> Problems | None:
        count = size[0]
        numbers, operations = enumerate_rows(self.modulus, count, limit), enumerate_rows(3, count - 1, limit)
        if numbers is None or operations is None or len(numbers) * len(operations) > limit:
            return None
        operations = F.pad(operations.long(), (0, 1)).repeat(len(numbers), 1)
        numbers = numbers.repeat_interleave(len(operations) // len(numbers), 0)
        return self.from_rows(torch.full((len(numbers), 1), count), numbers, operations)

    def parse(self, text: str) -> Problems:
        ids = parse_symbols(self, text)
        if not re.fullmatch(r"\d([*+-]\d)*", self.vocab.decode(ids)):
            raise UsageError(f"{self.name}: {text!r} is not an expression of one-digit numbers, such as 3+2*4")
        numbers, operations = ids[None, ::2], F.pad(ids[None, 1::2].long() - self.modulus, (0, 1))
        return self.from_rows(torch.tensor([[numbers.shape[1]]]), numbers, operations)

    def reference(self, prompt: str) -> str:
        value = 0
        for sign, term in re.findall(r"([+-]?)([\d*]+)", prompt):
            product = math.prod(map(int, term.split("*")))
            value += -product if sign == "-" else product
        return str(value % self.modulus)


# One number per operation; operations are computed in ascending order of these numbers.
EvaluationOrder = Float[Tensor, "b n"]


def left_nested(sizes: Int[Tensor, "b 1"], width: int) -> EvaluationOrder:
    """Expressions whose brackets all open at the start: (((1+2)*3)-4)."""
    return torch.arange(float(width)).expand(len(sizes), -1)


def right_nested(sizes: Int[Tensor, "b 1"], width: int) -> EvaluationOrder:
    """Expressions whose brackets all close at the end: (1+(2*(3-4)))."""
    return -left_nested(sizes, width)


def nested_from_both_ends(sizes: Int[Tensor, "b 1"], width: int) -> EvaluationOrder:
    """Expressions whose outer operations are at the two ends in turn, so that the innermost is in the middle."""
    place = torch.arange(float(width))
    from_end = sizes - 2 - place
    return torch.where(place <= from_end, -2 * place, -2 * from_end - 1)


def balanced(sizes: Int[Tensor, "b 1"], width: int) -> EvaluationOrder:
    """Expressions whose brackets are nested as little as possible: ((1+2)*(3-4))."""
    place = torch.arange(1, width + 1)
    power = place & -place  # the largest power of two that divides it
    return (power + place / (2 * width)).expand(len(sizes), -1)


NESTING_PATTERNS = (left_nested, right_nested, nested_from_both_ends, balanced)
NUMBER_PATTERNS = (sums, subtractions, mostly_zeros, mostly_ones, largest, one_number)


class _BracketedTask(_ModularTask):
    """A task on expressions of n numbers below ``modulus``, with brackets around each operation: 4n − 3 symbols.

    Uniform problems are nested at random. Families nest operations in a fixed way, or draw numbers or operations from
    another distribution. The paper's code also writes -d, (d) or (-d) for a number d, so that expressions of every
    length exist.
    """

    further_symbols = "()"

    @abstractmethod
    def from_rows(self, sizes: Int[Tensor, "b axes"], rows: Int[Tensor, "b p"]) -> Problems:
        """Return problems with their answers, given prompts as rows of symbol ids."""

    def from_expressions(
        self, sizes: Int[Tensor, "b axes"], rows: Int[Tensor, "b p"], numbers: Int[Tensor, "b n"], generator: Generator
    ) -> Problems:
        """Return problems on the expressions in ``rows``, whose numbers stand at the positions ``numbers``."""
        return self.from_rows(sizes, rows)

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        return self.draw_pattern(None, sizes, generator)

    def draw_pattern(self, pattern: Callable | None, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        shape = len(sizes), int(sizes.max())
        numbers = torch.randint(self.modulus, shape, generator=generator)
        operations = torch.randint(len(self.operations), shape, generator=generator)
        order = torch.rand(shape, generator=generator)
        if pattern in NESTING_PATTERNS:
            order = pattern(sizes, shape[1])
        elif pattern:
            numbers, operations = pattern(numbers, operations, self.modulus, generator)
        # Write brackets: of neighbouring operations, the one with the largest ``order`` is computed last.
        # An operation's bracket extends on each side up to the next operation that is computed later. So the operations
        # between it and the bracket's first (or last) number are computed before it, the one beyond that number later.
        width, place = 4 * shape[1] - 3, torch.arange(shape[1])
        real, between = place < sizes, place < sizes - 1
        order = order.masked_fill(~between, torch.inf)
        neighbour_order = order[:, None].expand(-1, len(place), -1)
        right, left = (part & between[:, None] for part in (place >= place[:, None], place < place[:, None]))
        to_right = neighbour_order.masked_fill(~right, -torch.inf).cummax(2).values
        to_left = neighbour_order.masked_fill(~left, -torch.inf).flip(2).cummax(2).values.flip(2)
        before = F.pad(order[:, :-1], (1, 0), value=torch.inf)
        opened = (right & (neighbour_order == to_right) & (neighbour_order < before[..., None])).sum(2)
        closed = (left & (neighbour_order == to_left) & (neighbour_order < order[..., None])).sum(2)
        number = opened.cumsum(1) + (closed + 2).cumsum(1) - closed - 2
        operation = number + closed + 1
        position = torch.arange(width)[:, None]
        inside = (position >= number[:, None]) & real[:, None], (position >= operation[:, None]) & between[:, None]
        opening = len(self.writes) + len(self.operations)
        row = torch.where(inside[0].sum(2) == inside[1].sum(2), opening, opening + 1)
        row = F.pad(row, (0, 1))  # a place for symbols beyond a row's end
        row = row.scatter(1, number.where(real, width), numbers)
        row = row.scatter(1, operation.where(between, width), operations + len(self.writes))[:, :width]
        return self.from_expressions(sizes, zero_after(row.to(SYMBOL_DTYPE), 4 * sizes[:, 0] - 3), number, generator)

    def evaluate(self, rows: Int[Tensor, "b p"], length: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        """Return the values of expressions, computed symbol by symbol with a stack."""
        count, opening = len(self.writes), len(self.writes) + len(self.operations)
        values = torch.zeros(len(rows), rows.shape[1] + 2, dtype=torch.long)
        operations, depth = values.clone(), torch.zeros(len(rows), 1, dtype=torch.long)
        for symbol, real in zip(rows.long().split(1, 1), length_mask(length, rows.shape[1]).split(1, 1), strict=True):
            number, closes = real & (symbol < count), real & (symbol == opening + 1)
            operates = real & (symbol >= count) & (symbol < opening)
            values = torch.where(number, values.scatter(1, depth, symbol), values)
            top, below = (depth - 1).clamp(min=0), (depth - 2).clamp(min=0)
            operations = torch.where(operates, operations.scatter(1, top, symbol - count), operations)
            first, second, which = values.gather(1, below), values.gather(1, top), operations.gather(1, below)
            signed = torch.where(which == MINUS, first - second, first + second)
            result = torch.where(which == TIMES, first * second, signed) % self.modulus
            values = torch.where(closes, values.scatter(1, below, result), values)
            depth = depth + number.long() - closes.long()
        return values[:, 0]

    def simplify(self, expression: str) -> str:
        """Replace operations on two numbers in brackets by their values until none are left: for a valid expression,
        until one number is left."""

        def compute_operation(match: re.Match[str]) -> str:
            first, second = int(match[1]), int(match[3])
            result = {"+": first + second, "-": first - second, "*": first * second}[match[2]]
            return str(result % self.modulus)

        while (shorter := re.sub(r"\((\d)([+*-])(\d)\)", compute_operation, expression)) != expression:
            expression = shorter
        return expression


@dataclass(frozen=True)
class BracketedArithmetic(_BracketedTask):
    """n numbers below ``modulus`` with +, - or * between them, each operation in brackets, such as ``(2*(3-4))`` → the
    value modulo ``modulus`` (Delétang et al. 2023, modular arithmetic). The size is the number of numbers. T(n) = n."""

    @property
    def question(self) -> str:
        return f"Write the value of this expression modulo {self.modulus}."

    patterns = (*NESTING_PATTERNS, one_product, *NUMBER_PATTERNS)

    def from_rows(self, sizes: Int[Tensor, "b axes"], rows: Int[Tensor, "b p"]) -> Problems:
        count = sizes[:, 0]
        length = 4 * count - 3
        answer = self.evaluate(rows, length)[:, None].to(SYMBOL_DTYPE)
        return Problems(sizes, rows, length, answer, torch.ones_like(count), count)

    def enumerate(self, size: Sequence[int], limit: int) -> Problems | None:
        if size[0] > 1 or self.modulus > limit:
            return None
        numbers = torch.arange(self.modulus)[:, None]
        return self.from_rows(torch.ones_like(numbers), numbers.to(SYMBOL_DTYPE))

    def parse(self, text: str) -> Problems:
        row = parse_symbols(self, text)
        if self.simplify(self.vocab.decode(row)) not in self.writes:
            raise UsageError(f"{self.name}: {text!r} needs one pair of brackets per operation, as in (2*(3-4))")
        return self.from_rows(torch.tensor([[(len(row) + 3) // 4]]), row[None])

    def reference(self, prompt: str) -> str:
        return self.simplify(prompt)


COLON = ":"  # layouts write = before an answer


@dataclass(frozen=True)
class SolveEquation(_BracketedTask):
    """An equation such as ``(2-(x+4)):1`` → x (Delétang et al. 2023). Its left side has n numbers below ``modulus``,
    one of them written ``x``, with + or - between them and brackets around each operation. Its right side, after a
    colon, is the value modulo ``modulus``.

    As in the paper's code there are no products, so there is exactly one solution. The size is the number of numbers.
    T(n) = n.
    """

    operations = "+-"
    further_symbols = f"()x{COLON}"

    @property
    def question(self) -> str:
        value = f"An expression with one unknown x, a colon, and its value modulo {self.modulus}"
        return f"{value}: write the number below {self.modulus} that x stands for."

    patterns = (*NESTING_PATTERNS, *NUMBER_PATTERNS)

    def from_expressions(
        self, sizes: Int[Tensor, "b axes"], rows: Int[Tensor, "b p"], numbers: Int[Tensor, "b n"], generator: Generator
    ) -> Problems:
        value = self.evaluate(rows, 4 * sizes[:, 0] - 3)
        chosen = (torch.rand(len(sizes), 1, generator=generator) * sizes).long()
        unknown = rows.scatter(1, numbers.gather(1, chosen), self.symbols.index("x"))
        end = torch.stack([torch.full_like(value, self.symbols.index(COLON)), value], 1).to(SYMBOL_DTYPE)
        end = shift_right(F.pad(end, (0, rows.shape[1])), 4 * sizes[:, 0] - 3, rows.shape[1] + 2)
        return self.from_rows(sizes, F.pad(unknown, (0, 2)) + end)

    def from_rows(self, sizes: Int[Tensor, "b axes"], rows: Int[Tensor, "b p"]) -> Problems:
        count = sizes[:, 0]
        length, unknown = 4 * count - 1, rows == self.symbols.index("x")
        substituted = torch.cat([rows.masked_fill(unknown, value) for value in (0, 1)])
        value_at_0, value_at_1 = self.evaluate(substituted, (length - 2).repeat(2)).chunk(2)
        value = rows.gather(1, length[:, None] - 1)[:, 0]
        # x is added or subtracted once, so the slope is 1 or -1, its own inverse.
        slope = value_at_1 - value_at_0
        answer = ((value - value_at_0) * slope % self.modulus)[:, None].to(SYMBOL_DTYPE)
        return Problems(sizes, rows, length, answer, torch.ones_like(count), count)

    def enumerate(self, size: Sequence[int], limit: int) -> Problems | None:
        if size[0] > 1 or self.modulus > limit:
            return None
        values = torch.arange(self.modulus)
        unknown, equals = (torch.full_like(values, self.symbols.index(symbol)) for symbol in ("x", COLON))
        rows = torch.stack([unknown, equals, values], 1).to(SYMBOL_DTYPE)
        return self.from_rows(torch.ones_like(values)[:, None], rows)

    def parse(self, text: str) -> Problems:
        row = parse_symbols(self, text)
        equation = self.vocab.decode(row)
        has_one_x = re.fullmatch(rf"[^x]*x[^x]*{COLON}\d", equation)
        if not has_one_x or not re.fullmatch(rf"\d{COLON}\d", self._substitute_x(equation, 0)):
            raise UsageError(f"{self.name}: {text!r} is not an equation with one x, such as (2-(x+4)):1")
        return self.from_rows(torch.tensor([[(len(row) + 1) // 4]]), row[None])

    def _substitute_x(self, equation: str, value: int) -> str:
        """Return the equation with ``value`` in place of x and with its left side computed, such as 3:1."""
        return self.simplify(equation.replace("x", str(value)))

    def reference(self, prompt: str) -> str:
        right = f"{prompt[-1]}{COLON}{prompt[-1]}"
        return str(next(value for value in range(self.modulus) if self._substitute_x(prompt, value) == right))
