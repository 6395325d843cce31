"""Rows of many lengths without their padding: place after place, and at each place only the rows that reach it."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class Packing(NamedTuple):
    """Rows in the order of their lengths, longest first; so at each place those that reach it are the first ones."""

    rows: Int[Tensor, " b"]  # the rows in that order
    counts: list[int]  # how many reach each place
    moved: bool  # did they come in another order?

    @staticmethod
    def of(padding_mask: Bool[Tensor, "b t"]) -> Packing:
        """Of rows that are present up to their ends."""
        lengths, counts = padding_mask.sum(1), padding_mask.sum(0)
        rows = lengths.argsort(descending=True, stable=True)
        return Packing(rows, counts[counts > 0].tolist(), bool((lengths.diff() > 0).any()))

    def order(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        """The rows in that order."""
        return x[self.rows] if self.moved else x

    def pack(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "n d"]:
        """All that is present, place after place."""
        turned = self.order(x)[:, : len(self.counts)].transpose(0, 1)
        return torch.cat([part[:count] for part, count in zip(turned, self.counts, strict=True)])

    def unpack(self, x: Float[Tensor, "n d"], width: int) -> Float[Tensor, "b t d"]:
        """The inverse; what is absent is 0."""
        device = x.device
        position = torch.arange(len(self.counts), device=device)
        row = torch.cat([self.rows[:count] for count in self.counts])
        position = position.repeat_interleave(torch.tensor(self.counts, device=device))
        spread = x.new_zeros(len(self.rows), width, x.shape[-1])
        return spread.index_put((row, position), x)

    def find(self, at: Bool[Tensor, "b t"]) -> Int[Tensor, " m"]:
        """Where these places stand, all of them present, row by row."""
        row, position = at.nonzero().unbind(1)
        rank = self.rows.argsort()  # of each row among them, in any place
        start = torch.tensor([0, *accumulate(self.counts)], device=at.device)
        return start[position] + rank[row]
