"""Attention where nobody sees many: each head of each place looks up its few keys, wherever in the row they stand, so
the cost grows with the row's length and not with its square. For packed rows, on a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lengthwise.fast.ragged import Ragged
from lengthwise.fast.softmax import softmax

MOST = 8  # of more, products of whole rows are quicker


@dataclass(frozen=True, slots=True)
class Few:
    """Whom each head of each place sees, as lists, and for gradients by whom it is seen. Each head of a place has a row
    among queries, keys and values as they are projected, "n 3 h": that of its query is given."""

    ragged: Ragged
    keys: Int[Tensor, "n h k"]  # the rows of those seen
    bias: Float[Tensor, "n h k"]  # added to scores, −inf where fewer are seen
    askers: Int[Tensor, "n h k"]  # the rows of those that see it,
    rows: Int[Tensor, "n h k"]  # their rows among "n h",
    turns: Int[Tensor, "n h k"]  # and where among all lists they have it
    real: Float[Tensor, "n h k"]  # 1; 0 where fewer see it

    @staticmethod
    def of(bias: Float[Tensor, "#b h t t"], ragged: Ragged) -> Few | None:
        """By scores' bias, −inf where a place is not seen. None where someone sees or is seen by more than ``MOST``."""
        number = ragged.unpack(torch.arange(1, len(ragged.at) + 1)) - 1  # each place's among all, −1 where none is
        padding_mask = number >= 0
        seen = (bias > -torch.inf) & padding_mask[:, None, :, None] & padding_mask[:, None, None]
        most = int(torch.maximum(seen.sum(-1).max(), seen.sum(-2).max()))
        if most > MOST:
            return None
        shape = len(ragged.at), seen.shape[1], most
        row, head, position, key = seen.nonzero().unbind(1)
        asker, asked = number[row, position], number[row, key]
        in_row, in_key = asker * shape[1] + head, asked * shape[1] + head
        at, back = (asker, head, _ranks(in_row)), (asked, head, _ranks(in_key))

        def listed(where: tuple[Tensor, ...], values: Tensor) -> Int[Tensor, "n h k"]:
            return torch.zeros(shape, dtype=torch.long).index_put(where, values)

        values = bias.expand(seen.shape)[row, head, position, key]
        return Few(
            ragged,
            keys=listed(at, in_key + 2 * shape[1] * asked),
            bias=bias.new_full(shape, -torch.inf).index_put(at, values),
            askers=listed(back, in_row + 2 * shape[1] * asker),
            rows=listed(back, in_row),
            turns=listed(back, in_row * most + at[2]),
            real=bias.new_zeros(shape).index_put(back, torch.ones_like(values)),
        )

    def take(self, rows: slice) -> Few:
        """The first rows."""
        positions = self.ragged.positions(rows)
        parts = (self.keys, self.bias, self.askers, self.rows, self.turns, self.real)
        return Few(self.ragged.take(rows), *(part[positions] for part in parts))


def _ranks(rows: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """How many of the same row came before."""
    order = rows.argsort(stable=True)
    sizes = torch.bincount(rows)
    first = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    return torch.empty_like(rows).index_copy(0, order, torch.arange(len(rows)) - first)


def attend(projected: Float[Tensor, "n 3 h e"], few: Few) -> Float[Tensor, "n h e"]:
    """softmax(q kᵀ / √e + bias) v, over the few that each sees."""
    return _Attend.apply(projected, few.bias, few)


class _Attend(torch.autograd.Function):
    """Rows are looked up, weighted and added in one go, and so are gradients: those of a key by all who see it."""

    @staticmethod
    def forward(ctx: Any, projected: Float[Tensor, "n 3 h e"], bias: Tensor, few: Few) -> Float[Tensor, "n h e"]:
        heads, scale = projected.shape[2], projected.shape[-1] ** -0.5
        table = projected.flatten(0, 2)
        weights = softmax(_dots(projected[:, 0] * scale, table, few.keys + heads) + bias)
        ctx.few = few
        ctx.save_for_backward(projected, weights)
        return _sums(table, few.keys + 2 * heads, weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "n h e"]) -> tuple[Tensor, Tensor, None]:
        (projected, weights), few = ctx.saved_tensors, ctx.few
        heads, scale = projected.shape[2], projected.shape[-1] ** -0.5
        table, gradient = projected.flatten(0, 2), gradient.contiguous()
        scores = _dots(gradient, table, few.keys + 2 * heads) * weights
        scores = scores - weights * scores.sum(-1, keepdim=True)
        to_query = _sums(table, few.keys + heads, scores * scale)
        to_key = _sums(table, few.askers, scores.take(few.turns) * few.real * scale)
        to_value = _sums(gradient.flatten(0, 1), few.rows, weights.take(few.turns) * few.real)
        return torch.stack([to_query, to_key, to_value], 1), scores, None


def _dots(
    one: Float[Tensor, "n h e"], table: Float[Tensor, "m e"], rows: Int[Tensor, "n h k"]
) -> Float[Tensor, "n h k"]:
    return (one[:, :, None] * F.embedding(rows, table)).sum(-1)


def _sums(
    table: Float[Tensor, "m e"], rows: Int[Tensor, "n h k"], weights: Float[Tensor, "n h k"]
) -> Float[Tensor, "n h e"]:
    found = F.embedding_bag(rows.flatten(0, 1), table, mode="sum", per_sample_weights=weights.flatten(0, 1))
    return found.view(*rows.shape[:2], -1)
