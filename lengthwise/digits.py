"""Numbers as rows of digits, least significant first, padded with zeros: their two orders, and prompts of two."""

from __future__ import annotations

import re
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from lengthwise.tasks import Task, symbols_of, within
from lengthwise.types import UsageError

Order = Literal["least", "most"]  # which digit of a number is written first: the least or the most significant


def ordered(digits: Int[Tensor, "b n"], length: Int[Tensor, " b"], order: Order) -> Int[Tensor, "b n"]:
    """Digits least significant first ↔ in the order in which they are written (its own inverse), each row within its
    length."""
    width = digits.shape[1]
    if order == "most":
        digits = digits.gather(1, (length[:, None] - 1 - torch.arange(width)).clamp(min=0))
    return digits * within(length, width)


def number_length(digits: Int[Tensor, "b n"]) -> Int[Tensor, " b"]:
    """How many digits without leading zeros; zero has one."""
    place = torch.arange(1, digits.shape[1] + 1)
    return torch.where(digits != 0, place, 1).max(1).values


def without_leading_zeros(
    digits: Int[Tensor, "*b n"], length: Int[Tensor, "*b"], others: Int[Tensor, "*b n"]
) -> Int[Tensor, "*b n"]:
    """For a zero in a number's top place, one of the others, unless it is the number's only digit."""
    place, length = torch.arange(digits.shape[-1]), length[..., None]
    return torch.where((place == length - 1) & (length > 1) & (digits == 0), others, digits)


def joined(
    first: Int[Tensor, "b n"], second: Int[Tensor, "b m"], lengths: Int[Tensor, "b 2"], order: Order, sign: int
) -> Int[Tensor, "b p"]:
    """Two numbers, written with a sign between them."""
    left, right = ordered(first, lengths[:, 0], order), ordered(second, lengths[:, 1], order)
    place = torch.arange(int(lengths.sum(1).max()) + 1).expand(len(lengths), -1)
    after = place - lengths[:, :1] - 1
    one = left.gather(1, place.clamp(max=left.shape[1] - 1))
    two = right.gather(1, after.clamp(0, right.shape[1] - 1))
    row = torch.where(after < -1, one, torch.where(after < 0, sign, two))
    return row * within(lengths.sum(1) + 1, row.shape[1])


def parted(task: Task, text: str, sign: int, parts: str = "numbers") -> tuple[Int[Tensor, " n"], Int[Tensor, " m"]]:
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


def stripped(number: Int[Tensor, " n"]) -> Int[Tensor, " m"]:
    """A number, most significant digit first, without its leading zeros."""
    return number[len(number) - int(number_length(number.flip(0)[None])) :]
