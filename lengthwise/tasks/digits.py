"""Numbers as rows of digits, least significant first, padded with zeros: their two orders, and prompts of two."""

from __future__ import annotations

import itertools
import re
from functools import lru_cache
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from lengthwise.base.ranges import Range
from lengthwise.base.rows import shift_right
from lengthwise.base.types import SYMBOL, UsageError
from lengthwise.tasks import Task, symbols_of

EXACT = 2**53  # up to here, doubles hold every whole number
Base = Annotated[int, Range(2, 10)]
Order = Literal["least", "most"]  # which digit of a number is written first: the least or the most significant


def reorder(digits: Int[Tensor, "b n"], length: Int[Tensor, " b"], order: Order) -> Int[Tensor, "b n"]:
    """Digits least significant first ↔ in the order in which they are written (its own inverse). Each row has zeros
    beyond its length, and keeps them."""
    width = digits.shape[1]
    return shift_right(digits.flip(1), length - width, width) if order == "most" else digits


def number_length(digits: Int[Tensor, "b n"]) -> Int[Tensor, " b"]:
    """How many digits without leading zeros; zero has one."""
    position = torch.arange(1, digits.shape[1] + 1, dtype=torch.int32)
    return ((digits != 0) * position).amax(1).clamp(min=1).long()


def without_leading_zeros(
    digits: Int[Tensor, "*b n"], length: Int[Tensor, "*b"], others: Int[Tensor, "*b n"]
) -> Int[Tensor, "*b n"]:
    """For a zero as a number's top digit, one of the others, unless it is the number's only digit."""
    at = torch.arange(0, digits.numel(), digits.shape[-1]) + length.flatten() - 1  # the top digits, among all
    top = digits.flatten().index_select(0, at)
    drawn = torch.where((top == 0) & (length.flatten() > 1), others.flatten().index_select(0, at), top)
    return digits.flatten().index_copy(0, at, drawn).view_as(digits)


def carry(totals: Shaped[Tensor, "b n"], base: int, most: int) -> Int[Tensor, "b n"]:
    """Digits from columns' totals of 0 to ``most`` each, both least significant first; what is carried out of the last
    column is lost."""
    parts: list[Tensor] = []
    carry: Tensor | int = 0
    for columns in totals.split(_fitting(base, most), 1):
        powers = _powers(base, columns.shape[1] + 1)
        # Doubles are exact here, and divided in a fraction of the time that integers take.
        quotients = ((columns.double() @ powers[:-1] + carry)[:, None] / powers).floor_()
        parts.append(quotients[:, :-1].sub(quotients[:, 1:], alpha=base))
        carry = quotients[:, -1]
    return torch.cat(parts, 1).to(SYMBOL)


def words(digits: Int[Tensor, "*b n"], base: int) -> list[Int[Tensor, "*b"]]:
    """Numbers by the parts of their digits that a double holds exactly, least significant first."""
    parts = digits.double().split(_fitting(base, base - 1), -1)
    return [(part @ _powers(base, part.shape[-1])).long() for part in parts]


def _fitting(base: int, most: int) -> int:
    """How many columns of ``most`` each, and what is carried into them, make a number that a double holds exactly."""
    return next(count for count in itertools.count(1) if most * base ** (count + 1) >= EXACT)


@lru_cache(maxsize=64)
def _powers(base: int, count: int) -> Float[Tensor, " n"]:
    return torch.tensor([float(base**position) for position in range(count)], dtype=torch.double)


def join_numbers(
    first: Int[Tensor, "b n"], second: Int[Tensor, "b m"], lengths: Int[Tensor, "b 2"], order: Order, sign: int
) -> Int[Tensor, "b p"]:
    """Two numbers, written with a sign between them."""
    width = int(lengths.sum(1).max()) + 1
    left, right = reorder(first, lengths[:, 0], order), reorder(second, lengths[:, 1], order)
    behind = torch.nn.functional.pad(right, (1, 0), value=sign)
    row = shift_right(behind, lengths[:, 0], width)
    row[:, : left.shape[1]].bitwise_or_(left)
    return row


def split_numbers(
    task: Task, text: str, sign: int, parts: str = "numbers"
) -> tuple[Int[Tensor, " n"], Int[Tensor, " m"]]:
    """The two numbers that a person typed, as they stand. UsageError where they are not two."""
    ids = symbols_of(task, text)
    at = (ids == sign).nonzero().flatten()
    if len(at) != 1 or at[0] == 0 or at[0] == len(ids) - 1:
        symbol = task.symbols[sign]
        raise UsageError(f"{task.name}: a prompt is two {parts} and one '{symbol}' between them, not {text.strip()!r}")
    return ids[: at[0]], ids[at[0] + 1 :]


def as_read(text: str, order: Order) -> str:
    """A text whose numbers are written in this order, with each number's most significant digit first."""
    return text if order == "most" else re.sub(r"[0-9]+", lambda number: number[0][::-1], text)


def arithmetic(base: int) -> str:
    """What is asked of a language model: as in ReTran (ACL 2025), and in which base where it is not the usual one."""
    written = f" All numbers are written in base {base}, most significant digit first." if base != 10 else ""
    return f"Answer the math question.{written}"


def strip_zeros(number: Int[Tensor, " n"]) -> Int[Tensor, " m"]:
    """A number, most significant digit first, without its leading zeros."""
    return number[len(number) - int(number_length(number.flip(0)[None])) :]
