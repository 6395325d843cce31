"""Sample arithmetic expressions of given lengths, exactly from the distribution of ReTran's grammar (ACL 2025), and
compute their values.

An expression is a first operand (a number or a parenthesis) and n tails; a tail is an operator and an operand. Several
derivations give the same expression. For example, `+3` comes from + and 3 or from - and -3. Also, n tails can be
bracketed in C_n ways (Catalan's number); each way applies VAL → EQ, then EQ → VAL OP VAL, n - 1 times. The tables hold
the summed probabilities of all derivations. So sampling takes few steps: one for the first operand of an expression and
one for each tail.

A block is an operand together with the symbol before it: an operator, or the ( before the first operand.
"""

from __future__ import annotations

import string
from functools import cache
from math import comb
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Generator, Tensor

from lengthwise.base.types import UsageError

# EQ → VAL OP VAL | ( VAL OP VAL ); VAL → EQ | NUM; NUM → 0 | NUMH NUMT; NUMH → d | -d, d from 1 to 9; NUMT → d NUMT |
# nothing, d from 0 to 9; digits are uniform. Finally `--` is replaced by `+`, and `+-` by `-`.
# The probabilities of the rules:
P_PARENTHESES = 0.5  # EQ → ( VAL OP VAL )
P_NESTED = 0.46  # VAL → EQ
OPERATORS = {"+": 0.35, "-": 0.35, "*": 0.3}  # OP
P_ZERO = 0.05  # NUM → 0
P_NEGATIVE = 0.5  # NUMH → -d
P_LONGER = 0.2  # NUMT → d NUMT

SYMBOLS = (*string.digits, *OPERATORS, "(", ")")
PLUS, MINUS, TIMES, OPEN, CLOSE = range(10, 15)  # ids

MAX_CHARACTERS = 128  # largest length of a sampled expression; longer ones would need large tables
ANY_DIGIT = 9  # in ``_Blocks.lead_symbol``: any digit from 1 to 9


class _Blocks(NamedTuple):
    """All blocks of expressions up to a certain length; element i of each field belongs to block i."""

    first_symbol: UInt8[Tensor, " k"]
    lead: Int[Tensor, " k"]  # index of the number's first digit, or of the inner (: 1, or 2 after a minus sign
    lead_symbol: UInt8[Tensor, " k"]  # the symbol at ``lead``: 0, ( or ANY_DIGIT; the later digits are uniform
    length: Int[Tensor, " k"]
    digit_count: UInt8[Tensor, " k"]  # number of digits; 0 if the operand is a parenthesis
    number_sign: Float[Tensor, " k"]  # 1 or -1
    inside_length: Int[Tensor, " k"]  # number of symbols inside the parentheses; 0 if there are none
    weight: Float[Tensor, " k"]  # probability of the block, except that of the symbols inside its parentheses


def _build_blocks(max_length: int) -> _Blocks:
    """Return the blocks of expressions of up to ``max_length`` symbols."""
    plus, minus, times = OPERATORS.values()
    positive, negative = 1 - P_NEGATIVE, P_NEGATIVE
    rows = []
    for sign, unsigned, signed, other in (
        (OPEN, positive, negative, 1.0),
        (PLUS, plus * positive + minus * negative, 0.0, plus),
        (MINUS, minus * positive + plus * negative, 0.0, minus),
        (TIMES, times * positive, times * negative, times),
    ):
        rows.append((sign, 1, 0, 2, 1, 1, 0, other * (1 - P_NESTED) * P_ZERO))
        for digits in range(1, max_length):
            number = (1 - P_NESTED) * (1 - P_ZERO) * P_LONGER ** (digits - 1) * (1 - P_LONGER)
            rows.append((sign, 1, ANY_DIGIT, 1 + digits, digits, 1, 0, unsigned * number))
            rows.append((sign, 2, ANY_DIGIT, 2 + digits, digits, -1, 0, signed * number))
        nested = other * P_NESTED * P_PARENTHESES
        rows += [(sign, 1, OPEN, 3 + inside, 0, 1, inside, nested) for inside in range(3, max_length - 1)]
    small, index, real = torch.uint8, torch.long, torch.float64
    kinds = (small, index, small, index, small, real, index, real)
    columns = zip(zip(*rows, strict=True), kinds, strict=True)
    return _Blocks(*(torch.tensor(column, dtype=kind) for column, kind in columns))


