"""Arithmetic expressions from a probabilistic grammar, and their values (the problem of ReTran, ACL 2025)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated

import torch
from jaxtyping import Bool, Int, UInt8
from torch import Generator, Tensor

from lengthwise.base.ranges import Range
from lengthwise.base.types import Problems, UsageError
from lengthwise.tasks import Task, parse_symbols
from lengthwise.tasks.grammar import CLOSE, MINUS, OPEN, OPERATORS, PLUS, SYMBOLS, TIMES
from lengthwise.tasks.grammar.drawing import LONGEST, draw, tables
from lengthwise.tasks.grammar.structured import WRITERS, Writer
from lengthwise.tasks.grammar.values import value
from lengthwise.tasks.operands import arithmetic_question

TRIES = 64  # draws of an expression of a family, until its value is short enough
CHEAP = 512  # rows that take little longer than one


@dataclass(frozen=True)
class Expression(Task):
    """An expression with + − * and parentheses → its value: ``(3-8)*-4`` → ``20``. T = the number of operators.

    The size is the number of characters of the expression; its value has at most ``most``, including its sign.
    """

    most: Annotated[int, Range(1, 15)] = 5  # characters of a value

    symbols = SYMBOLS
    signs = (*OPERATORS, "(", ")")
    smallest, largest = 3, LONGEST
    answers_numbers = True
    question = arithmetic_question(10)

    # Sampling

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        """Sample from the grammar's distribution, given the length and that the value is short enough."""
        lengths = sizes[:, 0]
        if int(lengths.min()) < self.smallest:
            raise UsageError(f"expression: lengths start at {self.smallest}, not {int(lengths.min())}")
        rows = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.uint8)
        values, left = torch.zeros_like(lengths), torch.arange(len(lengths))
        while len(left):
            tries = 1 + CHEAP // len(left)  # of each row; the first short value is taken
            drawn, results = draw(lengths[left].repeat(tries), generator)
            short = self._is_short(results).view(tries, -1)
            done = short.any(0).nonzero().flatten()
            first = short[:, done].long().argmax(0) * len(left) + done
            rows[left[done], : drawn.shape[1]], values[left[done]] = drawn[first], results[first]
            left = left[~short.any(0)]
        return self._problems(lengths, rows, values)

    def pool(self, count: int, low: int, high: int, generator: Generator) -> Problems:
        """Sample from the grammar's distribution, given that the length is in the range and the value short enough."""
        self.check_pool(count, low, high)
        mass = torch.where(torch.arange(high + 1) < low, 0, tables(high).mass[: high + 1])
        parts = []
        while count:
            # Somewhat more than are needed, so that a second round is rare; the first short values are kept.
            lengths = torch.multinomial(mass, count + count // 16 + CHEAP, replacement=True, generator=generator)
            rows, values = draw(lengths, generator)
            short = self._is_short(values).nonzero().flatten()[:count]
            parts.append([part.index_select(0, short) for part in (lengths, rows, values)])
            count -= len(short)
        lengths, rows, values = map(torch.cat, zip(*parts, strict=True))
        return self._problems(lengths, rows, values)

    def _is_short(self, values: Int[Tensor, " b"]) -> Bool[Tensor, " b"]:
        """Return which values are short enough."""
        return (values > self._bounds[0]) & (values < self._bounds[1])

    @property
    def _bounds(self) -> tuple[int, int]:
        """The open interval of values that are short enough."""
        return -(10 ** (self.most - 1)), 10**self.most

    def _problems(self, lengths: Int[Tensor, " b"], rows: UInt8[Tensor, "b p"], values: Int[Tensor, " b"]) -> Problems:
        answer, answer_length = _write_values(values, self.most)
        rows = rows[:, : int(lengths.max())]
        return Problems(lengths[:, None], rows.long(), lengths, answer, answer_length, _operators(rows))

    patterns = WRITERS

    def draw_pattern(self, pattern: Writer, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        """Draw expressions of a family; from the grammar's distribution where no value is short enough."""
        draw = Random(int(torch.randint(2**62, (1,), generator=generator)))
        texts = [self._write_short(pattern, size, draw) for size in sizes[:, 0].tolist()]
        missing = torch.tensor([text is None for text in texts])
        parts = [self._from_texts([text for text in texts if text])] if not missing.all() else []
        if missing.any():
            parts.append(self.sample(sizes[missing], generator))
        order = missing.long().argsort(stable=True).argsort()
        return Problems.join(parts).take(order)

    def _from_texts(self, texts: Sequence[str]) -> Problems:
        """Return expressions, written as the grammar does, as problems."""
        lengths = torch.tensor([len(text) for text in texts])
        rows = torch.zeros(len(texts), int(lengths.max()), dtype=torch.uint8)
        for row, text in enumerate(texts):
            rows[row, : len(text)] = self.vocab.encode(text)
        return self._problems(lengths, rows, torch.tensor([value(text) for text in texts]))

    def _write_short(self, write: Writer, size: int, draw: Random) -> str | None:
        """Write an expression whose value is short enough; None if ``TRIES`` draws find none."""
        low, high = self._bounds
        tries = (write(size, draw) for _ in range(TRIES))
        return next((text for text in tries if low < value(text) < high), None)

    def enumerate(self, size: Sequence[int], most: int) -> Problems | None:
        if size[0] != self.smallest:
            return None  # there are 300 expressions of three characters, and 5,700 of four
        low, high = self._bounds
        digits = self.symbols[:10]
        texts = ["".join(parts) for parts in itertools.product(digits, OPERATORS, digits)]
        short = [text for text in texts if low < value(text) < high]
        return self._from_texts(short) if len(short) <= most else None

    # People

    def parse(self, text: str) -> Problems:
        """Read an expression; ``--`` becomes ``+`` and ``+-`` becomes ``-``, leading zeros and the sign of ``-0`` are
        dropped. Raises UsageError for expressions outside the grammar (a single number, parentheses without an
        operator, a minus sign before a parenthesis) and for a value longer than ``most``."""
        expression = _write_expression(self.vocab.decode(parse_symbols(self, text)))
        result, (low, high) = value(expression), self._bounds
        if not low < result < high:
            raise UsageError(f"expression: a value has at most {self.most} characters, unlike that of {expression}")
        row = self.vocab.encode(expression).to(torch.uint8)
        return self._problems(torch.tensor([len(row)]), row[None], torch.tensor([result]))

    def reference(self, prompt: str) -> str:
        return str(value(prompt))

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        """The number of operators, and the depth of parentheses."""
        nested = (problems.prompt == OPEN).long() - (problems.prompt == CLOSE).long()
        return {"operators": problems.rounds, "depth of parentheses": nested.cumsum(1).amax(1)}

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        """A value is shorter than its expression."""
        return (sizes[:, 0] - 1).clamp(max=self.most)


def _operators(rows: UInt8[Tensor, "b p"]) -> Int[Tensor, " b"]:
    """Count operators: they follow a number or a parenthesis, unlike minus signs of numbers."""
    symbol = rows - PLUS  # all symbols before + wrap around to large numbers
    return ((symbol[:, 1:] <= TIMES - PLUS) & (symbol[:, :-1] > OPEN - PLUS)).sum(1)


def _write_values(values: Int[Tensor, " b"], most: int) -> tuple[Int[Tensor, "b a"], Int[Tensor, " b"]]:
    """Return values of up to ``most`` characters as symbols, and their lengths."""
    left, negative, digits = values.abs().double(), values < 0, []
    powers = 10.0 ** torch.arange(most, dtype=torch.float64)
    length = torch.bucketize(left, powers[1:], right=True) + 1
    power = powers[length - 1]
    for _ in range(most):
        digits.append((left / power).floor())
        left, power = left - digits[-1] * power, (power / 10).clamp(min=1)
    row = torch.stack(digits, 1)
    signed = torch.cat([torch.full_like(row[:, :1], MINUS), row[:, :-1]], 1)
    length = length + negative
    return torch.where(negative[:, None], signed, row)[:, : int(length.max())].long(), length


def _write_expression(text: str) -> str:
    """Return a typed expression as the grammar writes it."""
    _check(text)
    text = text.replace("--", "+").replace("+-", "-")
    text = re.sub(r"(?<!\d)0+(?=\d)", "", text)
    return re.sub(r"(?<![\d)])-(?=0)", "", text)


def _check(text: str) -> None:
    """Raise UsageError with the fault and its position unless this is an expression of the grammar."""

    def fail(reason: str) -> UsageError:
        return UsageError(f"expression: {reason}, in {text}")

    opened: list[int] = []
    operators = [0]  # on each level
    before = "("  # the symbol before: 0 for a digit, ~ for the minus sign of a number
    for position, symbol in enumerate(text, 1):
        if before == "~" and not symbol.isdigit():
            raise fail(f"the minus sign at position {position - 1} is followed by {symbol} instead of a number")
        if (before == ")" and symbol.isdigit()) or (before in "0)" and symbol == "("):
            raise fail(f"an operator is missing before position {position}")
        if before in "(+-*" and symbol in "+*)":
            raise fail(f"position {position} has {symbol} instead of a number or (")
        if symbol == "(":
            opened.append(position)
            operators.append(0)
        elif symbol == ")":
            if not opened:
                raise fail(f"the ) at position {position} closes nothing")
            if not operators.pop():
                raise fail(f"there is no operator between ( at position {opened[-1]} and its )")
            opened.pop()
        elif before in "0)" and not symbol.isdigit():
            operators[-1] += 1
        before = "0" if symbol.isdigit() else "~" if symbol == "-" and before in "(+-*" else symbol
    if before not in "0)":
        raise fail("a number is missing at the end")
    if opened:
        raise fail(f"the ( at position {opened[-1]} is not closed")
    if not operators[0] and text[0] != "(":
        raise fail("an operator is missing")
