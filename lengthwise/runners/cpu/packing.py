"""Packed rows, without padding, so that layers compute real tokens only.

``Ragged`` stores one row after the other; ``Packing``, for recurrent models, stores one position after the other, like
torch's ``PackedSequence``. Rows that end or halt first are sorted last, so the rows that continue are always the first
ones, and no data are moved.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable

from lengthwise.base.types import Inputs
from lengthwise.runners import Logits, Mask


def select_unique(x: Float[Tensor, "*b d"], positions: Int[Tensor, " m"]) -> Float[Tensor, "m d"]:
    """Select positions by distinct indices. Their gradients are copied, which is faster than accumulating them."""
    return _SelectRows.apply(x.reshape(-1, x.shape[-1]), positions)


def group_by_length(inputs: Inputs, group_positions: int) -> list[Int[Tensor, " r"]]:
    """Return row indices in groups of about ``group_positions`` padded positions, longest rows first, so that a group
    needs little padding and fits into the cache. A batch of fewer than 2 · ``group_positions`` positions is one
    group."""
    rows, width = inputs.tokens.shape
    if rows * width < 2 * group_positions:
        return [torch.arange(rows)]
    # A stable sort, so that results do not depend on how ties are broken.
    order = inputs.padding_mask.sum(1).argsort(descending=True, stable=True)
    return list(order.split(max(1, group_positions // width)))


def restore_order(logits: Logits, rows: Int[Tensor, " b"], positions: Mask) -> Logits:
    """Reorder logits at ``positions``, row by row, from the order of ``rows`` to the batch's order."""
    number = (positions.flatten().cumsum(0) - 1).view(positions.shape)  # index of each result in the batch's order
    return select_unique(logits, number[rows][positions[rows]].argsort())


class _SelectRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, positions: Tensor) -> Tensor:
        ctx.indices, ctx.count = positions, len(x)
        return x.index_select(0, positions)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.new_zeros(ctx.count, gradient.shape[1]).index_copy_(0, ctx.indices, gradient), None


@dataclass(frozen=True, slots=True)
class Ragged:
    """Maps packed positions to padded ones, for rows that are padded on the right."""

    ends: list[int]  # end of each row among packed positions
    width: int  # width of the padded rows
    padded_index: Int[Tensor, " n"]  # index of each packed position in the flattened padded rows

    @staticmethod
    def from_mask(padding_mask: Bool[Tensor, "b t"]) -> Ragged:
        ends = list(accumulate(padding_mask.sum(1).tolist()))
        return Ragged(ends, padding_mask.shape[1], padding_mask.flatten().nonzero()[:, 0])

    def find_packed_positions(self, rows: slice) -> slice:
        """Return the packed positions of contiguous rows."""
        start, stop, _ = rows.indices(len(self.ends))
        return slice(self.ends[start - 1] if start else 0, self.ends[stop - 1])

    def take(self, rows: slice) -> Ragged:
        """Select contiguous rows."""
        start, positions = rows.start or 0, self.find_packed_positions(rows)
        index = self.padded_index[positions]
        ends = [end - positions.start for end in self.ends[rows]]
        return Ragged(ends, self.width, index - start * self.width if start else index)

    def select(self, positions: Int[Tensor, " m"]) -> Ragged:
        """Select packed positions by index, in increasing order."""
        # A row's new end is the number of selected positions before its old end.
        ends = torch.searchsorted(positions, torch.tensor(self.ends)).tolist()
        return Ragged(ends, self.width, self.padded_index[positions])

    @property
    def is_full(self) -> bool:
        """True if no row has padding."""
        return len(self.padded_index) == len(self.ends) * self.width

    def pack(self, x: Shaped[Tensor, "b t ..."]) -> Shaped[Tensor, "n ..."]:
        return x.flatten(0, 1) if self.is_full else x.flatten(0, 1).index_select(0, self.padded_index)

    def unpack(self, x: Shaped[Tensor, "n ..."]) -> Shaped[Tensor, "b t ..."]:
        """Invert ``pack``; padding is 0."""
        rows, rest = len(self.ends), x.shape[1:]
        if self.is_full:
            return x.view(rows, self.width, *rest)
        return x.new_zeros(rows * self.width, *rest).index_copy_(0, self.padded_index, x).view(rows, self.width, *rest)


@dataclass(frozen=True, slots=True)
class PackedTensor:
    """A tensor of packed positions, with its ``Ragged``."""

    value: Shaped[Tensor, "n ..."]
    ragged: Ragged

    def take(self, rows: slice) -> Self:
        return type(self)(self.value[self.ragged.find_packed_positions(rows)], self.ragged.take(rows))

    def select(self, positions: Int[Tensor, " m"]) -> Self:
        """Select positions by index, in increasing order."""
        return type(self)(self.value.index_select(0, positions), self.ragged.select(positions))

    def __getitem__(self, positions: Bool[Tensor, "b t"]) -> Float[Tensor, "m d"]:
        """Select by a mask of padded rows, like indexing the padded tensor; no selected position may be padding."""
        return self.value[positions.flatten()[self.ragged.padded_index]]


class Packing(NamedTuple):
    """The order of rows by length, longest first, and the number of rows at each position."""

    rows: Int[Tensor, " b"]  # row indices, longest row first
    row_counts: list[int]  # number of rows that reach each position
    is_reordered: bool  # False if the batch is already in this order

    @staticmethod
    def from_mask(padding_mask: Bool[Tensor, "b t"]) -> Packing:
        """Build the packing of rows that are padded on the right."""
        lengths, counts = padding_mask.sum(1), padding_mask.sum(0)
        rows = lengths.argsort(descending=True, stable=True)
        return Packing(rows, counts[counts > 0].tolist(), bool((lengths.diff() > 0).any()))

    def sort_rows(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        """Sort rows by length."""
        return x[self.rows] if self.is_reordered else x

    def pack(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "n d"]:
        """Return all real tokens, position by position."""
        by_position = self.sort_rows(x)[:, : len(self.row_counts)].transpose(0, 1)
        return torch.cat([part[:count] for part, count in zip(by_position, self.row_counts, strict=True)])

    def unpack(self, x: Float[Tensor, "n d"], width: int) -> Float[Tensor, "b t d"]:
        """Invert ``pack``; padding is 0."""
        device = x.device
        position = torch.arange(len(self.row_counts), device=device)
        row = torch.cat([self.rows[:count] for count in self.row_counts])
        position = position.repeat_interleave(torch.tensor(self.row_counts, device=device))
        spread = x.new_zeros(len(self.rows), width, x.shape[-1])
        return spread.index_put((row, position), x)

    def find_positions(self, positions: Bool[Tensor, "b t"]) -> Int[Tensor, " m"]:
        """Return the packed indices of ``positions``, row by row; no position may be padding."""
        row, position = positions.nonzero().unbind(1)
        rank = self.rows.argsort()  # index of each row in the order by length
        # Within a position, rows are in the order by length, so a token's offset there is its row's rank.
        start = torch.tensor([0, *accumulate(self.row_counts)], device=positions.device)
        return start[position] + rank[row]
