"""Rows of their own lengths, marked and moved all at once.

A row is cut, as a window, out of a longer one that stands in memory once: copying runs of numbers is several times as
quick as comparing places with lengths, or looking up each number by itself.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor


def within(length: Int[Tensor, "*b"], width: int) -> Bool[Tensor, "*b width"]:
    """True in each row's first ``length`` places, 0 to ``width``."""
    return _first(length, width, torch.bool)


def clipped(rows: Int[Tensor, "*b n"], length: Int[Tensor, "*b"]) -> Int[Tensor, "*b n"]:
    """Rows with zeros beyond their lengths."""
    return rows & _first(length, rows.shape[-1], rows.dtype)


def shifted(rows: Shaped[Tensor, "b n"], by: Int[Tensor, " b"], width: int) -> Shaped[Tensor, "b width"]:
    """Each row moved ``by`` places to the right, −n to ``width``, among ``width`` places; the others are 0."""
    count, size = rows.shape
    apart = rows.new_zeros(count + 1, width + size)  # what stands before a row also stands after the one before it
    apart[:count, width:] = rows
    start = torch.arange(width, count * (width + size) + 1, width + size)
    return windows(apart.flatten(), start - by, width)


def windows(row: Shaped[Tensor, " n"], start: Int[Tensor, " b"], width: int) -> Shaped[Tensor, "b width"]:
    """So many places of one row, from each start on."""
    return row.unfold(0, width, 1).index_select(0, start)


def _first(length: Int[Tensor, "*b"], width: int, dtype: torch.dtype) -> Shaped[Tensor, "*b width"]:
    """All bits of each row's first ``length`` places."""
    bits = windows(_half(width, dtype), width - length.flatten(), width)
    return bits if length.dim() == 1 else bits.view(*length.shape, width)


@lru_cache(maxsize=256)
def _half(width: int, dtype: torch.dtype) -> Shaped[Tensor, " n"]:
    """All bits of the first ``width`` places of twice as many."""
    row = torch.zeros(2 * width, dtype=dtype)
    row[:width] = True if dtype == torch.bool else -1
    return row
