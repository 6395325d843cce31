"""Attention with at most 8 visible keys per query, for packed sequences on a CPU.

Used if every head of every position sees, and is seen by, at most ``MAX_KEYS`` positions, wherever they are in the row
(e.g. ``LocalHeads`` and ``CoupledHeads`` together). Each query gathers its keys by index, so the cost is linear in the
row's length. Results equal those with a full attention bias up to rounding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lengthwise.runners.cpu.packing import Ragged

REGISTER = 16  # numbers in a vector register; torch handles shorter axes one number at a time
MAX_KEYS = 8  # per query; with more, full matrix products are faster
MAX_WIDTH = 16  # largest head width without gradients; for wider heads, torch's product of all keys is faster


def softmax(scores: Float[Tensor, "*n k"]) -> Float[Tensor, "*n k"]:
    """Compute the softmax over the last axis. A short axis is padded with −inf, which is up to ten times as fast on a
    CPU."""
    k = scores.shape[-1]
    if k >= REGISTER:
        return scores.softmax(-1)
    return F.pad(scores, (0, REGISTER - k), value=-torch.inf).softmax(-1)[..., :k]


def is_worthwhile(width: int) -> bool:
    """Return whether sparse attention may be faster than attention over all keys, for heads of this width."""
    return torch.is_grad_enabled() or width <= MAX_WIDTH


@dataclass(frozen=True, slots=True)
class SparseKeys:
    """Index lists: for each head and position, the k keys that its query sees, and the k queries that see its key.

    ``keys`` and ``queries`` are indices into the first three axes of the projections "n 3 h e", flattened, of the query
    (index 0 of 3); keys and values are at + h and + 2 h.
    """

    ragged: Ragged
    keys: Int[Tensor, "n h k"]  # the positions that this query sees
    bias: Float[Tensor, "n h k"]  # attention bias; −inf if the query sees fewer than k
    queries: Int[Tensor, "n h k"]  # the queries that see this key
    rows: Int[Tensor, "n h k"]  # the same queries, as indices into "n h"
    turns: Int[Tensor, "n h k"]  # index of this key in the lists ``keys`` of these queries, flattened
    real: Float[Tensor, "n h k"]  # 1, or 0 if fewer than k queries see this key

    @staticmethod
    def from_bias(bias: Float[Tensor, "#b h t t"], ragged: Ragged) -> SparseKeys | None:
        """Build the lists from an attention bias, −inf for hidden keys. None if a query sees, or a key is seen
        by, more than ``MAX_KEYS`` positions."""
        number = ragged.unpack(torch.arange(1, len(ragged.at) + 1)) - 1  # index among all positions; −1: padding
        padding_mask = number >= 0
        seen = (bias > -torch.inf) & padding_mask[:, None, :, None] & padding_mask[:, None, None]
        most = int(torch.maximum(seen.sum(-1).max(), seen.sum(-2).max()))
        if most > MAX_KEYS:
            return None
        shape = len(ragged.at), seen.shape[1], most
        # One entry per visible pair. ``at`` is its index in the lists by query, ``back`` in the lists by key.
        row, head, position, key = seen.nonzero().unbind(1)
        asker, asked = number[row, position], number[row, key]
        in_row, in_key = asker * shape[1] + head, asked * shape[1] + head
        at, back = (asker, head, _count_earlier_equal(in_row)), (asked, head, _count_earlier_equal(in_key))

        def to_table(index: tuple[Tensor, ...], values: Tensor) -> Int[Tensor, "n h k"]:
            return torch.zeros(shape, dtype=torch.long).index_put(index, values)

        values = bias.expand(seen.shape)[row, head, position, key]
        return SparseKeys(
            ragged,
            keys=to_table(at, in_key + 2 * shape[1] * asked),
            bias=bias.new_full(shape, -torch.inf).index_put(at, values),
            queries=to_table(back, in_row + 2 * shape[1] * asker),
            rows=to_table(back, in_row),
            turns=to_table(back, in_row * most + at[2]),
            real=bias.new_zeros(shape).index_put(back, torch.ones_like(values)),
        )

    def take(self, rows: slice) -> SparseKeys:
        """Select the first rows."""
        positions = self.ragged.packed_positions(rows)
        parts = (self.keys, self.bias, self.queries, self.rows, self.turns, self.real)
        return SparseKeys(self.ragged.take(rows), *(part[positions] for part in parts))


def _count_earlier_equal(values: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """Return, for each entry, the number of equal entries before it."""
    order = values.argsort(stable=True)
    sizes = torch.bincount(values)
    first = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
    return torch.empty_like(values).index_copy(0, order, torch.arange(len(values)) - first)


def attend(qkv: Float[Tensor, "n 3 h e"], sparse: SparseKeys) -> Float[Tensor, "n h e"]:
    """Return softmax(q kᵀ / √e + bias) v, over the keys that each query sees."""
    return _SparseAttention.apply(qkv, sparse.bias, sparse)


class _SparseAttention(torch.autograd.Function):
    """Sparse attention as an autograd function. A key's gradient is gathered from the queries that see it, which is
    faster than scattering."""

    @staticmethod
    def forward(ctx: Any, qkv: Float[Tensor, "n 3 h e"], bias: Tensor, sparse: SparseKeys) -> Float[Tensor, "n h e"]:
        heads, scale = qkv.shape[2], qkv.shape[-1] ** -0.5
        table = qkv.flatten(0, 2)
        weights = softmax(_dot_products(qkv[:, 0] * scale, table, sparse.keys + heads) + bias)
        ctx.sparse = sparse
        ctx.save_for_backward(qkv, weights)
        return _weighted_sums(table, sparse.keys + 2 * heads, weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "n h e"]) -> tuple[Tensor, Tensor, None]:
        (qkv, weights), sparse = ctx.saved_tensors, ctx.sparse
        heads, scale = qkv.shape[2], qkv.shape[-1] ** -0.5
        table, gradient = qkv.flatten(0, 2), gradient.contiguous()
        # The gradient of the scores: weight · (gradient of the weight − its mean under the weights).
        scores = _dot_products(gradient, table, sparse.keys + 2 * heads) * weights
        scores = scores - weights * scores.sum(-1, keepdim=True)
        to_query = _weighted_sums(table, sparse.keys + heads, scores * scale)
        to_key = _weighted_sums(table, sparse.queries, scores.take(sparse.turns) * sparse.real * scale)
        to_value = _weighted_sums(gradient.flatten(0, 1), sparse.rows, weights.take(sparse.turns) * sparse.real)
        return torch.stack([to_query, to_key, to_value], 1), scores, None


def _dot_products(
    query: Float[Tensor, "n h e"], table: Float[Tensor, "m e"], rows: Int[Tensor, "n h k"]
) -> Float[Tensor, "n h k"]:
    return (query[:, :, None] * F.embedding(rows, table)).sum(-1)


def _weighted_sums(
    table: Float[Tensor, "m e"], rows: Int[Tensor, "n h k"], weights: Float[Tensor, "n h k"]
) -> Float[Tensor, "n h e"]:
    found = F.embedding_bag(rows.flatten(0, 1), table, mode="sum", per_sample_weights=weights.flatten(0, 1))
    return found.view(*rows.shape[:2], -1)
