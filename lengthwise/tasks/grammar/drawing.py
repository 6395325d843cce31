"""Drawing expressions of given lengths, exactly as the grammar has them.

Folded, an expression is a first number or parenthesis, and then tails: an operator with a number or parenthesis each.
Several derivations write the same. `+3` is + and 3, or - and -3; and n tails are bracketed in as many ways as
Catalan's number of n, each of which takes VAL → EQ → VAL OP VAL n - 1 times. The tables have the sums of their
probabilities, so there every expression has one derivation, of few steps: the first block and one for each tail.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import comb

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Generator, Tensor

from lengthwise.base.types import UsageError
from lengthwise.tasks.grammar import (
    CLOSE,
    LONGER,
    MINUS,
    NEGATIVE,
    NESTED,
    OPEN,
    OPERATORS,
    PARENTHESES,
    PLUS,
    TIMES,
    ZERO,
)
from lengthwise.tasks.grammar.values import ROWS, Step, nonzero, of_steps

LONGEST = 128  # characters of an expression that is drawn: the tables for longer ones would be large
DIGIT = 9  # stands for a digit from 1 up


@dataclass(frozen=True)
class _Blocks:
    """All blocks that an expression of some length may have."""

    sign: Int[Tensor, " k"]  # the first symbol
    lead: Int[Tensor, " k"]  # where the number's first digit stands, or the inner (: at 1, or behind a minus sign at 2
    follows: Int[Tensor, " k"]  # what stands there: 0, ( or DIGIT; the number's further digits are uniform
    length: Int[Tensor, " k"]
    inside: Int[Tensor, " k"]  # symbols within the parentheses; 0: there are none
    weight: Float[Tensor, " k"]  # without that of what is inside


def _blocks(top: int) -> _Blocks:
    """Those of expressions of up to ``top`` symbols."""
    plus, minus, times = OPERATORS.values()
    positive, negative = 1 - NEGATIVE, NEGATIVE
    rows = []
    for sign, unsigned, signed, other in (
        (OPEN, positive, negative, 1.0),
        (PLUS, plus * positive + minus * negative, 0.0, plus),
        (MINUS, minus * positive + plus * negative, 0.0, minus),
        (TIMES, times * positive, times * negative, times),
    ):
        rows.append((sign, 1, 0, 2, 0, other * (1 - NESTED) * ZERO))
        for digits in range(1, top):
            number = (1 - NESTED) * (1 - ZERO) * LONGER ** (digits - 1) * (1 - LONGER)
            rows.append((sign, 1, DIGIT, 1 + digits, 0, unsigned * number))
            rows.append((sign, 2, DIGIT, 2 + digits, 0, signed * number))
        rows += [(sign, 1, OPEN, 3 + inside, inside, other * NESTED * PARENTHESES) for inside in range(3, top - 1)]
    *ids, weight = zip(*rows, strict=True)
    return _Blocks(*map(torch.tensor, ids), weight=torch.tensor(weight, dtype=torch.float64))


class _Ways:
    """How to go on from every state: which block comes next, and which state it leaves.

    A state is what is still to be written, a place in the table of their masses: in row k, column n, k tails of n
    symbols in all; in the last row but one, what stands in parentheses, n symbols; in the last, a whole expression.
    """

    def __init__(self, top: int) -> None:
        self.blocks = _blocks(top)
        self.most = (top - 1) // 2  # tails
        self.inner, self.whole = self.most + 1, self.most + 2
        self.mass = torch.zeros(self.most + 3, top + 1, dtype=torch.float64)
        self.mass[0, 0] = self.mass[self.inner, 0] = 1  # nothing is left to be written; nothing is in parentheses
        self.of: dict[int, tuple[Tensor, Tensor, Tensor]] = {}  # from each state: blocks, states, weights
        opens = self.blocks.sign == OPEN
        tail, first = (~opens).nonzero().flatten(), opens.nonzero().flatten()
        alone = first[self.blocks.inside[first] > 0]  # a whole expression may be one pair of parentheses
        tails = torch.arange(1, self.most + 1).repeat_interleave(len(first))
        first, spine = first.repeat(self.most), self._spine()[tails]
        whole = torch.cat([(1 - PARENTHESES) * spine, torch.full_like(spine[:1], 1 / NESTED).expand(len(alone))])
        for symbols in range(2, top + 1):
            for k in range(1, min(self.most, symbols // 2) + 1):
                self._add(k, symbols, tail, torch.tensor(k - 1))
            self._add(self.inner, symbols, first, tails, spine)
            self._add(self.whole, symbols, torch.cat([first, alone]), torch.cat([tails, 0 * alone]), whole)

    def _spine(self) -> Float[Tensor, " k"]:
        """The weight of k tails beside their own: in how many ways they are bracketed, and what that takes."""
        bare = NESTED * (1 - PARENTHESES)
        ways = [comb(2 * k, k) // (k + 1) * bare ** (k - 1) for k in range(1, self.most + 1)]
        return torch.tensor([0, *ways], dtype=torch.float64)

    def _add(self, row: int, symbols: int, these: Tensor, tails: Tensor, shape: Tensor | float = 1.0) -> None:
        """The ways to begin with these blocks, when so many tails follow each."""
        hidden = int(row >= self.inner)  # the first ( is none of the symbols
        left = symbols + hidden - self.blocks.length[these]
        state = tails * self.mass.shape[1] + left.clamp(min=0)
        behind = self.mass.view(-1)[state] * self.mass[self.inner, self.blocks.inside[these]]
        weight = self.blocks.weight[these] * behind * shape * (left >= 0)
        some = weight > 0
        self.of[row * self.mass.shape[1] + symbols] = these[some], state[some], weight[some]
        self.mass[row, symbols] = weight.sum()


@dataclass(frozen=True)
class _Tables:
    """What drawing takes. An entry is one way to go on from a state; those of a state stand side by side."""

    mass: Float[Tensor, " n"]  # of all expressions of each length
    whole: int  # the state of a whole expression of no symbols, and of longer ones behind it
    first: Int[Tensor, " s"]  # each state's first entry
    count: Float[Tensor, " s"]  # and how many it has
    keep: Float[Tensor, " e"]  # the probability with which an entry that was drawn is kept,
    other: Int[Tensor, " e"]  # and that which stands in for it else
    block: Int[Tensor, " e"]
    state: Int[Tensor, " e"]  # what is to be written behind the block; 0: nothing
    sign: UInt8[Tensor, " k"]  # of each block, as are those that follow
    follows: UInt8[Tensor, " k"]
    lead: Int[Tensor, " k"]
    length: Int[Tensor, " k"]
    digits: UInt8[Tensor, " k"]  # of the number
    signed: Float[Tensor, " k"]  # and its sign: 1 or -1
    nests: Bool[Tensor, " k"]  # has it parentheses?
    inside: Int[Tensor, " k"]  # and the state of what they hold


def tables(longest: int) -> _Tables:
    """For expressions of up to so many symbols. UsageError if the tables would be too large."""
    if longest > LONGEST:
        raise UsageError(f"expression: those that are drawn have at most {LONGEST} characters, not {longest}")
    return _tables(-(-longest // 8) * 8)


@cache
def _tables(top: int) -> _Tables:
    ways = _Ways(top)
    blocks, mass = ways.blocks, ways.mass
    count = torch.tensor([len(ways.of[state][0]) if state in ways.of else 0 for state in range(mass.numel())])
    block, state, weight = (torch.cat(parts) for parts in zip(*(ways.of[s] for s in sorted(ways.of)), strict=True))
    keep, other = _aliases(weight.tolist(), count.tolist())
    return _Tables(
        mass[ways.whole],
        ways.whole * mass.shape[1],
        (count.cumsum(0) - count).int(),
        count.double(),
        keep,
        other,
        block.int(),
        state.int(),
        blocks.sign.to(torch.uint8),
        blocks.follows.to(torch.uint8),
        blocks.lead,
        blocks.length,
        torch.where(blocks.inside > 0, 0, blocks.length - blocks.lead).to(torch.uint8),
        3.0 - 2.0 * blocks.lead.double(),
        blocks.inside > 0,
        (ways.inner * mass.shape[1] + blocks.inside).int(),
    )


def _aliases(weights: list[float], counts: list[int]) -> tuple[Float[Tensor, " e"], Int[Tensor, " e"]]:
    """How to draw by weight in a few steps (Walker 1977): any of a state's entries, each as often, and then, unless it
    is kept, the other one in its place."""
    keep, other, start = list(weights), list(range(len(weights))), 0
    for count in counts:
        own = range(start, start + count)
        scale = count / (sum(weights[start : start + count]) or 1)
        for i in own:
            keep[i] *= scale
        light, heavy = [i for i in own if keep[i] < 1], [i for i in own if keep[i] >= 1]
        while light and heavy:
            i, j = light.pop(), heavy[-1]
            other[i] = j
            keep[j] -= 1 - keep[i]
            if keep[j] < 1:
                light.append(heavy.pop())
        start += count
    return torch.tensor(keep, dtype=torch.float64), torch.tensor(other, dtype=torch.int32)


def draw(lengths: Int[Tensor, " b"], generator: Generator) -> tuple[UInt8[Tensor, "b p"], Int[Tensor, " b"]]:
    """Expressions of these lengths, padded with zeros, with their values, whatever they are."""
    known, order = tables(int(lengths.max())), lengths.short().argsort()
    rows = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.uint8)
    values, start = torch.empty_like(lengths), 0
    for part in order.split(ROWS):
        text, steps = _write(known, lengths[part], generator)
        these = slice(start, start := start + len(part))
        rows[these, : len(text) - 2] = text[1:-1].T
        values[these] = of_steps(text, steps, lengths[part])
    back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    return rows.index_select(0, back), values.index_select(0, back)


def _write(known: _Tables, lengths: Int[Tensor, " b"], generator: Generator) -> tuple[UInt8[Tensor, "p b"], list[Step]]:
    """Expressions of these lengths, and their steps: all rows' first blocks are drawn at once, then whatever has still
    to be written behind and within them."""
    rows = len(lengths)
    columns = torch.zeros(int(lengths.max()) + 2, rows, dtype=torch.uint8)
    text, leads, ends = columns.view(-1), known.lead * rows, known.length * rows
    state, place, steps = (known.whole + lengths).int(), torch.arange(rows), []
    while len(state):
        entry = _entries(known, state, generator)
        block, state = known.block.index_select(0, entry), known.state.index_select(0, entry)
        follows = known.follows.index_select(0, block)
        digit = torch.randint(1, 10, follows.shape, generator=generator, dtype=torch.uint8)
        first = torch.where(follows == DIGIT, digit, follows)
        lead, end = (offsets.index_select(0, block).add_(place) for offsets in (leads, ends))
        text.scatter_(0, place, known.sign.index_select(0, block))
        text.scatter_(0, place + rows, MINUS)  # unless the digit or parenthesis stands there
        text.scatter_(0, lead, first)
        goes_on, nests = nonzero(state > 0), nonzero(known.nests.index_select(0, block))
        text.index_fill_(0, end.index_select(0, nests) - rows, CLOSE)
        steps.append((block, lead, first, place, goes_on, nests))
        inside = known.inside.index_select(0, block.index_select(0, nests))
        state = torch.cat([state.index_select(0, goes_on), inside])
        place = torch.cat([end.index_select(0, goes_on), lead.index_select(0, nests)])
    block, lead, first = (torch.cat([step[part] for step in steps]) for part in range(3))
    numbers = _lengthen(known, text, block, lead, first, rows, generator).split([len(step[0]) for step in steps])
    return columns, [Step(step[3], number, *step[4:]) for step, number in zip(steps, numbers, strict=True)]


def _lengthen(
    known: _Tables, text: Tensor, block: Tensor, lead: Tensor, first: Tensor, rows: int, generator: Generator
) -> Float[Tensor, " n"]:
    """The numbers of blocks, signed; their digits from the second on are drawn and written."""
    number, digits = first.double(), known.digits.index_select(0, block)
    longer, count = nonzero(digits > 1), 1
    while len(longer):
        digit = torch.randint(10, longer.shape, generator=generator, dtype=torch.uint8)
        text.scatter_(0, lead.index_select(0, longer) + count * rows, digit)
        number.index_copy_(0, longer, number.index_select(0, longer) * 10 + digit)
        count += 1
        longer = longer.index_select(0, nonzero(digits.index_select(0, longer) > count))
    return number.mul_(known.signed.index_select(0, block))


def _entries(known: _Tables, state: Int[Tensor, " n"], generator: Generator) -> Int[Tensor, " n"]:
    """A way to go on from each state."""
    at = torch.rand(len(state), dtype=torch.float64, generator=generator) * known.count.index_select(0, state)
    which = at.int()
    entry = known.first.index_select(0, state) + which
    kept = at - which < known.keep.index_select(0, entry)
    return torch.where(kept, entry, known.other.index_select(0, entry))
