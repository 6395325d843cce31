"""Arithmetic expressions from a probabilistic grammar, and their values (the problem of ReTran, ACL 2025)."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from functools import cache
from math import comb

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Generator, Tensor

from lengthwise.digits import arithmetic
from lengthwise.tasks import Task, symbols_of
from lengthwise.types import Problems, UsageError

# EQ → VAL OP VAL | ( VAL OP VAL ); VAL → EQ | NUM; NUM → 0 | NUMH NUMT; NUMH → d | -d, d from 1 to 9; NUMT → d NUMT |
# nothing, d from 0 to 9; all digits are equally likely. Then `--` is written `+`, and `+-` is written `-`.
PARENTHESES = 0.5  # EQ → ( VAL OP VAL )
NESTED = 0.46  # VAL → EQ
OPERATORS = {"+": 0.35, "-": 0.35, "*": 0.3}  # OP
ZERO = 0.05  # NUM → 0
NEGATIVE = 0.5  # NUMH → -d
LONGER = 0.2  # NUMT → d NUMT

SYMBOLS = (*string.digits, *OPERATORS, "(", ")")
PLUS, MINUS, TIMES, OPEN, CLOSE = range(10, 15)  # ids
LONGEST = 128  # characters of an expression that is drawn: the tables for longer ones would be large
ROWS = 32768  # rows that are worked on together: more at a time gain nothing
FEW = 512  # rows that take hardly longer than one
EXACT = 2.0**53  # float64 holds every whole number up to here


@dataclass(frozen=True)
class Expression(Task):
    """An expression with + − * and parentheses → its value: ``(3-8)*-4`` → ``20``. T = the number of operators.

    The size is the number of characters of the expression; its value has at most ``most``, with its sign.
    """

    most: int = 5  # what a model has room for

    symbols = SYMBOLS
    signs = (*OPERATORS, "(", ")")
    smallest = 3
    question = arithmetic(10)

    def __post_init__(self) -> None:
        if not 1 <= self.most <= 15:
            raise UsageError(f"expression: most must be 1 to 15 characters, not {self.most}")

    # Sampling

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        """From the grammar's own distribution, given the length and that the value is short enough."""
        lengths = sizes[:, 0]
        if int(lengths.min()) < self.smallest:
            raise UsageError(f"expression: lengths start at {self.smallest}, not {int(lengths.min())}")
        rows = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.uint8)
        values, left = torch.zeros_like(lengths), torch.arange(len(lengths))
        while len(left):
            tries = 1 + FEW // len(left)  # of each row; the first that is kept is taken
            drawn, results = draw(lengths[left].repeat(tries), generator)
            kept = self._kept(results).view(tries, -1)
            found = kept.any(0).nonzero().flatten()
            taken = kept[:, found].long().argmax(0) * len(left) + found
            rows[left[found], : drawn.shape[1]], values[left[found]] = drawn[taken], results[taken]
            left = left[~kept.any(0)]
        return self._problems(lengths, rows, values)

    def pool(self, count: int, low: int, high: int, generator: Generator) -> Problems:
        """From the grammar's own distribution, given that the length is in the range and the value is short enough."""
        self.check_pool(count, low, high)
        mass = torch.where(torch.arange(high + 1) < low, 0, tables(high).mass[: high + 1])
        parts = []
        while count:
            # Somewhat more than are needed: the first that are kept are as good as any, and a second round is rare.
            lengths = torch.multinomial(mass, count + count // 16 + FEW, replacement=True, generator=generator)
            rows, values = draw(lengths, generator)
            kept = self._kept(values).nonzero().flatten()[:count]
            parts.append([part.index_select(0, kept) for part in (lengths, rows, values)])
            count -= len(kept)
        lengths, rows, values = map(torch.cat, zip(*parts, strict=True))
        return self._problems(lengths, rows, values)

    def _kept(self, values: Int[Tensor, " b"]) -> Bool[Tensor, " b"]:
        """Which values are short enough."""
        return (values > self._bounds[0]) & (values < self._bounds[1])

    @property
    def _bounds(self) -> tuple[int, int]:
        """What all values that are short enough lie between."""
        return -(10 ** (self.most - 1)), 10**self.most

    def _problems(self, lengths: Int[Tensor, " b"], rows: UInt8[Tensor, "b p"], values: Int[Tensor, " b"]) -> Problems:
        answer, answer_length = _written(values, self.most)
        rows = rows[:, : int(lengths.max())]
        return Problems(lengths[:, None], rows.long(), lengths, answer, answer_length, _operators(rows))

    # People

    def parse(self, text: str) -> Problems:
        """An expression of the grammar, folded or not; zeros in front of a number are dropped, and the minus sign of
        ``-0``. UsageError for what the grammar has not (a number alone, parentheses without an operator of their own, a
        minus sign before a parenthesis), and for a value longer than ``most``, which a model has no room for."""
        expression = _folded(self.vocab.decode(symbols_of(self, text)))
        result, (low, high) = value(expression), self._bounds
        if not low < result < high:
            raise UsageError(f"expression: a value has at most {self.most} characters, unlike that of {expression}")
        row = self.vocab.encode(expression).to(torch.uint8)
        return self._problems(torch.tensor([len(row)]), row[None], torch.tensor([result]))

    def reference(self, prompt: str) -> str:
        return str(value(prompt))

    def traits(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        """How many operators there are, and how deep parentheses are nested."""
        nested = (problems.prompt == OPEN).long() - (problems.prompt == CLOSE).long()
        return {"operators": problems.rounds, "depth of parentheses": nested.cumsum(1).amax(1)}

    def room(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        """A value is shorter than its expression."""
        return (sizes[:, 0] - 1).clamp(max=self.most)


def _operators(rows: UInt8[Tensor, "b p"]) -> Int[Tensor, " b"]:
    """How many operators there are: they stand behind a number or a parenthesis, unlike minus signs of numbers."""
    symbol = rows - PLUS  # all symbols before + wrap around to large numbers
    return ((symbol[:, 1:] <= TIMES - PLUS) & (symbol[:, :-1] > OPEN - PLUS)).sum(1)


def _written(values: Int[Tensor, " b"], most: int) -> tuple[Int[Tensor, "b a"], Int[Tensor, " b"]]:
    """Values of up to ``most`` characters as symbols, and how many."""
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


# What a person types


def _folded(text: str) -> str:
    """An expression as the grammar writes it."""
    _check(text)
    text = text.replace("--", "+").replace("+-", "-")
    text = re.sub(r"(?<!\d)0+(?=\d)", "", text)
    return re.sub(r"(?<![\d)])-(?=0)", "", text)


def _check(text: str) -> None:
    """UsageError, which says what is wrong and where, unless this is an expression of the grammar, not yet folded."""

    def wrong(reason: str) -> UsageError:
        return UsageError(f"expression: {reason}, in {text}")

    opened: list[int] = []
    operators, before = [0], "("  # on each level; what stands before: a digit as 0, the minus sign of a number as ~
    for place, symbol in enumerate(text, 1):
        if before == "~" and not symbol.isdigit():
            raise wrong(f"behind the minus sign at place {place - 1} stands {symbol} instead of a number")
        if (before == ")" and symbol.isdigit()) or (before in "0)" and symbol == "("):
            raise wrong(f"an operator is missing before place {place}")
        if before in "(+-*" and symbol in "+*)":
            raise wrong(f"at place {place} stands {symbol} instead of a number or (")
        if symbol == "(":
            opened.append(place)
            operators.append(0)
        elif symbol == ")":
            if not opened:
                raise wrong(f"the ) at place {place} closes nothing")
            if not operators.pop():
                raise wrong(f"there is no operator between ( at place {opened[-1]} and its )")
            opened.pop()
        elif before in "0)" and not symbol.isdigit():
            operators[-1] += 1
        before = "0" if symbol.isdigit() else "~" if symbol == "-" and before in "(+-*" else symbol
    if before not in "0)":
        raise wrong("a number is missing at the end")
    if opened:
        raise wrong(f"the ( at place {opened[-1]} is not closed")
    if not operators[0] and text[0] != "(":
        raise wrong("an operator is missing")


# Values


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
        values[part] = _values(text, _read(text), lengths[part])
    return values


@dataclass(frozen=True)
class _Step:
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


def _read(columns: UInt8[Tensor, "p b"]) -> list[_Step]:
    """The steps of a text. All rows' first blocks are read at once, then whatever has been found behind and within."""
    rows, text, steps = columns.shape[1], columns.view(-1), []
    closing, place = _closing(columns), torch.arange(columns.shape[1])
    while len(place):
        signed = text[place + rows] == MINUS
        lead = place + rows + rows * signed
        number, end = _numbers(text, lead, rows)
        nests = _nonzero(text[lead] == OPEN)
        end[nests] = closing[lead[nests]] + rows
        goes_on = _nonzero(text[end] != CLOSE)
        steps.append(_Step(place, torch.where(signed, -number, number), goes_on, nests))
        place = torch.cat([end[goes_on], lead[nests]])
    return steps


def _numbers(text: UInt8[Tensor, " t"], place: Int[Tensor, " n"], rows: int) -> tuple[Tensor, Tensor]:
    """The numbers that start at these places, and the places behind them; of what is no number, nothing."""
    number, end = torch.zeros(len(place), dtype=torch.float64), place.clone()
    longer = _nonzero(text[place] < PLUS)
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
    opens, closes = (_nonzero(text == symbol) for symbol in (OPEN, CLOSE))
    opens = opens[(opens % rows * count + depth[opens]).argsort(stable=True)]
    closes = closes[(closes % rows * count + depth[closes]).argsort(stable=True)]
    return torch.empty(len(text), dtype=torch.long).scatter_(0, opens, closes)


# By a block's first symbol: how the product that begins there joins the total, and whether what is before joins it.
ADDS = torch.tensor([0.0] * 10 + [1.0, -1.0, 0.0, 1.0], dtype=torch.float64)
JOINS = torch.tensor([0.0] * 10 + [0.0, 0.0, 1.0, 0.0], dtype=torch.float64)


def _values(columns: UInt8[Tensor, "p b"], steps: list[_Step], lengths: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
    """The values of a text's rows. Where float64 would round, Python's whole numbers do not."""
    found, exact = _work_out(columns, steps)
    values = torch.where(exact, found, 0).long()
    for row in (~exact).nonzero().flatten().tolist():
        expression = "".join(SYMBOLS[i] for i in columns[1 : int(lengths[row]) + 1, row].tolist())
        values[row] = max(-(2**63), min(value(expression), 2**63 - 1))
    return values


def _work_out(columns: UInt8[Tensor, "p b"], steps: list[_Step]) -> tuple[Float[Tensor, " b"], Bool[Tensor, " b"]]:
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


def _nonzero(flags: Bool[Tensor, " n"]) -> Int[Tensor, " m"]:
    """Where True stands. NumPy finds it several times as fast where there is no pattern to it."""
    return torch.from_numpy(np.flatnonzero(flags.numpy()))


# Drawing
#
# Folded, an expression is a first number or parenthesis, and then tails: an operator with a number or parenthesis each.
# Several derivations write the same. `+3` is + and 3, or - and -3; and n tails are bracketed in as many ways as
# Catalan's number of n, each of which takes VAL → EQ → VAL OP VAL n - 1 times. The tables have the sums of their
# probabilities, so there every expression has one derivation, of few steps: the first block and one for each tail.

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
        values[these] = _values(text, steps, lengths[part])
    back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    return rows.index_select(0, back), values.index_select(0, back)


def _write(
    known: _Tables, lengths: Int[Tensor, " b"], generator: Generator
) -> tuple[UInt8[Tensor, "p b"], list[_Step]]:
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
        goes_on, nests = _nonzero(state > 0), _nonzero(known.nests.index_select(0, block))
        text.index_fill_(0, end.index_select(0, nests) - rows, CLOSE)
        steps.append((block, lead, first, place, goes_on, nests))
        inside = known.inside.index_select(0, block.index_select(0, nests))
        state = torch.cat([state.index_select(0, goes_on), inside])
        place = torch.cat([end.index_select(0, goes_on), lead.index_select(0, nests)])
    block, lead, first = (torch.cat([step[part] for step in steps]) for part in range(3))
    numbers = _lengthen(known, text, block, lead, first, rows, generator).split([len(step[0]) for step in steps])
    return columns, [_Step(step[3], number, *step[4:]) for step, number in zip(steps, numbers, strict=True)]


def _lengthen(
    known: _Tables, text: Tensor, block: Tensor, lead: Tensor, first: Tensor, rows: int, generator: Generator
) -> Float[Tensor, " n"]:
    """The numbers of blocks, signed; their digits from the second on are drawn and written."""
    number, digits = first.double(), known.digits.index_select(0, block)
    longer, count = _nonzero(digits > 1), 1
    while len(longer):
        digit = torch.randint(10, longer.shape, generator=generator, dtype=torch.uint8)
        text.scatter_(0, lead.index_select(0, longer) + count * rows, digit)
        number.index_copy_(0, longer, number.index_select(0, longer) * 10 + digit)
        count += 1
        longer = longer.index_select(0, _nonzero(digits.index_select(0, longer) > count))
    return number.mul_(known.signed.index_select(0, block))


def _entries(known: _Tables, state: Int[Tensor, " n"], generator: Generator) -> Int[Tensor, " n"]:
    """A way to go on from each state."""
    at = torch.rand(len(state), dtype=torch.float64, generator=generator) * known.count.index_select(0, state)
    which = at.int()
    entry = known.first.index_select(0, state) + which
    kept = at - which < known.keep.index_select(0, entry)
    return torch.where(kept, entry, known.other.index_select(0, entry))
