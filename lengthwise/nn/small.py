"""Attention of small heads over short rows, for a CPU.

The library's kernel takes head after head, and knows no dropout there. Here a head's places stand last, which makes
each of a step's six products two to four times as quick as one with its numbers last; and short rows are made as long
as a register, for softmax. See bench/heads.py.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lengthwise.nn.dropout import kept
from lengthwise.nn.packed import Ragged
from lengthwise.nn.position import turned
from lengthwise.nn.softmax import REGISTER

# Of larger or fewer heads, or of rows shorter still, the library is as quick or quicker.
LARGEST, LEAST, FEWEST = 8, 64, 10


def pays(projected: Float[Tensor, "*b 3 h e"], rows: int, places: int, share: float) -> bool:
    """Is this the quickest way, for so many rows of so many places? With dropout always."""
    heads, size = projected.shape[-2:]
    small = size <= LARGEST and rows * heads >= LEAST and places >= FEWEST
    return projected.device.type == "cpu" and (small or share > 0)


def attend(
    projected: Float[Tensor, "*b 3 h e"],
    mask: Float[Tensor, "*h #t k"] | Bool[Tensor, "*h #t k"] | None,
    angles: Float[Tensor, "b t half"] | None,
    *,
    causal: bool,
    share: float,
    ragged: Ragged | None = None,
) -> Float[Tensor, "*b h e"]:
    """softmax(q kᵀ / √e + mask) v, with queries and keys turned by ``angles``, and a ``share`` of the weights dropped.
    Of rows "b t", or, with ``ragged``, of the places of rows without their padding.

    A mask may be Boolean: True is seen. It may have a key more than there are places: one of zeros, with a value of
    zeros. ``causal``, without a mask: no place sees a later one.
    """
    rows, places = projected.shape[:2] if ragged is None else (len(ragged.ends), ragged.width)
    width = max(REGISTER, places if mask is None else mask.shape[-1])
    bias = _bias(mask, places, width, projected) if mask is not None or not causal else _future(width, projected.dtype)
    turn = () if angles is None else _turn(F.pad(angles, (0, 0, 0, width - places)))
    return _Attend.apply(
        projected, _Square(rows, places, width, None if ragged is None else ragged.at), bias, share, *turn
    )


class _Square(NamedTuple):
    """Rows as they come, and as they are computed: all of the same width."""

    rows: int
    places: int
    width: int
    at: Int[Tensor, " n"] | None  # where those that come stand among "rows · places"; None: everywhere

    def spread(self, x: Float[Tensor, "*b ..."]) -> Float[Tensor, "rows width ..."]:
        """What is absent is 0."""
        if self.at is None and self.places == self.width:
            return x
        wide = x.new_zeros(self.rows, self.width, *x.shape[2 if self.at is None else 1 :])
        if self.at is None:
            wide[:, : self.places] = x
        else:
            wide.view(self.rows * self.width, -1).index_copy_(0, self._at(self.at), x.flatten(1))
        return wide

    def gather(self, x: Float[Tensor, "rows width ..."]) -> Float[Tensor, "*b ..."]:
        """The inverse."""
        if self.at is None:
            return x[:, : self.places]
        return x.reshape(self.rows * self.width, -1).index_select(0, self._at(self.at)).view(-1, *x.shape[2:])

    def _at(self, at: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
        return at if self.places == self.width else at + at // self.places * (self.width - self.places)


@lru_cache(maxsize=64)
def _future(places: int, dtype: torch.dtype) -> Float[Tensor, "t t"]:
    """−∞ where the second place comes after the first, else 0."""
    return torch.full((places, places), -torch.inf, dtype=dtype).triu(1)


def _bias(mask: Tensor | None, places: int, width: int, like: Tensor) -> Float[Tensor, "*h #w w"] | None:
    """A mask as something to add, where what pads a row is not seen."""
    if mask is None:
        if width == places:
            return None
        mask = like.new_zeros(1, places)
    elif mask.dtype == torch.bool:
        mask = like.new_zeros(mask.shape).masked_fill(~mask, -torch.inf)
    rows = mask.shape[-2]
    wide = F.pad(mask, (0, width - mask.shape[-1], 0, width - rows if rows > 1 else 0), value=-torch.inf)
    # Absent places may see nothing at all: they get something finite, which nobody looks at.
    return wide.clamp(min=torch.finfo(wide.dtype).min)


def _turn(angles: Float[Tensor, "b t half"]) -> tuple[Tensor, Tensor]:
    return angles.cos().mT[:, None], angles.sin().mT[:, None]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, projected: Tensor, square: _Square, bias: Tensor | None, share: float, *turn: Tensor
    ) -> Tensor:
        parts = square.spread(projected).permute(2, 0, 3, 4, 1).contiguous()  # "3 b h e t"
        query, key = turned(parts[:2], *turn, axis=-2) if turn else parts[:2]
        query, value = query * query.shape[-2] ** -0.5, parts[2]
        scores = query.mT @ key
        if bias is not None:
            scores += bias
        weights = scores.softmax(-1)
        open_ = kept(weights, share) if share else None
        used = weights if open_ is None else weights * open_
        ctx.save_for_backward(query, key, value, weights, used, open_, *turn)
        ctx.square, ctx.bias = square, None if bias is None or not bias.requires_grad else bias.shape
        return square.gather((value @ used.mT).permute(0, 3, 1, 2))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights, used, open_, *turn = ctx.saved_tensors
        gradient = ctx.square.spread(gradient).permute(0, 2, 3, 1).contiguous()
        to_parts = value.new_empty(3, *value.shape)
        to_query, to_key, to_value = to_parts.flatten(1, 2)
        scores = gradient.mT @ value
        if open_ is not None:
            scores *= open_
        scores *= weights
        scores.addcmul_(weights, scores.sum(-1, keepdim=True), value=-1)
        torch.bmm(key.flatten(0, 1), scores.flatten(0, 1).mT, out=to_query).mul_(query.shape[-2] ** -0.5)
        torch.bmm(query.flatten(0, 1), scores.flatten(0, 1), out=to_key)
        torch.bmm(gradient.flatten(0, 1), used.flatten(0, 1), out=to_value)
        if turn:
            cos, sin = turn
            to_parts[:2] = turned(to_parts[:2], cos, -sin, axis=-2)
        to_bias = None if ctx.bias is None else scores.sum_to_size(ctx.bias)
        return ctx.square.gather(to_parts.permute(1, 4, 0, 2, 3)), None, to_bias, None, *(None for _ in turn)
