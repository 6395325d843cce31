"""Arithmetic expressions from a probabilistic grammar, and their values (the problem of ReTran, ACL 2025)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Annotated, Any, NamedTuple

import torch
from jaxtyping import Int, UInt8
from torch import Generator, Tensor
from torch.nn.utils.rnn import pad_sequence

from lengthwise.base.ranges import Range
from lengthwise.base.types import Problems, UsageError
from lengthwise.tasks import Task, grammar, parse_symbols
from lengthwise.tasks.grammar import CLOSE, MINUS, OPEN, OPERATORS, PLUS, TIMES, evaluate

SMALL_BATCH_ROWS = 512  # drawing this number of rows takes little longer than drawing one


class ExpressionWriter(NamedTuple):
    """A writer of random expressions of ``size`` characters, 3 or more. Each method in ``patterns`` writes a family."""

    size: int
    rng: Random

    def draw_digit(self) -> str:
        return self.rng.choice("0123456789")

    def draw_sign(self) -> str:
        return self.rng.choice("+-")

    def draw_number(self, digits: int) -> str:
        return self.rng.choice("123456789") + "".join(self.draw_digit() for _ in range(digits - 1))

    def write_chain(self, operators: str, digit: Callable[[], str] | None = None) -> str:
        """Write one-digit numbers with ``operators`` between them, in turn; with "", the operators are random. If
        ``size`` is even, one number gets a second digit."""
        digit, count = digit or self.draw_digit, (self.size + 1) // 2
        numbers = [digit() for _ in range(count)]
        if self.size % 2 == 0:
            index = self.rng.randrange(count)
            numbers[index] = (numbers[index] if numbers[index] != "0" else "1") + digit()
        cycle = itertools.cycle(operators) if operators else iter(lambda: self.rng.choice("+-*"), "")
        return numbers[0] + "".join(operator + number for number, operator in zip(numbers[1:], cycle, strict=False))

    def write_nested(self, nest: Callable[[int], str], level_length: int) -> str:
        """Write ``nest(depth)`` with the largest depth that leaves 0 or at least 2 of ``size`` characters free, and
        fill these with terms. One level of depth adds ``level_length`` characters."""
        for depth in range(self.size // level_length, -1, -1):
            text = nest(depth)
            missing = self.size - len(text)
            if missing == 0 or missing > 1:
                text += f"{self.draw_sign()}{self.draw_number(2)}" if missing % 2 else ""
                terms = (self.size - len(text)) // 2
                return text + "".join(f"{self.draw_sign()}{self.draw_digit()}" for _ in range(terms))
        return self.write_chain("+-")

    def only_plus(self) -> str:
        """Sums: 3+8+4."""
        return self.write_chain("+")

    def only_minus(self) -> str:
        """Differences: 3-8-4."""
        return self.write_chain("-")

    def only_times(self) -> str:
        """Products of mostly ones: 1*3*1."""
        return self.write_chain("*", lambda: self.rng.choice("1111111111123459"))

    def times_zero(self) -> str:
        """Products with a zero or, equally often, with a one in its place: 1*0*2, 1*1*2."""
        digit = self.rng.choice("01")
        numbers = self.write_chain("*", lambda: self.rng.choice("11112")).split("*")
        numbers[self.rng.choice([index for index, number in enumerate(numbers) if len(number) == 1])] = digit
        return "*".join(numbers)

    def plus_and_minus(self) -> str:
        """Expressions with plus and minus signs in turn: 3+8-4."""
        return self.write_chain("+-")

    def sum_of_products(self) -> str:
        """Expressions with plus (or minus) and times signs in turn: 3+8*4."""
        return self.write_chain(self.rng.choice(("+*", "*+", "-*")))

    def ones(self) -> str:
        """Expressions of ones with random operators: 1-1*1."""
        return self.write_chain("", lambda: "1")

    def nearly_zeros(self) -> str:
        """Expressions of zeros with random operators: 0*0+0. If the size is even, one number is 10."""
        return self.write_chain("", lambda: "0")

    def one_digit_throughout(self) -> str:
        """Expressions that repeat one digit, with plus and minus signs in turn: 7+7-7."""
        digit = self.rng.choice("123456789")
        return self.write_chain("+-", lambda: digit)

    def cancelling(self) -> str:
        """Differences of a number and itself: 372-372, -37+37."""
        number = self.draw_number((self.size - 1) // 2)
        return f"{number}-{number}" if self.size % 2 else f"-{number}+{number}"

    def nearly_cancelling(self) -> str:
        """Differences of two numbers that differ only in the last digit: 372-374, -37+39."""
        number = self.draw_number((self.size - 1) // 2)
        other = number[:-1] + self.rng.choice("123456789".replace(number[-1], ""))
        return f"{number}-{other}" if self.size % 2 else f"-{number}+{other}"

    def signs(self) -> str:
        """Products of 1 and -1: 1*-1*1*-1."""
        # k factors of one digit and k - 1 operators; the other characters are minus signs, at most one per factor.
        count = self.rng.randint(-(-(self.size + 1) // 3), (self.size + 1) // 2)
        minus = self.rng.sample(range(count), self.size + 1 - 2 * count)
        return "*".join("-1" if number in minus else "1" for number in range(count))

    def nested_left(self) -> str:
        """Expressions with parentheses nested at the left, at the largest possible depth or one less: ((3+8)-4)+1."""

        def nest(depth: int) -> str:
            ends = "".join(f"){self.draw_sign()}{self.draw_digit()}" for _ in range(depth))
            return "(" * depth + f"{self.draw_digit()}{self.draw_sign()}{self.draw_digit()}" + ends

        return self.write_nested(nest, 4)

    def nested_right(self) -> str:
        """Expressions with parentheses nested at the right, at the largest possible depth or one less: 1-(4-(8+3))."""

        def nest(depth: int) -> str:
            starts = "".join(f"{self.draw_digit()}{self.draw_sign()}(" for _ in range(depth))
            return starts + f"{self.draw_digit()}{self.draw_sign()}{self.draw_digit()}" + ")" * depth

        return self.write_nested(nest, 4)

    def side_by_side(self) -> str:
        """Expressions of parentheses side by side: (3+8)-(4-1)."""

        def write_groups(count: int) -> str:
            groups = (f"({self.draw_digit()}{self.draw_sign()}{self.draw_digit()})" for _ in range(count + 1))
            return self.draw_sign().join(groups)

        return self.write_nested(write_groups, 6)

    def long_numbers(self) -> str:
        """Expressions of numbers of up to four digits, with minus and plus signs in turn: 4372-981."""
        parts = [5] * ((self.size + 1) // 5) + [(self.size + 1) % 5] * ((self.size + 1) % 5 > 0)
        if parts[-1] == 1:
            parts[-2:] = [3, 3]
        if len(parts) == 1:
            parts = [parts[0] - 2, 2]
        numbers = [self.draw_number(part - 1) for part in parts]
        return numbers[0] + "".join("-+"[index % 2] + number for index, number in enumerate(numbers[1:]))

    patterns = (
        only_plus, only_minus, only_times, times_zero, plus_and_minus, sum_of_products, ones, nearly_zeros,
        one_digit_throughout, cancelling, nearly_cancelling, signs, nested_left, nested_right, side_by_side,
        long_numbers,
    )  # fmt: skip


@dataclass(frozen=True)
class Expression(Task, former_names={"most": "max_value_length"}):
    """An expression of numbers, +, - and * and parentheses → its value: ``(3-8)*-4`` → ``20``. T is the number of
    operators.

    The size is the number of characters of the expression. The value has at most ``max_value_length`` characters, the
    minus sign included.
    """

    max_value_length: Annotated[int, Range(1, 15)] = 5  # largest number of characters of a value

    symbols = grammar.SYMBOLS
    signs = (*OPERATORS, "(", ")")
    smallest, largest = 3, grammar.MAX_CHARACTERS
    answers_numbers = True
    question = "Answer the math question."  # the instruction that ReTran uses

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        """Sample from the grammar's distribution, conditioned on the lengths and on values of at most
        ``max_value_length`` characters."""
        lengths = sizes[:, 0]
        if int(lengths.min()) < self.smallest:
            raise UsageError(f"expression: lengths must be {self.smallest} or more, not {int(lengths.min())}")
        rows = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.uint8)
        values, remaining = torch.zeros_like(lengths), torch.arange(len(lengths))
        while len(remaining):
            tries = 1 + SMALL_BATCH_ROWS // len(remaining)  # draws of each row; the first short value is taken
            drawn, results = grammar.draw_expressions(lengths[remaining].repeat(tries), generator)
            short = self._is_short(results).view(tries, -1)
            done = short.any(0).nonzero().flatten()
            first = short[:, done].long().argmax(0) * len(remaining) + done
            rows[remaining[done], : drawn.shape[1]], values[remaining[done]] = drawn[first], results[first]
            remaining = remaining[~short.any(0)]
        return self._build_problems(lengths, rows, values)

    def sample_natural(self, count: int, low: int, high: int, generator: Generator) -> Problems:
        """Sample from the grammar's distribution, conditioned on lengths from ``low`` to ``high`` and on values of at
        most ``max_value_length`` characters."""
        self.check_natural_sizes(count, low, high)
        mass = torch.where(torch.arange(high + 1) < low, 0, grammar.get_tables(high).mass[: high + 1])
        parts = []
        while count:
            # Draw somewhat more rows than are needed, so that a second round is rare, and keep the first short values.
            drawn_count = count + count // 16 + SMALL_BATCH_ROWS
            lengths = torch.multinomial(mass, drawn_count, replacement=True, generator=generator)
            rows, values = grammar.draw_expressions(lengths, generator)
            short = self._is_short(values).nonzero().flatten()[:count]
            parts.append([part.index_select(0, short) for part in (lengths, rows, values)])
            count -= len(short)
        lengths, rows, values = map(torch.cat, zip(*parts, strict=True))
        return self._build_problems(lengths, rows, values)

    def _is_short(self, value: Any) -> Any:
        """Return whether a number, or each number of a tensor, has at most ``max_value_length`` characters."""
        return (value > -(10 ** (self.max_value_length - 1))) & (value < 10**self.max_value_length)

    def _build_problems(
        self, lengths: Int[Tensor, " b"], rows: UInt8[Tensor, "b p"], values: Int[Tensor, " b"]
    ) -> Problems:
        # Write the values' symbols: up to ``max_value_length`` digits, from the first on, after a minus sign if any.
        remainder, negative, digits = values.abs().double(), values < 0, []
        powers = 10.0 ** torch.arange(self.max_value_length, dtype=torch.float64)
        answer_length = torch.bucketize(remainder, powers[1:], right=True) + 1
        power = powers[answer_length - 1]
        for _ in powers:
            digits.append((remainder / power).floor())
            remainder, power = remainder - digits[-1] * power, (power / 10).clamp(min=1)
        unsigned = torch.stack(digits, 1)
        signed = torch.cat([torch.full_like(unsigned[:, :1], MINUS), unsigned[:, :-1]], 1)
        answer_length = answer_length + negative
        answer = torch.where(negative[:, None], signed, unsigned)[:, : int(answer_length.max())].long()
        rows = rows[:, : int(lengths.max())]
        symbol = rows - PLUS  # all symbols before + wrap around to large numbers
        # Operators follow a number or a parenthesis, unlike minus signs of numbers.
        operators = ((symbol[:, 1:] <= TIMES - PLUS) & (symbol[:, :-1] > OPEN - PLUS)).sum(1)
        return Problems(lengths[:, None], rows.long(), lengths, answer, answer_length, operators)

    patterns = ExpressionWriter.patterns

    def draw_pattern(self, pattern: Callable, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        """Draw expressions of a family. If the values of 64 draws for a row are all too long, sample from the grammar
        instead."""
        rng = Random(int(torch.randint(2**62, (1,), generator=generator)))
        texts = []
        for size in sizes[:, 0].tolist():
            tries = (pattern(ExpressionWriter(size, rng)) for _ in range(64))
            texts.append(next((text for text in tries if self._is_short(evaluate(text))), None))
        missing = torch.tensor([text is None for text in texts])
        parts = [self._from_texts([text for text in texts if text])] if not missing.all() else []
        if missing.any():
            parts.append(self.sample(sizes[missing], generator))
        return Problems.join(parts).take(missing.long().argsort(stable=True).argsort())

    def _from_texts(self, texts: Sequence[str]) -> Problems:
        """Return the problems of these expressions, which must be in the grammar's form."""
        rows = pad_sequence([self.vocab.encode(text).to(torch.uint8) for text in texts], batch_first=True)
        lengths, values = (torch.tensor([*map(function, texts)]) for function in (len, evaluate))
        return self._build_problems(lengths, rows, values)

    def enumerate(self, size: Sequence[int], limit: int) -> Problems | None:
        if size[0] != self.smallest:
            return None  # there are 300 expressions of three characters, and 5,700 of four
        digits = self.symbols[:10]
        texts = ["".join(parts) for parts in itertools.product(digits, OPERATORS, digits)]
        short = [text for text in texts if self._is_short(evaluate(text))]
        return self._from_texts(short) if len(short) <= limit else None

    def parse(self, text: str) -> Problems:
        """Read an expression and simplify it: ``--`` becomes ``+``, ``+-`` becomes ``-``, and leading zeros and the
        sign of ``-0`` are dropped. Raises UsageError for expressions outside the grammar (a single number, parentheses
        without an operator, a minus sign before a parenthesis) and for values of more than ``max_value_length``
        characters."""
        expression = self.vocab.decode(parse_symbols(self, text))
        if not _is_in_grammar(expression):
            raise UsageError(f"expression: write numbers with + - * and parentheses, as in (3-8)*-4, not {expression}")
        # Bring the expression into the grammar's form.
        expression = expression.replace("--", "+").replace("+-", "-")
        expression = re.sub(r"(?<!\d)0+(?=\d)", "", expression)
        expression = re.sub(r"(?<![\d)])-(?=0)", "", expression)
        if not self._is_short(evaluate(expression)):
            raise UsageError(f"expression: the value of {expression} has more than {self.max_value_length} characters")
        return self._from_texts([expression])

    def reference(self, prompt: str) -> str:
        return str(evaluate(prompt))

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        """Return each expression's number of operators and largest depth of parentheses."""
        nested = (problems.prompt == OPEN).long() - (problems.prompt == CLOSE).long()
        return {"operators": problems.rounds, "depth of parentheses": nested.cumsum(1).amax(1)}

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        """Return the largest possible length of a value: one less than the expression's length, and at most
        ``max_value_length``."""
        return (sizes[:, 0] - 1).clamp(max=self.max_value_length)


def _is_in_grammar(text: str) -> bool:
    """Return whether a text is an expression of the grammar, with signs as typed: ``--`` and ``+-`` are allowed."""
    operators = [0]  # number of operators on each level
    is_complete = False  # whether an operand was read last
    for token in re.findall(r"(?<![\d)])-?\d+|.", text):
        if token[-1].isdigit() and not is_complete:
            is_complete = True
        elif token == "(" and not is_complete:
            operators.append(0)
        elif token in OPERATORS and is_complete:
            operators[-1] += 1
            is_complete = False
        elif token != ")" or not is_complete or len(operators) == 1 or not operators.pop():
            return False
    return is_complete and len(operators) == 1 and (operators[0] > 0 or text[0] == "(")
