"""The choice of how a packed batch computes attention, for a CPU.

``Band`` if all heads see only neighbours (``Local``): its cost is linear in the row's length. ``SparseKeys`` if every
head sees few positions. Otherwise ``PaddedGroups``: groups of rows of about equal length with an attention bias for
each, computed by ``small`` if heads are small, else by ``SoftmaxAttention.attend``. All three are the same softmax over
the visible keys, so results are equal up to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from lengthwise.base.types import Inputs
from lengthwise.nn.attention import SoftmaxAttention
from lengthwise.nn.block import Block
from lengthwise.nn.mixer import AttentionContext
from lengthwise.nn.position import Encoding
from lengthwise.nn.window import CoupledHeadsEncoding, LocalEncoding, LocalHeadsEncoding
from lengthwise.runners.cpu import small, sparse_keys
from lengthwise.runners.cpu.elementwise import dropout
from lengthwise.runners.cpu.packing import Packed, Ragged
from lengthwise.runners.cpu.sparse_keys import SparseKeys, softmax
from lengthwise.runners.plain import select_rows

# The largest number of groups in a batch; the smallest number of rows in a group, and of heads in all its rows.
MAX_GROUPS, MIN_ROWS, MIN_HEADS = 4, 8, 512
DENSE = 0.9  # if a larger fraction of positions is real, computing padding costs less than another group


@dataclass(frozen=True, slots=True)
class Band:
    """The attention bias "n h w" of each position's w nearest positions, if all heads see only neighbours; −inf for
    missing positions."""

    bias: Packed

    def take(self, rows: slice) -> Band:
        return Band(self.bias.take(rows))

    def select(self, at: Int[Tensor, " m"]) -> Band:
        """Select positions by index, in increasing order."""
        return Band(self.bias.select(at))


@dataclass(frozen=True, slots=True)
class PaddedGroups:
    """Groups of rows of about equal length, each padded to its longest row, with its ``AttentionContext``."""

    each: list[tuple[Ragged, AttentionContext]]

    def take(self, rows: slice) -> PaddedGroups:
        """Select the first rows."""
        left, parts = rows.stop, []
        for ragged, context in self.each:
            count = min(left, len(ragged.ends))
            if count:
                parts.append((ragged.take(slice(count)), select_rows(context, slice(count))))
            left -= count
        return PaddedGroups(parts)


Pattern = Band | SparseKeys | PaddedGroups  # ``take`` selects first rows


def build_pattern(encodings: Sequence[Encoding], inputs: Inputs, causal: bool, attention: SoftmaxAttention) -> Pattern:
    """Choose and build the pattern of a batch, whose rows should be sorted by length."""
    ragged = Ragged.from_mask(inputs.padding_mask)
    kinds = [type(encoding) for encoding in encodings if encoding.attends]
    if kinds == [LocalEncoding]:
        (local,) = (encoding for encoding in encodings if isinstance(encoding, LocalEncoding))
        return Band(_build_band(local.bias, inputs.padding_mask, ragged, causal=causal))
    width = attention.out.in_features // attention.heads
    if sparse_keys.is_worthwhile(width) and not attention.dropout and _all_heads_have_windows(encodings):
        bias = AttentionContext.of(encodings, inputs, causal=causal).bias
        found = None if bias is None else SparseKeys.from_bias(bias.expand(-1, attention.heads, -1, -1), ragged)
        if found is not None:
            return found
    return PaddedGroups(
        [_group_context(encodings, inputs, rows, ragged, causal) for rows in _split_groups(ragged, attention.heads)]
    )


def _group_context(
    encodings: Sequence[Encoding], inputs: Inputs, rows: slice, ragged: Ragged, causal: bool
) -> tuple[Ragged, AttentionContext]:
    own = inputs.take(rows).columns(0, ragged.longest_row(rows))
    part, context = Ragged.from_mask(own.padding_mask), AttentionContext.of(encodings, own, causal=causal)
    # Without padding, causality and positional terms, every query sees every key: the bias would be all zeros.
    alone = part.is_full and not causal and not any(encoding.attends for encoding in encodings)
    return part, context._replace(bias=None) if alone else context


def _all_heads_have_windows(encodings: Sequence[Encoding]) -> bool:
    """Return whether every head has a window."""
    windows = [encoding for encoding in encodings if isinstance(encoding, (LocalHeadsEncoding, CoupledHeadsEncoding))]
    if not windows or any(encoding.attends and encoding not in windows for encoding in encodings):
        return False
    return bool(torch.stack([window.chosen for window in windows]).any(0).all())


def _split_groups(ragged: Ragged, heads: int) -> list[slice]:
    """Split rows into at most ``MAX_GROUPS`` groups of equally many rows; one group if all have about one length."""
    rows = len(ragged.ends)
    dense = ragged.ends[-1] >= DENSE * rows * ragged.width
    most = rows if dense else max(MIN_ROWS, MIN_HEADS // heads, -(-rows // MAX_GROUPS))
    return [slice(start, min(start + most, rows)) for start in range(0, rows, most)]


def _build_band(
    bias: Float[Tensor, "h w"], padding_mask: Bool[Tensor, "b t"], ragged: Ragged, *, causal: bool
) -> Packed:
    """Return the attention bias of each position's neighbours. Every position sees itself, because a softmax needs a
    key."""
    reach = bias.shape[1] // 2
    seen = F.pad(padding_mask, (reach, reach)).unfold(1, 2 * reach + 1, 1).clone()
    seen[..., reach] = True
    if causal:
        seen[..., reach + 1 :] = False
    return Packed(bias.masked_fill(~ragged.pack(seen)[:, None], -torch.inf), ragged)


def mix_values(attention: SoftmaxAttention, qkv: Float[Tensor, "n 3 h e"], pattern: Pattern) -> Tensor:
    """Return every query's softmax attention "n h e" over its visible keys."""
    if isinstance(pattern, SparseKeys):
        return sparse_keys.attend(qkv, pattern)
    if isinstance(pattern, Band):
        return _attend_locally(attention, qkv, pattern.bias.value)
    groups = qkv.split([ragged.ends[-1] for ragged, _ in pattern.each])
    found = [_mix_group(attention, group, *part) for group, part in zip(groups, pattern.each, strict=True)]
    return found[0] if len(found) == 1 else torch.cat(found)


