"""Operations on numbers, stored as rows of digits, least significant first and padded with zeros; and on prompts of
two numbers."""

from __future__ import annotations

import itertools
import re
from functools import lru_cache
from typing import Annotated, Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from lengthwise.base.ranges import Range
from lengthwise.base.rows import shift_right
from lengthwise.base.types import SYMBOL_DTYPE, UsageError
from lengthwise.tasks import Task, parse_symbols

MAX_EXACT_INTEGER = 2**53  # up to here, doubles hold every whole number
Base = Annotated[int, Range(2, 10)]
Order = Literal["least", "most"]  # which digit of a number is written first: the least or the most significant


def reorder(digits: Int[Tensor, "b n"], length: Int[Tensor, " b"], order: Order) -> Int[Tensor, "b n"]:
    """Convert rows of digits from least significant first to ``order``, or back. Zeros after a row's end stay there."""
    width = digits.shape[1]
    return shift_right(digits.flip(1), length - width, width) if order == "most" else digits


def count_digits(digits: Int[Tensor, "b n"]) -> Int[Tensor, " b"]:
    """Return each number's count of digits without leading zeros; zero has one digit."""
    position = torch.arange(1, digits.shape[1] + 1, dtype=torch.int32)
    return ((digits != 0) * position).amax(1).clamp(min=1).long()


def replace_leading_zeros(
    digits: Int[Tensor, "*b n"], length: Int[Tensor, "*b"], replacements: Int[Tensor, "*b n"]
) -> Int[Tensor, "*b n"]:
    """Replace the top digit of numbers of several digits, if it is zero, by the digit of ``replacements`` at the same
    position."""
    tops = torch.arange(0, digits.numel(), digits.shape[-1]) + length.flatten() - 1  # indices of the top digits
    top = digits.flatten().index_select(0, tops)
    drawn = torch.where((top == 0) & (length.flatten() > 1), replacements.flatten().index_select(0, tops), top)
    return digits.flatten().index_copy(0, tops, drawn).view_as(digits)


def propagate_carries(totals: Shaped[Tensor, "b n"], base: int, largest_total: int) -> Int[Tensor, "b n"]:
    """Convert column totals, from 0 to ``largest_total``, to digits in ``base``, both least significant first. A carry
    out of the last column is lost."""
    parts: list[Tensor] = []
    carry: Tensor | int = 0
    for columns in totals.split(_count_exact_columns(base, largest_total), 1):
        powers = _compute_powers(base, columns.shape[1] + 1)
        # Doubles are exact here, and divided in a fraction of the time that integers take.
        quotients = ((columns.double() @ powers[:-1] + carry)[:, None] / powers).floor_()
        parts.append(quotients[:, :-1].sub(quotients[:, 1:], alpha=base))
        carry = quotients[:, -1]
    return torch.cat(parts, 1).to(SYMBOL_DTYPE)


def to_exact_integers(digits: Int[Tensor, "*b n"], base: int) -> list[Int[Tensor, "*b"]]:
    """Split numbers into integers that a double holds exactly, least significant part first."""
    parts = digits.double().split(_count_exact_columns(base, base - 1), -1)
    return [(part @ _compute_powers(base, part.shape[-1])).long() for part in parts]


def argsort_rows(digits: Int[Tensor, "b n d"], is_number: Bool[Tensor, "b n"]) -> Int[Tensor, "b n"]:
    """Return the indices that sort up to 64 numbers per row in ascending order. Equal numbers keep their order;
    padding, where ``is_number`` is False, comes last. Numbers may exceed 53 bits, so they are sorted by one 53-bit part
    after the other, the lowest first."""
    *lower, highest = to_exact_integers(digits, base=10)
    order = torch.arange(digits.shape[1]).expand(digits.shape[:2])
    for word in (*lower, highest.masked_fill(~is_number, MAX_EXACT_INTEGER)):
        # Sort word and index as one number of 53 and 6 bits, in two thirds of the time of torch's stable sort.
        keys = word.gather(1, order) * 64 + torch.arange(order.shape[1])
        order = order.gather(1, keys.sort(1).values & 63)
    return order


def _count_exact_columns(base: int, largest_total: int) -> int:
    """Return the largest number of columns of which a double holds the exact value, a carry included. A column's total
    is at most ``largest_total``."""
    return next(count for count in itertools.count(1) if largest_total * base ** (count + 1) >= MAX_EXACT_INTEGER)


@lru_cache(maxsize=64)
def _compute_powers(base: int, count: int) -> Float[Tensor, " n"]:
    return torch.tensor([float(base**position) for position in range(count)], dtype=torch.double)


def join_numbers(
    first: Int[Tensor, "b n"], second: Int[Tensor, "b m"], lengths: Int[Tensor, "b 2"], order: Order, sign: int
) -> Int[Tensor, "b p"]:
    """Return rows with the first number, the id ``sign`` and the second number, both numbers in digit order
    ``order``."""
    width = int(lengths.sum(1).max()) + 1
    left, right = reorder(first, lengths[:, 0], order), reorder(second, lengths[:, 1], order)
    sign_and_right = torch.nn.functional.pad(right, (1, 0), value=sign)
    row = shift_right(sign_and_right, lengths[:, 0], width)
    row[:, : left.shape[1]].bitwise_or_(left)
    return row


def split_numbers(
    task: Task, text: str, sign: int, noun: str = "numbers"
) -> tuple[Int[Tensor, " n"], Int[Tensor, " m"]]:
    """Return the symbol ids of the two numbers in a typed prompt, in the typed order. Raises UsageError unless the text
    is two numbers with one ``sign`` between them; the error calls the numbers ``noun``."""
    ids = parse_symbols(task, text)
    sign_positions = (ids == sign).nonzero().flatten()
    if len(sign_positions) != 1 or sign_positions[0] == 0 or sign_positions[0] == len(ids) - 1:
        symbol = task.symbols[sign]
        raise UsageError(f"{task.name}: write two {noun} with one '{symbol}' between them, not {text.strip()!r}")
    return ids[: sign_positions[0]], ids[sign_positions[0] + 1 :]


def to_reading_order(text: str, order: Order) -> str:
    """Rewrite a text whose numbers are in ``order`` so that each has its most significant digit first."""
    return text if order == "most" else re.sub(r"[0-9]+", lambda number: number[0][::-1], text)
