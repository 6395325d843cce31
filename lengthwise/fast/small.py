"""Attention of small heads over short rows, for a CPU.

The library's kernel takes head after head, and knows no dropout there. Here a head's places stand last, which makes
each of a step's six products two to four times as quick as one with its numbers last; and softmax is made of powers of
two, in half of its time. See bench/heads.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lengthwise.fast.dropout import kept
from lengthwise.fast.ragged import Ragged
from lengthwise.nn.position import turned

# Of larger or fewer heads, or of rows shorter still, the library is as quick or quicker.
LARGEST, LEAST, FEWEST = 8, 64, 10
ONE_STEP = 8  # heads at least, where all loops are one step of autograd; see one_step
LOG2E = 1 / math.log(2)
SUMS = 2.0**-60, 2.0**60  # of weights, if these are to be divided by: products with small gradients stay exact


def pays(shape: tuple[int, int, int, int], probability: float, least: int = LEAST) -> bool:
    """Is this the quickest way, for so many rows, positions, heads, and numbers of each head? With dropout always."""
    rows, positions, heads, size = shape
    return probability > 0 or (size <= LARGEST and rows * heads >= least and positions >= FEWEST)


def attend(
    projected: Float[Tensor, "*b 3 h e"],
    mask: Float[Tensor, "*h #t k"] | Bool[Tensor, "*h #t k"] | None,
    angles: Float[Tensor, "b t half"] | None,
    *,
    causal: bool,
    probability: float,
    ragged: Ragged | None = None,
) -> Float[Tensor, "*b h e"]:
    """softmax(q kᵀ / √e + mask) v, with queries and keys turned by ``angles``, and weights dropped with a
    ``probability``. Of rows "b t", or, with ``ragged``, of the places of rows without their padding.

    A mask may be Boolean: True is seen. It may have a key more than there are places: one of zeros, with a value of
    zeros. ``causal``, without a mask: no place sees a later one.
    """
    flat = projected.flatten(0, -4)
    look = Look.of(flat, flat.shape[-2], ragged or projected.shape[:2], mask, angles, causal=causal)
    return _Attend.apply(flat, look.square, probability, look.bias, *look.turn).view(
        *projected.shape[:-3], *flat.shape[-2:]
    )


class Square(NamedTuple):
    """Places as they come, row after row, and as they are computed: in rows of one width."""

    rows: int
    width: int
    at: Int[Tensor, " n"] | None  # where those that come stand among "rows · width"; None: they are all

    def spread(self, x: Float[Tensor, "n ..."]) -> Float[Tensor, "rows width ..."]:
        """What is absent is 0."""
        if self.at is not None:
            x = x.new_zeros(self.rows * self.width, *x.shape[1:]).index_copy_(0, self.at, x)
        return x.view(self.rows, self.width, *x.shape[1:])

    def gather(self, x: Float[Tensor, "rows width ..."]) -> Float[Tensor, "n ..."]:
        """The inverse."""
        x = x.reshape(self.rows * self.width, *x.shape[2:])
        return x if self.at is None else x.index_select(0, self.at)

    def positions(self) -> int:
        """How many come."""
        return self.rows * self.width if self.at is None else len(self.at)


class Look(NamedTuple):
    """How the heads of places see each other."""

    heads: int
    square: Square
    bias: Float[Tensor, "#r #k #k"]  # added to scores, as logarithms to base 2
    turn: tuple[Tensor, ...]  # cosines and sines of angles, if any, places last

    @staticmethod
    def of(
        like: Tensor,
        heads: int,
        shape: Ragged | Sequence[int],
        mask: Float[Tensor, "*h #t k"] | Bool[Tensor, "*h #t k"] | None,
        angles: Float[Tensor, "b t half"] | None,
        *,
        causal: bool,
    ) -> Look:
        """Of rows and places, or of rows without their padding; for the rest see ``attend``."""
        if isinstance(shape, Ragged):
            rows, positions, at = len(shape.ends), shape.width, shape.at
        else:
            (rows, positions), at = shape, None
        width = positions if mask is None else mask.shape[-1]
        if width > positions:
            at = torch.arange(rows * positions) if at is None else at
            at = at + at // positions * (width - positions)
        if mask is not None:
            bias = _bias(mask, heads, rows, width, like)
        else:
            bias = _future(width, like.dtype) if causal else like.new_zeros(1, 1, 1)
        return Look(heads, Square(rows, width, at), bias, () if angles is None else _turn(angles, width))


@lru_cache(maxsize=64)
def _future(positions: int, dtype: torch.dtype) -> Float[Tensor, "1 t t"]:
    """−∞ where the second place comes after the first, else 0."""
    return torch.full((1, positions, positions), -torch.inf, dtype=dtype).triu(1)


def _bias(
    mask: Float[Tensor, "*h #t k"] | Bool[Tensor, "*h #t k"], heads: int, rows: int, width: int, like: Tensor
) -> Float[Tensor, "#r k k"]:
    if mask.dtype == torch.bool:
        mask = like.new_zeros(mask.shape).masked_fill(~mask, -torch.inf)
    if (positions := mask.shape[-2]) > 1:
        mask = F.pad(mask, (0, 0, 0, width - positions))
    # Absent places may see nothing at all: they get something to see, which nobody looks at.
    mask = (mask * LOG2E).masked_fill((mask == -torch.inf).all(-1, keepdim=True), 0.0)
    return mask.expand(rows, heads, width, width).flatten(0, 1)


def _turn(angles: Float[Tensor, "b t half"], width: int) -> tuple[Tensor, Tensor]:
    angles = F.pad(angles, (0, 0, 0, width - angles.shape[1]))
    return angles.cos().mT[:, None], angles.sin().mT[:, None]


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, projected: Tensor, square: Square, probability: float, bias: Tensor, *turn: Tensor) -> Tensor:
        found, saved = look(projected, square, probability, bias, *turn)
        ctx.save_for_backward(*saved)
        ctx.square, ctx.bias = square, bias.shape if bias.requires_grad else None
        return square.gather(found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        projected, bias = look_back(ctx.square.spread(gradient), ctx.saved_tensors, ctx.bias)
        return ctx.square.gather(projected), None, None, bias, *(None for _ in ctx.saved_tensors[SAVED:])


SAVED = 8  # tensors, beside those of turns


def look(
    projected: Float[Tensor, "n 3 h e"],
    square: Square,
    probability: float,
    bias: Float[Tensor, "#r k k"],
    *turn: Tensor,
) -> tuple[Float[Tensor, "b t h e"], tuple[Tensor | None, ...]]:
    """What each place finds, and what has to be saved. Within, r are the heads of all rows."""
    parts = square.spread(projected).permute(2, 0, 3, 4, 1).contiguous()  # "3 b h e t"
    turns = turned(parts[:2], *turn, axis=-2) if turn else parts[:2]
    query, key, value = (part.flatten(0, 1) for part in (*turns, parts[2]))  # "r e t"
    weights, over = weigh(query, key, bias)
    open_ = kept(weights, probability) if probability else None
    used = weights if open_ is None else weights * open_
    found = torch.bmm(value, used.mT).mul_(over)
    saved = query, key, value, weights, used, open_, over, found, *turn
    return found.view(parts.shape[1:]).permute(0, 3, 1, 2), saved


def weigh(
    query: Float[Tensor, "r e t"], key: Float[Tensor, "r e t"], bias: Float[Tensor, "#r k k"]
) -> tuple[Float[Tensor, "r t t"], Float[Tensor, "r 1 t"]]:
    """Those of each query, and what they are to be multiplied by for a sum of 1: what they find is smaller.

    Powers of two take a third of the time of powers of e; and no greatest score is looked for, to be subtracted, which
    would take as long as all else. Where they grow too large or too small for that, the library has the softmax."""
    scale = LOG2E * query.shape[1] ** -0.5
    weights = torch.baddbmm(bias, query.mT, key, alpha=scale).exp2_()
    sums = weights.sum(-1)
    least, most = sums.aminmax()
    if not (float(least) > SUMS[0] and float(most) < SUMS[1]):
        weights = torch.baddbmm(bias, query.mT, key, alpha=scale).div_(LOG2E).softmax(-1)
        sums = torch.ones_like(sums)
    return weights, sums.reciprocal_()[:, None]


def look_back(
    gradient: Float[Tensor, "b t h e"], saved: Sequence[Any], bias: torch.Size | None
) -> tuple[Float[Tensor, "b t 3 h e"], Tensor | None]:
    """The gradients of what was projected, and of a bias of this shape."""
    query, key, value, weights, used, open_, over, found, *turn = saved
    rows, _, heads, _ = gradient.shape
    gradient = gradient.permute(0, 2, 3, 1).flatten(0, 1) * over
    # The sum of a query's weights times their gradients is what it found times the gradient of that.
    mean = (gradient * found).sum(1)[:, :, None]
    to_parts, scores = weigh_back(gradient, query, key, value, weights, used, open_, mean)
    to_parts = to_parts.unflatten(1, (rows, heads))
    if turn:
        cos, sin = turn
        to_parts[:2] = turned(to_parts[:2], cos, -sin, axis=-2)
    to_bias = None if bias is None else scores.sum_to_size(bias) / LOG2E
    return to_parts.permute(1, 4, 0, 2, 3), to_bias


def weigh_back(
    gradient: Float[Tensor, "r e t"],
    query: Float[Tensor, "r e t"],
    key: Float[Tensor, "r e t"],
    value: Float[Tensor, "r e t"],
    weights: Float[Tensor, "r t t"],
    used: Float[Tensor, "r t t"],
    open_: Tensor | None,
    mean: Float[Tensor, "r t 1"],
) -> tuple[Float[Tensor, "3 r e t"], Float[Tensor, "r t t"]]:
    """The gradients of query, key and value, and of scores. Weights have any sums: what is given has been divided by
    them, as what was found, and ``mean`` is the sum over e of both multiplied."""
    to_parts = value.new_empty(3, *value.shape)
    to_query, to_key, to_value = to_parts
    scale = value.shape[1] ** -0.5
    if open_ is None:
        scores = torch.baddbmm(mean, gradient.mT, value, beta=-1).mul_(weights)
    else:
        scores = torch.bmm(gradient.mT, value).mul_(open_).sub_(mean).mul_(weights)
    torch.baddbmm(to_query, key, scores.mT, beta=0, alpha=scale, out=to_query)
    torch.baddbmm(to_key, query, scores, beta=0, alpha=scale, out=to_key)
    torch.bmm(gradient, used, out=to_value)
    return to_parts, scores