def _mix_group(
    attention: SoftmaxAttention, qkv: Float[Tensor, "n 3 h e"], ragged: Ragged, context: AttentionContext
) -> Float[Tensor, "n h e"]:
    heads, size = qkv.shape[2:]
    probability = dropout_probability(attention)
    if context.keys is None and small.is_worthwhile((len(ragged.ends), ragged.width, heads, size), probability):
        bias = None if context.bias is None else context.bias.to(qkv.dtype)
        causal = context.causal and bias is None
        return small.attend(qkv, bias, context.angles, causal=causal, probability=probability, ragged=ragged)
    return ragged.pack(attention.attend(ragged.unpack(qkv), context))


def attention_plans(attention: SoftmaxAttention, like: Tensor, pattern: Pattern) -> list[small.AttentionPlan] | None:
    """Return the plans for ``small``'s attention, one per group; None if the pattern is not ``PaddedGroups``, or has
    rotations, added keys, a blank, or a learned bias."""
    if not isinstance(pattern, PaddedGroups):
        return None
    found = []
    for ragged, (_, causal, bias, angles, keys, _) in pattern.each:
        learned = bias is not None and (bias.requires_grad or bias.shape[-1] > ragged.width)
        if angles is not None or keys is not None or learned:
            return None
        bias = None if bias is None else bias.to(like.dtype)
        causal = causal and bias is None
        found.append(small.AttentionPlan.build(like, attention.heads, ragged, bias, None, causal=causal))
    return found


def block_attention(block: Block) -> SoftmaxAttention:
    """Return the mixer of a claimed block, which is always softmax attention."""
    return cast(SoftmaxAttention, block.mixer)


def dropout_probability(attention: SoftmaxAttention) -> float:
    """Return the probability of dropping an attention weight: 0 in evaluation mode."""
    return attention.dropout if attention.training else 0.0


def _attend_locally(
    attention: SoftmaxAttention, qkv: Float[Tensor, "n 3 h e"], band: Float[Tensor, "n h w"]
) -> Float[Tensor, "n h e"]:
    """Compute attention over neighbours. At a row's ends, neighbours include positions of other rows, which ``band``
    hides."""
    query, key, value = qkv.unbind(1)
    positions, offsets = len(query), band.shape[-1]
    query = query * query.shape[-1] ** -0.5
    reach = offsets // 2
    key, value = (F.pad(part, (0, 0, 0, 0, reach, reach)) for part in (key, value))
    scores = torch.stack([(query * key.narrow(0, i, positions)).sum(-1) for i in range(offsets)], -1)
    weights = dropout(softmax(scores + band), dropout_probability(attention))
    found = [weights[..., i, None] * value.narrow(0, i, positions) for i in range(offsets)]
    return sum(found[1:], found[0])
