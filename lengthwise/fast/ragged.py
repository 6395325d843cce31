"""Rows of many lengths without their padding, row after row: what is done place by place is done for real places only.

Rows that leave first stand last, so those that still run are always the first ones, and nothing is moved.
(``nn.packing`` has the other order, place after place, for models that are sequential in place.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable


def picked(x: Float[Tensor, "*b d"], at: Int[Tensor, " m"]) -> Float[Tensor, "m d"]:
    """Of all places, row after row, these, none twice: so gradients need no adding up, which would be slow."""
    return _Pick.apply(x.reshape(-1, x.shape[-1]), at)


class _Pick(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, at: Tensor) -> Tensor:
        ctx.at, ctx.positions = at, len(x)
        return x.index_select(0, at)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient.new_zeros(ctx.positions, gradient.shape[1]).index_copy_(0, ctx.at, gradient), None


@dataclass(frozen=True, slots=True)
class Ragged:
    """Where the places of rows stand that are present up to their ends."""

    ends: list[int]  # of each row, among all places
    width: int  # of the padded rows
    at: Int[Tensor, " n"]  # where each position stands in the padded rows, one after the other

    @staticmethod
    def of(padding_mask: Bool[Tensor, "b t"]) -> Ragged:
        ends = list(accumulate(padding_mask.sum(1).tolist()))
        return Ragged(ends, padding_mask.shape[1], padding_mask.flatten().nonzero()[:, 0])

    def positions(self, rows: slice) -> slice:
        """Those of some rows that follow one another."""
        start, stop, _ = rows.indices(len(self.ends))
        return slice(self.ends[start - 1] if start else 0, self.ends[stop - 1])

    def longest(self, rows: slice) -> int:
        """Places of the longest of some rows that follow one another."""
        starts = [0, *self.ends]
        return max(end - start for start, end in zip(starts[rows], self.ends[rows], strict=False))

    def take(self, rows: slice) -> Ragged:
        """Some rows that follow one another."""
        start, _, _ = rows.indices(len(self.ends))
        positions = self.positions(rows)
        ends = [end - positions.start for end in self.ends[rows]]
        return Ragged(ends, self.width, self.at[positions] - start * self.width if start else self.at[positions])

    def keep(self, at: Int[Tensor, " m"]) -> Ragged:
        """Some places, in their order: a row may keep any of its own."""
        return Ragged(torch.searchsorted(at, torch.tensor(self.ends)).tolist(), self.width, self.at[at])

    @property
    def full(self) -> bool:
        """Is there no padding at all?"""
        return len(self.at) == len(self.ends) * self.width

    def pack(self, x: Shaped[Tensor, "b t ..."]) -> Shaped[Tensor, "n ..."]:
        return x.flatten(0, 1) if self.full else x.flatten(0, 1)[self.at]

    def unpack(self, x: Shaped[Tensor, "n ..."]) -> Shaped[Tensor, "b t ..."]:
        """The inverse; what is absent is 0."""
        rows, rest = len(self.ends), x.shape[1:]
        if self.full:
            return x.view(rows, self.width, *rest)
        return x.new_zeros(rows * self.width, *rest).index_copy(0, self.at, x).view(rows, self.width, *rest)


@dataclass(frozen=True, slots=True)
class Packed:
    """A tensor of rows without their padding."""

    value: Shaped[Tensor, "n ..."]
    ragged: Ragged

    def take(self, rows: slice) -> Packed:
        return Packed(self.value[self.ragged.positions(rows)], self.ragged.take(rows))

    def keep(self, at: Int[Tensor, " m"]) -> Packed:
        """Some places, in their order."""
        return Packed(self.value.index_select(0, at), self.ragged.keep(at))

    def like(self, value: Shaped[Tensor, "n ..."]) -> Packed:
        """Another tensor of the same places."""
        return Packed(value, self.ragged)

    def padded(self) -> Float[Tensor, "b t ..."]:
        return self.ragged.unpack(self.value)

    def __getitem__(self, at: Bool[Tensor, "b t"]) -> Float[Tensor, "m d"]:
        """What stands at these places of the padded rows, all of them present: as of a padded tensor."""
        return self.value[at.flatten()[self.ragged.at]]

    @staticmethod
    def join(parts: Sequence[Packed]) -> Packed:
        """Rows after rows, of equal width."""
        ends: list[int] = []
        at, rows = [], 0
        width = parts[0].ragged.width
        for part in parts:
            ends += [end + (ends[-1] if ends else 0) for end in part.ragged.ends]
            at.append(part.ragged.at + rows * width)
            rows += len(part.ragged.ends)
        return Packed(torch.cat([part.value for part in parts]), Ragged(ends, width, torch.cat(at)))
