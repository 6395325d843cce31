"""Rows packed position by position, as in torch's ``PackedSequence``, for the runners of recurrent models.

Rows are sorted by length, so that the rows at a position are the first ones. (``ragged`` packs row by row.)
"""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Packing(NamedTuple):
    """The order of rows by length, longest first, and the number of rows at each position."""

    rows: Int[Tensor, " b"]  # row indices in that order
    counts: list[int]  # number of rows that reach each position
    moved: bool  # False if the batch is already in that order

    @staticmethod
    def of(padding_mask: Bool[Tensor, "b t"]) -> Packing:
        """Build the packing of rows that are padded on the right."""
        lengths, counts = padding_mask.sum(1), padding_mask.sum(0)
        rows = lengths.argsort(descending=True, stable=True)
        return Packing(rows, counts[counts > 0].tolist(), bool((lengths.diff() > 0).any()))

    def order(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        """Sort rows by length."""
        return x[self.rows] if self.moved else x

    def pack(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "n d"]:
        """Remove padding: all real tokens, position by position."""
        turned = self.order(x)[:, : len(self.counts)].transpose(0, 1)
        return torch.cat([part[:count] for part, count in zip(turned, self.counts, strict=True)])

    def unpack(self, x: Float[Tensor, "n d"], width: int) -> Float[Tensor, "b t d"]:
        """Invert ``pack``; padding is 0."""
        device = x.device
        position = torch.arange(len(self.counts), device=device)
        row = torch.cat([self.rows[:count] for count in self.counts])
        position = position.repeat_interleave(torch.tensor(self.counts, device=device))
        spread = x.new_zeros(len(self.rows), width, x.shape[-1])
        return spread.index_put((row, position), x)

    def find(self, at: Bool[Tensor, "b t"]) -> Int[Tensor, " m"]:
        """Return the indices, in packed order, of the positions ``at``, row by row; none may be padding."""
        row, position = at.nonzero().unbind(1)
        rank = self.rows.argsort()  # index of each row in the order by length
        # Within a position, rows are in the order by length, so a token's offset there is its row's rank.
        start = torch.tensor([0, *accumulate(self.counts)], device=at.device)
        return start[position] + rank[row]
