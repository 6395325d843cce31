"""What expressions are worth: one by one, of any size, or many at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor

from lengthwise.tasks.grammar import CLOSE, MINUS, OPEN, PLUS, SYMBOLS

ROWS = 32768  # rows that are worked on together: more at a time gain nothing
EXACT = 2.0**53  # float64 holds every whole number up to here


def value(expression: str) -> int:
    """The value of an expression of the grammar, of any size: read once, symbol by symbol. What has been read so far is
    total + term · number; a stack holds what stands before the parentheses that are open."""
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
    """The values of expressions of the grammar, given as ids. Each is exact; one that 64 bits do not hold is given as
    the largest number, or the smallest, that they do."""
    values = torch.empty_like(lengths)
    for part in lengths.argsort().split(ROWS):
        text = _text(rows[part, : int(lengths[part[-1]])], lengths[part])
        values[part] = of_steps(text, _read(text), lengths[part])
    return values


@dataclass(frozen=True)
class Step:
    """Blocks of many expressions at once. A block is an operator, or the ( before the first number or parenthesis, and
    the number or parenthesis that follows; a whole expression stands in parentheses too, which are not shown. In the
    next step are, first, the blocks that stand behind these, then those that stand within their parentheses."""

    place: Int[Tensor, " n"]  # of the block's first symbol, in a flattened text
    number: Float[Tensor, " n"]  # any where there is a parenthesis
    goes_on: Int[Tensor, " m"]  # which have a block behind them
    nests: Int[Tensor, " i"]  # which have parentheses


def _text(rows: Tensor, lengths: Int[Tensor, " b"]) -> UInt8[Tensor, "p b"]:
    """Expressions as columns, in the parentheses that are not shown."""
    text = torch.zeros(rows.shape[1] + 2, len(rows), dtype=torch.uint8)
    text[0] = OPEN
    text[1:-1] = rows.T
    return text.scatter_(0, lengths[None] + 1, CLOSE)


def _read(columns: UInt8[Tensor, "p b"]) -> list[Step]:
    """The steps of a text. All rows' first blocks are read at once, then whatever has been found behind and within."""
    rows, text, steps = columns.shape[1], columns.view(-1), []
    closing, place = _closing(columns), torch.arange(columns.shape[1])
    while len(place):
        signed = text[place + rows] == MINUS
        lead = place + rows + rows * signed
        number, end = _numbers(text, lead, rows)
        nests = nonzero(text[lead] == OPEN)
        end[nests] = closing[lead[nests]] + rows
        goes_on = nonzero(text[end] != CLOSE)
        steps.append(Step(place, torch.where(signed, -number, number), goes_on, nests))
        place = torch.cat([end[goes_on], lead[nests]])
    return steps


def _numbers(text: UInt8[Tensor, " t"], place: Int[Tensor, " n"], rows: int) -> tuple[Tensor, Tensor]:
    """The numbers that start at these places, and the places behind them; of what is no number, nothing."""
    number, end = torch.zeros(len(place), dtype=torch.float64), place.clone()
    longer = nonzero(text[place] < PLUS)
    while len(longer):
        number[longer] = 10 * number[longer] + text[end[longer]]
        end[longer] += rows
        longer = longer[text[end[longer]] < PLUS]
    return number, end


def _closing(columns: UInt8[Tensor, "p b"]) -> Int[Tensor, " n"]:
    """Where the parenthesis is closed that is opened at a place. In a row, those of one depth follow one another, so
    that opening and closing ones come in one order when they are sorted by row and depth."""
    count, rows = columns.shape
    text, depth = columns.view(-1), ((columns == OPEN).char() - (columns == CLOSE).char()).cumsum(0).view(-1)
    opens, closes = (nonzero(text == symbol) for symbol in (OPEN, CLOSE))
    opens = opens[(opens % rows * count + depth[opens]).argsort(stable=True)]
    closes = closes[(closes % rows * count + depth[closes]).argsort(stable=True)]
    return torch.empty(len(text), dtype=torch.long).scatter_(0, opens, closes)


# By a block's first symbol: how the product that begins there joins the total, and whether what is before joins it.
ADDS = torch.tensor([0.0] * 10 + [1.0, -1.0, 0.0, 1.0], dtype=torch.float64)
JOINS = torch.tensor([0.0] * 10 + [0.0, 0.0, 1.0, 0.0], dtype=torch.float64)


def of_steps(columns: UInt8[Tensor, "p b"], steps: list[Step], lengths: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
    """The values of a text's rows. Where float64 would round, Python's whole numbers do not."""
    found, exact = _work_out(columns, steps)
    values = torch.where(exact, found, 0).long()
    for row in (~exact).nonzero().flatten().tolist():
        expression = "".join(SYMBOLS[i] for i in columns[1 : int(lengths[row]) + 1, row].tolist())
        values[row] = max(-(2**63), min(value(expression), 2**63 - 1))
    return values


def _work_out(columns: UInt8[Tensor, "p b"], steps: list[Step]) -> tuple[Float[Tensor, " b"], Bool[Tensor, " b"]]:
    """From the last step to the first: of what stands from a block on, up to the end of its parentheses, the product at
    the beginning, and the total of what follows it. And in which rows no number on the way was too large."""
    text, exact = columns.view(-1), torch.ones(columns.shape[1], dtype=torch.bool)
    product = total = torch.zeros(0, dtype=torch.float64)
    for step in reversed(steps):
        sign, behind = text.index_select(0, step.place).int(), len(step.goes_on)
        number = step.number.index_copy(0, step.nests, total[behind:])
        product = torch.ones_like(number).index_copy_(0, step.goes_on, product[:behind]).mul_(number)
        total = torch.zeros_like(number).index_copy_(0, step.goes_on, total[:behind])
        total.addcmul_(product, ADDS.index_select(0, sign))
        fits = torch.maximum(product.abs(), total.abs()) < EXACT  # not so where it is no number any more
        if not fits.all():
            exact[step.place[~fits] % len(exact)] = False
        joins = JOINS.index_select(0, sign)
        product = torch.addcmul(1 - joins, product, joins)
    return total, exact


def nonzero(flags: Bool[Tensor, " n"]) -> Int[Tensor, " m"]:
    """Where True stands. NumPy finds it several times as fast where there is no pattern to it."""
    return torch.from_numpy(np.flatnonzero(flags.numpy()))
