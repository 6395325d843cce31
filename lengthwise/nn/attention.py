"""Multi-head attention."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lengthwise.base.types import UsageError
from lengthwise.nn import few, small
from lengthwise.nn.dropout import dropout
from lengthwise.nn.packed import Ragged, picked
from lengthwise.nn.pattern import Parts, Pattern, Shared
from lengthwise.nn.position import rotate
from lengthwise.nn.softmax import softmax


def _mask(pattern: Pattern, dtype: torch.dtype) -> Tensor | None:
    """What is added to scores, in their type: the kernels do not check it; or which keys are present."""
    bias = pattern.bias.value if isinstance(pattern.bias, Shared) else pattern.bias
    if bias is None or pattern.mask is None:
        return pattern.mask if bias is None else bias.to(dtype)
    return bias.masked_fill(~pattern.mask, -torch.inf).to(dtype)


def _turned(projected: Float[Tensor, "*b 3 h e"], angles: Tensor | None) -> tuple[Tensor, ...]:
    """Queries, keys and values, "*b h e", the first two turned by their positions' angles."""
    query, key, value = projected.unbind(-3)
    return (query, key, value) if angles is None else (rotate(query, angles), rotate(key, angles), value)


class Attention(nn.Module):
    """Multi-head self-attention with fused projections (Vaswani et al. 2017)."""

    def __init__(self, width: int, heads: int, *, causal: bool, dropout: float = 0.0, biases: bool = True) -> None:
        super().__init__()
        if width % heads:
            raise UsageError(f"width must be a multiple of heads, not {width} / {heads}")
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.project = nn.Linear(width, 3 * width, bias=biases)
        self.out = nn.Linear(width, width, bias=biases)

    @torch.no_grad()
    def start_alike(self, heads: Bool[Tensor, " h"]) -> None:
        """Give the keys of these heads the weights of their queries."""
        query, key, _ = self.project.weight.view(3, self.heads, -1, self.project.in_features)
        key[heads] = query[heads]

    def forward(
        self, x: Float[Tensor, "*b d"], pattern: Pattern, at: Int[Tensor, " m"] | None = None
    ) -> Float[Tensor, "*b d"] | Float[Tensor, "m d"]:
        """With ``at``, what comes out at these places only, counted row after row."""
        projected = self.project(x).unflatten(-1, (3, self.heads, -1))
        mixed = self._mixed(projected, pattern).flatten(-2)
        return self.out(mixed if at is None else picked(mixed, at))

    def looks(self, like: Tensor, shape: tuple[int, int], pattern: Pattern) -> list[small.Look] | None:
        """How small heads of rows and places see each other: those of some rows, then those of the next. None where
        there is more to it, or something to learn."""
        each: list[tuple[Any, Pattern]] = [(shape, pattern)] if pattern.parts is None else pattern.parts.each
        found = []
        for shape, part in each:
            mask, causal = _mask(part, like.dtype), self.causal and part.bias is None
            if part.few or part.memory or any(more is not None for more in (part.band, part.keys, part.angles)):
                return None
            positions = shape.width if isinstance(shape, Ragged) else shape[1]
            if mask is not None and (mask.requires_grad or mask.shape[-1] > positions):
                return None
            found.append(small.Look.of(like, self.heads, shape, mask, None, causal=causal))
        return found

    def pays(self, x: Float[Tensor, "*b d"], rows: int, positions: int, least: int = small.LEAST) -> bool:
        """Is attention of small heads the quickest for so many rows of so many places?"""
        size = self.out.in_features // self.heads
        return small.pays(x, (rows, positions, self.heads, size), self.share(), least)

    def share(self) -> float:
        """Of the weights that are dropped."""
        return self.dropout if self.training else 0.0

    def _mixed(self, projected: Float[Tensor, "*b 3 h e"], pattern: Pattern) -> Float[Tensor, "*b h e"]:
        """What each place finds."""
        if pattern.few is not None:
            return few.attend(projected, pattern.few)
        if pattern.parts is not None:
            return self._by_parts(projected, pattern.parts)
        if pattern.keys is not None:
            positions = pattern.keys.unflatten(-1, (1, self.heads, -1))
            projected = torch.cat([projected[:, :, :2] + positions, projected[:, :, 2:]], 2)
        if pattern.band is not None:
            query, key, value = _turned(projected, pattern.angles)
            return self._local(query, key, value, pattern)
        return self._whole(projected, pattern)

    def _by_parts(self, projected: Float[Tensor, "n 3 h e"], parts: Parts) -> Float[Tensor, "n h e"]:
        if len(parts.each) == 1:
            return self._part(projected, *parts.each[0])
        groups = projected.split([ragged.ends[-1] for ragged, _ in parts.each])
        return torch.cat([self._part(group, *part) for group, part in zip(groups, parts.each, strict=True)])

    def _part(self, projected: Float[Tensor, "n 3 h e"], ragged: Ragged, pattern: Pattern) -> Float[Tensor, "n h e"]:
        if pattern.band is None and pattern.keys is None and self.pays(projected, len(ragged.ends), ragged.width):
            return self._small(projected, pattern, ragged)
        return ragged.pack(self._mixed(ragged.unpack(projected), pattern))

    def _whole(self, projected: Float[Tensor, "b t 3 h e"], pattern: Pattern) -> Float[Tensor, "b t h e"]:
        """Attention to all that the pattern shows, in the way that is quickest."""
        rows, positions = projected.shape[:2]
        if pattern.memory is None and self.pays(projected, rows, positions):
            return self._small(projected, pattern)
        query, key, value = (part.transpose(1, 2) for part in _turned(projected, pattern.angles))
        if pattern.memory is not None:
            key, value = pattern.memory.extend(key, value)
        mask = _mask(pattern, projected.dtype)
        if mask is not None and mask.shape[-1] > key.shape[2]:
            key, value = F.pad(key, (0, 0, 0, 1)), F.pad(value, (0, 0, 0, 1))
        causal, share = self.causal and pattern.bias is None, self.share()
        found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal, dropout_p=share)
        return found.transpose(1, 2)

    def _small(
        self, projected: Float[Tensor, "*b 3 h e"], pattern: Pattern, ragged: Ragged | None = None
    ) -> Float[Tensor, "*b h e"]:
        mask, causal = _mask(pattern, projected.dtype), self.causal and pattern.bias is None
        return small.attend(projected, mask, pattern.angles, causal=causal, share=self.share(), ragged=ragged)

    def _local(
        self, query: Float[Tensor, "*b t h e"], key: Tensor, value: Tensor, pattern: Pattern
    ) -> Float[Tensor, "*b t h e"]:
        """Attention to a few neighbours, computed for them alone: linear in the row's length. Of packed rows, those of
        the next row are neighbours too, which the band hides."""
        band = pattern.band if isinstance(pattern.band, Tensor) else pattern.band.value
        t, offsets = query.shape[-3], band.shape[-1]
        reach = offsets // 2
        query = query * query.shape[-1] ** -0.5
        key, value = (F.pad(part, (0, 0, 0, 0, reach, reach)) for part in (key, value))
        scores = torch.stack([(query * key.narrow(-3, i, t)).sum(-1) for i in range(offsets)], -1)
        weights = softmax(scores + band)
        if self.training:
            weights = dropout(weights, self.dropout)
        return sum(  # type: ignore[return-value]
            (weights[..., i, None] * value.narrow(-3, i, t) for i in range(1, offsets)),
            weights[..., 0, None] * value.narrow(-3, 0, t),
        )
