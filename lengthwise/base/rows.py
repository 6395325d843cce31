"""Vectorised masks and shifts for rows of different lengths. They copy windows of one long row, which is several times
as fast as comparing positions with lengths, or indexing."""

from __future__ import annotations

from functools import lru_cache

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor


def length_mask(length: Int[Tensor, "*b"], width: int) -> Bool[Tensor, "*b width"]:
    """Return a mask that is True at each row's first ``length`` positions; lengths are 0 to ``width``."""
    return _mask_first(length, width, torch.bool)


def zero_after(rows: Int[Tensor, "*b n"], length: Int[Tensor, "*b"]) -> Int[Tensor, "*b n"]:
    """Return a copy of the rows in which every number after a row's length is 0."""
    return rows & _mask_first(length, rows.shape[-1], rows.dtype)


def shift_right(rows: Shaped[Tensor, "b n"], offsets: Int[Tensor, " b"], width: int) -> Shaped[Tensor, "b width"]:
    """Shift each row right by its offset, from −n to ``width``; the result has ``width`` columns, filled with 0."""
    count, size = rows.shape
    spaced = rows.new_zeros(count + 1, width + size)  # the zeros before a row are also those after the previous row
    spaced[:count, width:] = rows
    start = torch.arange(width, count * (width + size) + 1, width + size)
    return extract_windows(spaced.flatten(), start - offsets, width)


def extract_windows(row: Shaped[Tensor, " n"], start: Int[Tensor, " b"], width: int) -> Shaped[Tensor, "b width"]:
    """Return, for each ``start``, the ``width`` numbers of ``row`` from that index on."""
    return row.unfold(0, width, 1).index_select(0, start)


def _mask_first(length: Int[Tensor, "*b"], width: int, dtype: torch.dtype) -> Shaped[Tensor, "*b width"]:
    """Return a bit mask: all bits set at each row's first ``length`` positions, 0 elsewhere."""
    bits = extract_windows(_half_mask(width, dtype), width - length.flatten(), width)
    return bits if length.dim() == 1 else bits.view(*length.shape, width)


@lru_cache(maxsize=256)
def _half_mask(width: int, dtype: torch.dtype) -> Shaped[Tensor, " n"]:
    """Return 2 · width numbers: all bits set in the first half, 0 in the second."""
    row = torch.zeros(2 * width, dtype=dtype)
    row[:width] = True if dtype == torch.bool else -1
    return row
