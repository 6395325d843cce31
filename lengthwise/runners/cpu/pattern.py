"""Choose how a packed batch computes attention on a CPU.

- ``Band`` if all heads see only neighbours (``Local``): its cost is linear in the row's length.
- ``SparseKeys`` if every head of every position sees, and is seen by, at most ``MAX_KEYS`` positions, wherever they are
  in the row (e.g. ``LocalHeads`` and ``CoupledHeads`` together). Queries gather their keys by index, at a linear cost
  too.
- Otherwise ``PaddedGroups``: groups of rows of about equal length with an attention bias for each, computed by
  ``small_heads`` if heads are small, else by ``SoftmaxAttention.attend``.

All three are the same softmax over the visible keys, so results are equal up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lengthwise.base.types import Inputs
from lengthwise.nn.attention import SoftmaxAttention
from lengthwise.nn.block import Block
from lengthwise.nn.mixer import AttentionContext
from lengthwise.nn.position import Encoding
from lengthwise.nn.window import LocalEncoding, LocalHeadsEncoding
from lengthwise.runners.cpu import small_heads
from lengthwise.runners.cpu.elementwise import dropout
from lengthwise.runners.cpu.packing import PackedTensor, Ragged
from lengthwise.runners.plain import select_rows

# The largest number of groups in a batch; the smallest number of rows in a group, and of heads in all its rows.
MAX_GROUPS, MIN_ROWS, MIN_HEADS = 4, 8, 512
MIN_DENSE_FRACTION = 0.9  # if a larger fraction of positions is real, computing padding costs less than another group
REGISTER_SIZE = 16  # numbers in a vector register; torch handles shorter axes one number at a time
MAX_KEYS = 8  # largest number of keys per query in ``SparseKeys``; with more, full matrix products are faster
# The largest head width for ``SparseKeys`` without gradients; for wider heads, torch's product of all keys is faster.
MAX_SPARSE_HEAD_WIDTH = 16


@dataclass(frozen=True, slots=True)
class Band(PackedTensor):
    """The attention bias "n h w" of each position's w nearest positions, if all heads see only neighbours; −inf for
    missing positions."""


@dataclass(frozen=True, slots=True)
class SparseKeys:
    """Index lists: for each head and position, the k keys that its query sees, and the k queries that see its key.

    ``keys`` and ``queries`` index the projections "n 3 h e", whose first three axes are flattened. If index i
    is a query's, the key of the same position is at i + h, and the value at i + 2 h.
    """

    ragged: Ragged
    keys: Int[Tensor, "n h k"]  # the positions that this query sees
    bias: Float[Tensor, "n h k"]  # attention bias; −inf in entries beyond the keys that the query sees
    queries: Int[Tensor, "n h k"]  # the queries that see this key
    flat_queries: Int[Tensor, "n h k"]  # the same queries, as indices into "n h"
    key_entries: Int[Tensor, "n h k"]  # index of this key in the lists ``keys`` of these queries, flattened
    real_mask: Float[Tensor, "n h k"]  # 1, or 0 in entries beyond the queries that see this key

    @staticmethod
    def from_bias(bias: Float[Tensor, "#b h t t"], ragged: Ragged) -> SparseKeys | None:
        """Build the lists from an attention bias, −inf for hidden keys. Return None if a query sees more than
        ``MAX_KEYS`` keys, or more than ``MAX_KEYS`` queries see a key."""
        count = len(ragged.padded_index)
        number = ragged.unpack(torch.arange(1, count + 1)) - 1  # index among all positions; −1: padding
        padding_mask = number >= 0
        visible = (bias > -torch.inf) & padding_mask[:, None, :, None] & padding_mask[:, None, None]
        max_keys = int(torch.maximum(visible.sum(-1).max(), visible.sum(-2).max()))
        if max_keys > MAX_KEYS:
            return None
        shape = count, visible.shape[1], max_keys
        # One entry per visible pair. ``by_query`` is its index in the lists by query, ``by_key`` in those by key.
        row, head, position, key = visible.nonzero().unbind(1)
        query_index, key_index = number[row, position], number[row, key]
        in_row, in_key = query_index * shape[1] + head, key_index * shape[1] + head

        def count_earlier_equal(values: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
            """Return, for each entry, the number of equal entries before it."""
            sizes = torch.bincount(values)
            first = (sizes.cumsum(0) - sizes).repeat_interleave(sizes)
            order = values.argsort(stable=True)
            return torch.empty_like(values).index_copy(0, order, torch.arange(len(values)) - first)

        by_query = query_index, head, count_earlier_equal(in_row)
        by_key = key_index, head, count_earlier_equal(in_key)

        def build_table(index: tuple[Tensor, ...], values: Tensor) -> Int[Tensor, "n h k"]:
            return torch.zeros(shape, dtype=torch.long).index_put(index, values)

        values = bias.expand(visible.shape)[row, head, position, key]
        return SparseKeys(
            ragged,
            keys=build_table(by_query, in_key + 2 * shape[1] * key_index),
            bias=bias.new_full(shape, -torch.inf).index_put(by_query, values),
            queries=build_table(by_key, in_row + 2 * shape[1] * query_index),
            flat_queries=build_table(by_key, in_row),
            key_entries=build_table(by_key, in_row * max_keys + by_query[2]),
            real_mask=bias.new_zeros(shape).index_put(by_key, torch.ones_like(values)),
        )

    def take(self, rows: slice) -> SparseKeys:
        """Select the first rows."""
        positions = self.ragged.find_packed_positions(rows)
        parts = (self.keys, self.bias, self.queries, self.flat_queries, self.key_entries, self.real_mask)
        return SparseKeys(self.ragged.take(rows), *(part[positions] for part in parts))


@dataclass(frozen=True, slots=True)
class PaddedGroups:
    """Groups of rows of about equal length; each group is padded to its longest row and has an ``AttentionContext``."""

    groups: list[tuple[Ragged, AttentionContext]]

    def take(self, rows: slice) -> PaddedGroups:
        """Select the first rows."""
        rows_left, parts = rows.stop, []
        for ragged, context in self.groups:
            count = min(rows_left, len(ragged.ends))
            if count:
                parts.append((ragged.take(slice(count)), select_rows(context, slice(count))))
            rows_left -= count
        return PaddedGroups(parts)


Pattern = Band | SparseKeys | PaddedGroups  # ``take`` selects the first rows


def build_pattern(encodings: Sequence[Encoding], inputs: Inputs, causal: bool, attention: SoftmaxAttention) -> Pattern:
    """Choose and build the pattern of a batch, whose rows should be sorted by length."""
    ragged, heads = Ragged.from_mask(inputs.padding_mask), attention.heads
    attending = [encoding for encoding in encodings if encoding.attends]
    if [type(encoding) for encoding in attending] == [LocalEncoding]:
        learned: Tensor = attending[0].bias  # type: ignore[assignment]
        reach = learned.shape[1] // 2
        visible = F.pad(inputs.padding_mask, (reach, reach)).unfold(1, 2 * reach + 1, 1).clone()
        visible[..., reach] = True  # every position sees itself, because a softmax needs a key
        if causal:
            visible[..., reach + 1 :] = False
        return Band(learned.masked_fill(~ragged.pack(visible)[:, None], -torch.inf), ragged)
    windows = [one.head_mask for one in attending if isinstance(one, LocalHeadsEncoding)]  # or its subclass
    all_windows = len(windows) == len(attending) > 0 and not attention.dropout
    fits = torch.is_grad_enabled() or attention.out.in_features // heads <= MAX_SPARSE_HEAD_WIDTH
    if all_windows and fits and bool(torch.stack(windows).any(0).all()):  # every head has a window
        bias = AttentionContext.build(encodings, inputs, causal=causal).bias
        sparse = None if bias is None else SparseKeys.from_bias(bias.expand(-1, heads, -1, -1), ragged)
        if sparse is not None:
            return sparse
    # At most ``MAX_GROUPS`` groups of equally many rows; a single group if all rows have about the same length.
    rows, groups = len(ragged.ends), []
    dense = ragged.ends[-1] >= MIN_DENSE_FRACTION * rows * ragged.width
    group_rows = rows if dense else max(MIN_ROWS, MIN_HEADS // heads, -(-rows // MAX_GROUPS))
    for start in range(0, rows, group_rows):
        part = inputs.take(slice(start, start + group_rows)).cut_padding()
        context, padded = AttentionContext.build(encodings, part, causal=causal), Ragged.from_mask(part.padding_mask)
        # Without padding, causality and positional terms, every query sees every key: the bias would be all zeros.
        if padded.is_full and not causal and not attending:
            context = context._replace(bias=None)
        groups.append((padded, context))
    return PaddedGroups(groups)


def mix_values(attention: SoftmaxAttention, qkv: Float[Tensor, "n 3 h e"], pattern: Pattern) -> Tensor:
    """Return every query's softmax attention "n h e" over its visible keys."""
    probability = get_dropout_probability(attention)
    if isinstance(pattern, SparseKeys):
        return _SparseAttention.apply(qkv, pattern.bias, pattern)
    if isinstance(pattern, Band):
        query, key, value = qkv.unbind(1)
        positions, offsets = len(query), pattern.value.shape[-1]
        query = query * query.shape[-1] ** -0.5
        # At a row's ends, neighbours include positions of other rows, which the bias hides.
        key, value = (F.pad(part, (0, 0, 0, 0, offsets // 2, offsets // 2)) for part in (key, value))
        scores = torch.stack([(query * key.narrow(0, i, positions)).sum(-1) for i in range(offsets)], -1)
        weights = dropout(softmax(scores + pattern.value), probability)
        neighbours = [weights[..., i, None] * value.narrow(0, i, positions) for i in range(offsets)]
        return sum(neighbours[1:], neighbours[0])
    outputs = []
    parts = qkv.split([ragged.ends[-1] for ragged, _ in pattern.groups])
    for part, (ragged, context) in zip(parts, pattern.groups, strict=True):
        shape = len(ragged.ends), ragged.width, qkv.shape[2], qkv.shape[3]
        if context.keys is None and small_heads.is_worthwhile(shape, probability):
            plan = small_heads.AttentionPlan.build(qkv, attention.heads, ragged, context)
            outputs.append(small_heads.attend(part, plan, probability))
        else:
            outputs.append(ragged.pack(attention.attend(ragged.unpack(part), context)))
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs)


def get_attention(block: Block) -> SoftmaxAttention:
    """Return the mixer of a block that the runner supports, which is always softmax attention."""
    return cast(SoftmaxAttention, block.mixer)


def get_dropout_probability(attention: SoftmaxAttention) -> float:
    """Return the probability of dropping an attention weight: 0 in evaluation mode."""
    return attention.dropout if attention.training else 0.0


def softmax(scores: Float[Tensor, "*n k"]) -> Float[Tensor, "*n k"]:
    """Compute the softmax over the last axis. A short axis is padded with −inf: without it, torch's softmax is up to
    ten times slower on a CPU."""
    k = scores.shape[-1]
    if k >= REGISTER_SIZE:
        return scores.softmax(-1)
    return F.pad(scores, (0, REGISTER_SIZE - k), value=-torch.inf).softmax(-1)[..., :k]


class _SparseAttention(torch.autograd.Function):
    """Sparse attention as an autograd function. A key's gradient is gathered from the queries that see it, which is
    faster than scattering."""

    @staticmethod
    def forward(ctx: Any, qkv: Float[Tensor, "n 3 h e"], bias: Tensor, sparse: SparseKeys) -> Float[Tensor, "n h e"]:
        heads, scale = qkv.shape[2], qkv.shape[-1] ** -0.5
        table = qkv.flatten(0, 2)
        weights = softmax(_compute_dot_products(qkv[:, 0] * scale, table, sparse.keys + heads) + bias)
        ctx.sparse = sparse
        ctx.save_for_backward(qkv, weights)
        return _weight_and_sum(table, sparse.keys + 2 * heads, weights)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "n h e"]) -> tuple[Tensor, Tensor, None]:
        (qkv, weights), sparse = ctx.saved_tensors, ctx.sparse
        heads, scale = qkv.shape[2], qkv.shape[-1] ** -0.5
        table, gradient = qkv.flatten(0, 2), gradient.contiguous()
        # The gradient of the scores: weight · (gradient of the weight − its mean under the weights).
        scores = _compute_dot_products(gradient, table, sparse.keys + 2 * heads) * weights
        scores = scores - weights * scores.sum(-1, keepdim=True)
        grad_query = _weight_and_sum(table, sparse.keys + heads, scores * scale)
        grad_key = _weight_and_sum(table, sparse.queries, scores.take(sparse.key_entries) * sparse.real_mask * scale)
        grad_value = _weight_and_sum(
            gradient.flatten(0, 1), sparse.flat_queries, weights.take(sparse.key_entries) * sparse.real_mask
        )
        return torch.stack([grad_query, grad_key, grad_value], 1), scores, None


def _compute_dot_products(
    query: Float[Tensor, "n h e"], table: Float[Tensor, "m e"], rows: Int[Tensor, "n h k"]
) -> Float[Tensor, "n h k"]:
    return (query[:, :, None] * F.embedding(rows, table)).sum(-1)


def _weight_and_sum(
    table: Float[Tensor, "m e"], rows: Int[Tensor, "n h k"], weights: Float[Tensor, "n h k"]
) -> Float[Tensor, "n h e"]:
    sums = F.embedding_bag(rows.flatten(0, 1), table, mode="sum", per_sample_weights=weights.flatten(0, 1))
    return sums.view(*rows.shape[:2], -1)