class _Tables(NamedTuple):
    """The tables for sampling. A state describes the text still to be written. An entry is one transition from a state:
    the next block, and the state after that block. The entries of a state are contiguous."""

    mass: Float[Tensor, " n"]  # probability of all expressions of each length
    complete_offset: int  # the state of a complete expression of n symbols is complete_offset + n
    first_entry: Int[Tensor, " s"]  # first entry of each state
    entry_count: Float[Tensor, " s"]  # number of entries of each state
    keep_probability: Float[Tensor, " e"]  # probability of keeping a drawn entry (see ``_build_alias_tables``)
    alias: Int[Tensor, " e"]  # the entry that replaces a drawn entry which is not kept
    block: Int[Tensor, " e"]
    next_state: Int[Tensor, " e"]  # the state after the block; 0: the text is complete
    blocks: _Blocks
    inside_state: Int[Tensor, " k"]  # the state of the contents of each block's parentheses


def get_tables(max_length: int) -> _Tables:
    """Return the tables for expressions of up to ``max_length`` symbols. Raises UsageError above ``MAX_CHARACTERS``."""
    if max_length > MAX_CHARACTERS:
        raise UsageError(f"expression: at most {MAX_CHARACTERS} characters can be drawn, not {max_length}")
    return _build_tables(-(-max_length // 8) * 8)  # few distinct tables are cached


@cache
def _build_tables(max_length: int) -> _Tables:
    blocks = _build_blocks(max_length)
    # A state is an index into the table of probabilities. Row k, column n: k tails with n symbols in total. Row
    # ``inner``: the n symbols inside parentheses. Row ``complete``: a complete expression of n symbols.
    max_tails = (max_length - 1) // 2  # largest number of tails
    inner, complete = max_tails + 1, max_tails + 2
    mass = torch.zeros(max_tails + 3, max_length + 1, dtype=torch.float64)
    mass[0, 0] = mass[inner, 0] = 1  # no tails are left; the block has no parentheses
    steps: dict[int, tuple[Tensor, Tensor, Tensor]] = {}  # for each state: blocks, next states, weights

    def add_transitions(
        row: int, symbol_count: int, block_numbers: Tensor, tail_count: Tensor, tail_weight: Tensor | float = 1.0
    ) -> None:
        """Add the transitions from a state: the blocks ``block_numbers``, each followed by ``tail_count`` tails."""
        hidden = int(row >= inner)  # the first block's ( is not counted among the symbols
        remaining = symbol_count + hidden - blocks.length[block_numbers]
        state = tail_count * mass.shape[1] + remaining.clamp(min=0)
        rest_probability = mass.view(-1)[state] * mass[inner, blocks.inside_length[block_numbers]]
        weight = blocks.weight[block_numbers] * rest_probability * tail_weight * (remaining >= 0)
        possible = weight > 0
        steps[row * mass.shape[1] + symbol_count] = block_numbers[possible], state[possible], weight[possible]
        mass[row, symbol_count] = weight.sum()

    opens = blocks.first_symbol == OPEN
    tail, first = (~opens).nonzero().flatten(), opens.nonzero().flatten()
    alone = first[blocks.inside_length[first] > 0]  # an expression may be a single pair of parentheses
    tails = torch.arange(1, max_tails + 1).repeat_interleave(len(first))
    # The weight of joining k tails: the number of ways to bracket them times the probability of each.
    bare = P_NESTED * (1 - P_PARENTHESES)
    bracketings = [comb(2 * k, k) // (k + 1) * bare ** (k - 1) for k in range(1, max_tails + 1)]
    first, spine = first.repeat(max_tails), torch.tensor([0, *bracketings], dtype=torch.float64)[tails]
    shape = torch.cat([(1 - P_PARENTHESES) * spine, torch.full_like(spine[:1], 1 / P_NESTED).expand(len(alone))])
    for symbols in range(2, max_length + 1):
        for k in range(1, min(max_tails, symbols // 2) + 1):
            add_transitions(k, symbols, tail, torch.tensor(k - 1))
        add_transitions(inner, symbols, first, tails, spine)
        add_transitions(complete, symbols, torch.cat([first, alone]), torch.cat([tails, 0 * alone]), shape)
    count = torch.tensor([len(steps[state][0]) if state in steps else 0 for state in range(mass.numel())])
    block, state, weight = (torch.cat(parts) for parts in zip(*(steps[s] for s in sorted(steps)), strict=True))
    keep, alias = _build_alias_tables(weight.tolist(), count.tolist())
    first, inside = (count.cumsum(0) - count).int(), (inner * mass.shape[1] + blocks.inside_length).int()
    entries = keep, alias, block.int(), state.int()
    return _Tables(mass[complete], complete * mass.shape[1], first, count.double(), *entries, blocks, inside)


def _build_alias_tables(weights: list[float], counts: list[int]) -> tuple[Float[Tensor, " e"], Int[Tensor, " e"]]:
    """Return the tables ``keep_probability`` and ``alias`` of the alias method (Walker 1977), which draws a uniform
    entry of a state, and then keeps it or replaces it by its alias."""
    keep, alias, start = list(weights), list(range(len(weights))), 0
    for count in counts:
        entries = range(start, start + count)
        scale = count / (sum(weights[start : start + count]) or 1)
        for i in entries:
            keep[i] *= scale
        light, heavy = [i for i in entries if keep[i] < 1], [i for i in entries if keep[i] >= 1]
        while light and heavy:
            i, j = light.pop(), heavy[-1]
            alias[i] = j
            keep[j] -= 1 - keep[i]
            if keep[j] < 1:
                light.append(heavy.pop())
        start += count
    return torch.tensor(keep, dtype=torch.float64), torch.tensor(alias, dtype=torch.int32)


def draw_expressions(
    lengths: Int[Tensor, " b"], generator: Generator
) -> tuple[UInt8[Tensor, "b p"], Int[Tensor, " b"]]:
    """Sample expressions of the given lengths; return their symbol ids, padded with zeros, and their values."""
    tables, order = get_tables(int(lengths.max())), lengths.short().argsort()
    rows = torch.zeros(len(lengths), int(lengths.max()), dtype=torch.uint8)
    values, start = torch.empty_like(lengths), 0
    for part in order.split(32768):  # more rows at once are not faster
        text, steps = _write_expressions(tables, lengths[part], generator)
        written = slice(start, start := start + len(part))
        rows[written, : len(text) - 2] = text[1:-1].T
        values[written] = evaluate_steps(text, steps, lengths[part])
    inverse_order = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    return rows.index_select(0, inverse_order), values.index_select(0, inverse_order)


def _write_expressions(
    tables: _Tables, lengths: Int[Tensor, " b"], generator: Generator
) -> tuple[UInt8[Tensor, "p b"], list[DrawingStep]]:
    """Sample expressions; return their symbols, one expression per column, and the steps that drew them. The first step
    draws the first block of every expression; each later step draws the blocks that follow those of the previous step,
    or are inside their parentheses."""
    rows, blocks = len(lengths), tables.blocks
    columns = torch.zeros(int(lengths.max()) + 2, rows, dtype=torch.uint8)
    text, leads, ends = columns.view(-1), blocks.lead * rows, blocks.length * rows
    state, start, steps = (tables.complete_offset + lengths).int(), torch.arange(rows), []
    while len(state):
        # Draw a transition from each state.
        entry_counts = tables.entry_count.index_select(0, state)
        drawn = torch.rand(len(state), dtype=torch.float64, generator=generator) * entry_counts
        index = drawn.int()
        entry = tables.first_entry.index_select(0, state) + index
        is_kept = drawn - index < tables.keep_probability.index_select(0, entry)
        entry = torch.where(is_kept, entry, tables.alias.index_select(0, entry))
        block, state = tables.block.index_select(0, entry), tables.next_state.index_select(0, entry)
        lead_symbol, digits = blocks.lead_symbol.index_select(0, block), blocks.digit_count.index_select(0, block)
        digit = torch.randint(1, 10, lead_symbol.shape, generator=generator, dtype=torch.uint8)
        first = torch.where(lead_symbol == ANY_DIGIT, digit, lead_symbol)
        lead, end = (offsets.index_select(0, block).add_(start) for offsets in (leads, ends))
        text.scatter_(0, start, blocks.first_symbol.index_select(0, block))
        text.scatter_(0, start + rows, MINUS)  # overwritten below unless the number has a minus sign
        text.scatter_(0, lead, first)
        followed, nested = find_true(state > 0), find_true(digits == 0)
        text.index_fill_(0, end.index_select(0, nested) - rows, CLOSE)
        steps.append((block, digits, lead, first, start, followed, nested))
        inside = tables.inside_state.index_select(0, block.index_select(0, nested))
        state = torch.cat([state.index_select(0, followed), inside])
        start = torch.cat([end.index_select(0, followed), lead.index_select(0, nested)])
    # Draw and write the numbers' second and later digits.
    block, digits, lead, first = (torch.cat([step[part] for step in steps]) for part in range(4))
    number, longer, count = first.double(), find_true(digits > 1), 1
    while len(longer):
        digit = torch.randint(10, longer.shape, generator=generator, dtype=torch.uint8)
        text.scatter_(0, lead.index_select(0, longer) + count * rows, digit)
        number.index_copy_(0, longer, number.index_select(0, longer) * 10 + digit)
        count += 1
        longer = longer.index_select(0, find_true(digits.index_select(0, longer) > count))
    numbers = number.mul_(blocks.number_sign.index_select(0, block)).split([len(step[0]) for step in steps])
    return columns, [DrawingStep(step[4], number, *step[5:]) for step, number in zip(steps, numbers, strict=True)]


def evaluate(expression: str) -> int:
    """Return the value of an expression of the grammar, of any size, in one pass over its symbols.

    The value of the symbols read since the last open parenthesis is total + term · number. A stack holds total and term
    from before each open parenthesis.
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


class DrawingStep(NamedTuple):
    """A step that draws blocks of many expressions at once. In memory, an additional ( precedes each complete
    expression. The next step draws the blocks that follow these blocks, then the first blocks inside their
    parentheses."""

    start: Int[Tensor, " n"]  # index of the block's first symbol in a flattened text
    number: Float[Tensor, " n"]  # the signed number; undefined for a parenthesis
    followed_indices: Int[Tensor, " m"]  # indices of the blocks that another block follows
    nested_indices: Int[Tensor, " i"]  # indices of the blocks with a parenthesis


# For each first symbol of a block: the sign with which the product that begins there is added to the total (0 for *, as
# it is no new product), and 1 if the block continues the product before it.
TOTAL_SIGNS = torch.tensor([0.0] * 10 + [1.0, -1.0, 0.0, 1.0], dtype=torch.float64)
CONTINUES_PRODUCT = torch.tensor([0.0] * 10 + [0.0, 0.0, 1.0, 0.0], dtype=torch.float64)


def evaluate_steps(
    columns: UInt8[Tensor, "p b"], steps: list[DrawingStep], lengths: Int[Tensor, " b"]
) -> Int[Tensor, " b"]:
    """Return the values of the expressions in ``columns``, clamped to 64 bits. Values are computed in float64 or, if
    float64 is not exact, with Python's integers."""
    text, exact = columns.view(-1), torch.ones(columns.shape[1], dtype=torch.bool)
    # The text of a block extends from the block to the end of the parenthesis around it. For each block, from the last
    # step to the first, compute the product at the beginning of its text, and the total of the rest.
    product = total = torch.zeros(0, dtype=torch.float64)
    for step in reversed(steps):
        sign, following_count = text.index_select(0, step.start).int(), len(step.followed_indices)
        number = step.number.index_copy(0, step.nested_indices, total[following_count:])
        product = torch.ones_like(number).index_copy_(0, step.followed_indices, product[:following_count]).mul_(number)
        total = torch.zeros_like(number).index_copy_(0, step.followed_indices, total[:following_count])
        total.addcmul_(product, TOTAL_SIGNS.index_select(0, sign))
        fits = torch.maximum(product.abs(), total.abs()) < 2.0**53  # where float64 is exact; False for NaN too
        if not fits.all():
            exact[step.start[~fits] % len(exact)] = False
        joins = CONTINUES_PRODUCT.index_select(0, sign)
        product = torch.addcmul(1 - joins, product, joins)
    values = torch.where(exact, total, 0).long()
    for row in (~exact).nonzero().flatten().tolist():
        expression = "".join(SYMBOLS[i] for i in columns[1 : int(lengths[row]) + 1, row].tolist())
        values[row] = max(-(2**63), min(evaluate(expression), 2**63 - 1))
    return values


def find_true(flags: Bool[Tensor, " n"]) -> Int[Tensor, " m"]:
    """Return the indices of True values. NumPy finds them several times as fast as torch in irregular patterns."""
    return torch.from_numpy(np.flatnonzero(flags.numpy()))
