"""Evaluate expressions: one of any size, or many at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from lengthwise.tasks.grammar import CLOSE, MINUS, OPEN, PLUS, SYMBOLS

ROWS = 32768  # rows evaluated at once; more are not faster
EXACT = 2.0**53  # float64 represents all integers up to here


def value(expression: str) -> int:
    """Return the value of an expression of the grammar, of any size, in one pass over its symbols.

    The value of the symbols read so far is total + term · number; a stack holds total and term before each open
    parenthesis.
    """
    total, term, number, before = 0, 1, 0, ""
    stack: list[tuple[int, int]] = []
    for symbol in expression:
        if symbol.isdigit():
            number = 10 * number + int(symbol)
        elif symbol == "(":
            stack.append((total, term))
            total, term = 0, 1
        elif symbol == ")":
            number = total + term * number
            total, term = stack.pop()
        elif symbol == "*":
            term, number = term * number, 0
        elif before == "*":  # a minus sign
            term = -term
        else:
            total, term, number = total + term * number, 1 if symbol == "+" else -1, 0
        before = symbol
    return total + term * number


def evaluate(rows: UInt8[Tensor, "b p"] | Int[Tensor, "b p"], lengths: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
    """Return the exact values of expressions of the grammar, as ids; values beyond 64 bits are clamped."""
    values = torch.empty_like(lengths)
    for part in lengths.argsort().split(ROWS):
        text = _text(rows[part, : int(lengths[part[-1]])], lengths[part])
        values[part] = evaluate_steps(text, _read(text), lengths[part])
    return values


@dataclass(frozen=True)
class Step:
    """Blocks of many expressions at once.

    A block is an operator, or the ( before the first operand, together with the operand (a number or a parenthesis)
    that follows it. Complete expressions are in parentheses too. The next step has first the blocks that follow these,
    then the first blocks inside their parentheses.
    """

    start: Int[Tensor, " n"]  # index of the block's first symbol in a flattened text
    number: Float[Tensor, " n"]  # the signed number; undefined for a parenthesis
    goes_on: Int[Tensor, " m"]  # the blocks that another block follows
    nests: Int[Tensor, " i"]  # the blocks with a parenthesis


def _text(rows: Tensor, lengths: Int[Tensor, " b"]) -> UInt8[Tensor, "p b"]:
    """Write expressions as columns of symbols, each in parentheses."""
    text = torch.zeros(rows.shape[1] + 2, len(rows), dtype=torch.uint8)
    text[0] = OPEN
    text[1:-1] = rows.T
    return text.scatter_(0, lengths[None] + 1, CLOSE)


def _read(columns: UInt8[Tensor, "p b"]) -> list[Step]:
    """Parse a text into steps: first the first block of every row, then the blocks after and inside these, and so
    on."""
    rows, text, steps = columns.shape[1], columns.view(-1), []
    closing, start = _closing_indices(columns), torch.arange(columns.shape[1])
    while len(start):
        signed = text[start + rows] == MINUS
        lead = start + rows + rows * signed
        number, end = _numbers(text, lead, rows)
        nests = nonzero(text[lead] == OPEN)
        end[nests] = closing[lead[nests]] + rows
        goes_on = nonzero(text[end] != CLOSE)
        steps.append(Step(start, torch.where(signed, -number, number), goes_on, nests))
        start = torch.cat([end[goes_on], lead[nests]])
    return steps


def _numbers(text: UInt8[Tensor, " t"], start: Int[Tensor, " n"], rows: int) -> tuple[Tensor, Tensor]:
    """Return the numbers that start at these indices, and the indices after them; 0 and the same index if there is no
    number."""
    number, end = torch.zeros(len(start), dtype=torch.float64), start.clone()
    longer = nonzero(text[start] < PLUS)
    while len(longer):
        number[longer] = 10 * number[longer] + text[end[longer]]
        end[longer] += rows
        longer = longer[text[end[longer]] < PLUS]
    return number, end


def _closing_indices(columns: UInt8[Tensor, "p b"]) -> Int[Tensor, " n"]:
    """Return the index of the ) that closes the ( at each index. In a row, parentheses of equal depth follow one
    another, so sorted by row and depth, opening and closing parentheses are in the same order."""
    count, rows = columns.shape
    text, depth = columns.view(-1), ((columns == OPEN).char() - (columns == CLOSE).char()).cumsum(0).view(-1)
    opens, closes = (nonzero(text == symbol) for symbol in (OPEN, CLOSE))
    opens = opens[(opens % rows * count + depth[opens]).argsort(stable=True)]
    closes = closes[(closes % rows * count + depth[closes]).argsort(stable=True)]
    return torch.empty(len(text), dtype=torch.long).scatter_(0, opens, closes)


# By a block's first symbol: the sign with which the product that begins there is added to the total (0 for *: not at
# all), and 1 if the product continues the one before.
ADDS = torch.tensor([0.0] * 10 + [1.0, -1.0, 0.0, 1.0], dtype=torch.float64)
JOINS = torch.tensor([0.0] * 10 + [0.0, 0.0, 1.0, 0.0], dtype=torch.float64)


def evaluate_steps(columns: UInt8[Tensor, "p b"], steps: list[Step], lengths: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
    """Return the values of a text's rows, in float64 where that is exact, else with Python's integers, clamped to 64
    bits."""
    totals, exact = _evaluate_all(columns, steps)
    values = torch.where(exact, totals, 0).long()
    for row in (~exact).nonzero().flatten().tolist():
        expression = "".join(SYMBOLS[i] for i in columns[1 : int(lengths[row]) + 1, row].tolist())
        values[row] = max(-(2**63), min(value(expression), 2**63 - 1))
    return values


def _evaluate_all(columns: UInt8[Tensor, "p b"], steps: list[Step]) -> tuple[Float[Tensor, " b"], Bool[Tensor, " b"]]:
    """Evaluate from the last step to the first: for each block, the product at the beginning of the text from it to the
    end of its parenthesis, and the total of the rest. Also True for rows in which all numbers were exact."""
    text, exact = columns.view(-1), torch.ones(columns.shape[1], dtype=torch.bool)
    product = total = torch.zeros(0, dtype=torch.float64)
    for step in reversed(steps):
        sign, behind = text.index_select(0, step.start).int(), len(step.goes_on)
        number = step.number.index_copy(0, step.nests, total[behind:])
        product = torch.ones_like(number).index_copy_(0, step.goes_on, product[:behind]).mul_(number)
        total = torch.zeros_like(number).index_copy_(0, step.goes_on, total[:behind])
        total.addcmul_(product, ADDS.index_select(0, sign))
        fits = torch.maximum(product.abs(), total.abs()) < EXACT  # False for NaN too
        if not fits.all():
            exact[step.start[~fits] % len(exact)] = False
        joins = JOINS.index_select(0, sign)
        product = torch.addcmul(1 - joins, product, joins)
    return total, exact


def nonzero(flags: Bool[Tensor, " n"]) -> Int[Tensor, " m"]:
    """Return the indices of True. For irregular flags, NumPy is several times as fast as torch."""
    return torch.from_numpy(np.flatnonzero(flags.numpy()))
