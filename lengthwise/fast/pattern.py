"""Who looks at whom among rows without padding, in the form that is quickest to compute."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from lengthwise.base.types import Inputs
from lengthwise.depth.plain import first
from lengthwise.fast import few, small
from lengthwise.fast.dropout import dropout
from lengthwise.fast.few import Few
from lengthwise.fast.ragged import Packed, Ragged
from lengthwise.fast.softmax import softmax
from lengthwise.nn.attention import SoftmaxAttention
from lengthwise.nn.block import Block
from lengthwise.nn.mixer import Sight
from lengthwise.nn.position import Encoding
from lengthwise.nn.window import CoupledHeadsEncoding, LocalEncoding, LocalHeadsEncoding

# Rows are attended to in up to so many groups, of so many rows and so many heads in all at least.
GROUPS, ROWS, HEADS = 4, 8, 512


@dataclass(frozen=True, slots=True)
class Band:
    """All heads see neighbours only: the bias of each, "n h w", −inf where there is none."""

    bias: Packed

    def take(self, rows: slice) -> Band:
        return Band(self.bias.take(rows))

    def keep(self, at: Int[Tensor, " m"]) -> Band:
        """Some positions, in their order."""
        return Band(self.bias.keep(at))


@dataclass(frozen=True, slots=True)
class Parts:
    """Rows in groups of about equal length, with the sight of each: what is not done position by position needs
    padding, but less of it."""

    each: list[tuple[Ragged, Sight]]

    def take(self, rows: slice) -> Parts:
        """The first rows."""
        left, parts = rows.stop, []
        for ragged, sight in self.each:
            count = min(left, len(ragged.ends))
            if count:
                parts.append((ragged.take(slice(count)), first(sight, count)))
            left -= count
        return Parts(parts)


Pattern = Band | Few | Parts  # each can ``take`` its first rows


def pattern_of(encodings: Sequence[Encoding], inputs: Inputs, causal: bool, attention: SoftmaxAttention) -> Pattern:
    """Of rows that are longest first. Where all heads see few positions, they look them up."""
    ragged = Ragged.of(inputs.padding_mask)
    kinds = [type(encoding) for encoding in encodings if encoding.attends]
    if kinds == [LocalEncoding]:
        (local,) = (encoding for encoding in encodings if isinstance(encoding, LocalEncoding))
        return Band(_band(local.bias, inputs.padding_mask, ragged, causal=causal))
    if not attention.dropout and _few_are_seen(encodings):
        bias = Sight.of(encodings, inputs, causal=causal).bias
        found = None if bias is None else Few.of(bias.expand(-1, attention.heads, -1, -1), ragged)
        if found is not None:
            return found
    return Parts([_part(encodings, inputs, rows, ragged, causal) for rows in _groups(ragged, attention.heads)])


def _part(
    encodings: Sequence[Encoding], inputs: Inputs, rows: slice, ragged: Ragged, causal: bool
) -> tuple[Ragged, Sight]:
    own = inputs.take(rows).columns(0, ragged.longest(rows))
    part, sight = Ragged.of(own.padding_mask), Sight.of(encodings, own, causal=causal)
    alone = part.full and not causal and not any(encoding.attends for encoding in encodings)
    return part, sight._replace(bias=None) if alone else sight


def _few_are_seen(encodings: Sequence[Encoding]) -> bool:
    """Do these windows leave no head that sees the whole row?"""
    windows = [encoding for encoding in encodings if isinstance(encoding, (LocalHeadsEncoding, CoupledHeadsEncoding))]
    if not windows or any(encoding.attends and encoding not in windows for encoding in encodings):
        return False
    return bool(torch.stack([window.chosen for window in windows]).any(0).all())


def _groups(ragged: Ragged, heads: int) -> list[slice]:
    """Rows in up to ``GROUPS`` groups of equally many rows each; in one where none is shorter than another."""
    rows = len(ragged.ends)
    most = rows if ragged.full else max(ROWS, HEADS // heads, -(-rows // GROUPS))
    return [slice(start, min(start + most, rows)) for start in range(0, rows, most)]


def _band(bias: Float[Tensor, "h w"], padding_mask: Bool[Tensor, "b t"], ragged: Ragged, *, causal: bool) -> Packed:
    """The neighbours of each position. One sees itself always, so that absent ones have something to look at."""
    reach = bias.shape[1] // 2
    seen = F.pad(padding_mask, (reach, reach)).unfold(1, 2 * reach + 1, 1).clone()
    seen[..., reach] = True
    if causal:
        seen[..., reach + 1 :] = False
    return Packed(bias.masked_fill(~ragged.pack(seen)[:, None], -torch.inf), ragged)


def mixed(attention: SoftmaxAttention, projected: Float[Tensor, "n 3 h e"], pattern: Pattern) -> Tensor:
    """What each position finds, "n h e"."""
    if isinstance(pattern, Few):
        return few.attend(projected, pattern)
    if isinstance(pattern, Band):
        return _local(attention, projected, pattern.bias.value)
    groups = projected.split([ragged.ends[-1] for ragged, _ in pattern.each])
    found = [_by_part(attention, group, *part) for group, part in zip(groups, pattern.each, strict=True)]
    return found[0] if len(found) == 1 else torch.cat(found)


def _by_part(
    attention: SoftmaxAttention, projected: Float[Tensor, "n 3 h e"], ragged: Ragged, sight: Sight
) -> Float[Tensor, "n h e"]:
    heads, size = projected.shape[2:]
    probability = dropped(attention)
    if sight.keys is None and small.pays((len(ragged.ends), ragged.width, heads, size), probability):
        bias = None if sight.bias is None else sight.bias.to(projected.dtype)
        causal = sight.causal and bias is None
        return small.attend(projected, bias, sight.angles, causal=causal, probability=probability, ragged=ragged)
    return ragged.pack(attention.mix(ragged.unpack(projected), sight))


def looks(attention: SoftmaxAttention, like: Tensor, pattern: Pattern) -> list[small.Look] | None:
    """How small heads see each other, part by part. None where there is more to it, or something to learn."""
    if not isinstance(pattern, Parts):
        return None
    found = []
    for ragged, (_, causal, bias, angles, keys) in pattern.each:
        learned = bias is not None and (bias.requires_grad or bias.shape[-1] > ragged.width)
        if angles is not None or keys is not None or learned:
            return None
        bias = None if bias is None else bias.to(like.dtype)
        found.append(small.Look.of(like, attention.heads, ragged, bias, None, causal=causal and bias is None))
    return found


def attention_of(block: Block) -> SoftmaxAttention:
    """The mixer of a block that is claimed."""
    return cast(SoftmaxAttention, block.mixer)


def dropped(attention: SoftmaxAttention) -> float:
    """The probability with which a weight is dropped now."""
    return attention.dropout if attention.training else 0.0


def _local(
    attention: SoftmaxAttention, projected: Float[Tensor, "n 3 h e"], band: Float[Tensor, "n h w"]
) -> Float[Tensor, "n h e"]:
    """Attention to a few neighbours, computed for them alone: linear in the row's length. Those of the next row are
    neighbours too, which the band hides."""
    query, key, value = projected.unbind(1)
    positions, offsets = len(query), band.shape[-1]
    query = query * query.shape[-1] ** -0.5
    reach = offsets // 2
    key, value = (F.pad(part, (0, 0, 0, 0, reach, reach)) for part in (key, value))
    scores = torch.stack([(query * key.narrow(0, i, positions)).sum(-1) for i in range(offsets)], -1)
    weights = dropout(softmax(scores + band), dropped(attention))
    found = [weights[..., i, None] * value.narrow(0, i, positions) for i in range(offsets)]
    return sum(found[1:], found[0])
