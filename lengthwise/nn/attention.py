"""Multi-head attention."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from lengthwise.nn import few, lanes
from lengthwise.nn.dropout import dropout
from lengthwise.nn.pattern import Parts, Pattern, Shared, future
from lengthwise.nn.position import rotate
from lengthwise.types import UsageError


def _mask(pattern: Pattern, dtype: torch.dtype) -> Tensor | None:
    """What is added to scores, in their type: the kernels do not check it; or which keys are present."""
    bias = pattern.bias.value if isinstance(pattern.bias, Shared) else pattern.bias
    if bias is None or pattern.mask is None:
        return pattern.mask if bias is None else bias.to(dtype)
    return bias.masked_fill(~pattern.mask, -torch.inf).to(dtype)


def _by_hand(
    query: Float[Tensor, "b h t e"], key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, share: float
) -> Float[Tensor, "b h t e"]:
    """Attention with dropout, for a CPU, where the library's own is slow: it has no fused kernel for it."""
    scores = query @ (key * query.shape[-1] ** -0.5).mT
    if causal:
        scores = scores.masked_fill_(future(scores), -torch.inf)
    elif mask is not None:
        # Absent places may see nothing at all: they get something finite, which nobody looks at.
        least = torch.finfo(scores.dtype).min
        scores = scores.masked_fill(~mask, least) if mask.dtype == torch.bool else scores + mask.clamp(min=least)
    return dropout(scores.softmax(-1), share) @ value


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

    def forward(self, x: Float[Tensor, "*b d"], pattern: Pattern) -> Float[Tensor, "*b d"]:
        projected = self.project(x).unflatten(-1, (3, self.heads, -1))
        return self.out(self._mixed(projected, pattern).flatten(-2))

    def _mixed(self, projected: Float[Tensor, "*b 3 h e"], pattern: Pattern) -> Float[Tensor, "*b h e"]:
        """What each place finds."""
        if pattern.few is not None:
            return few.attend(projected, pattern.few)
        if pattern.parts is not None:
            return self._by_parts(projected, pattern.parts)
        if pattern.band is not None and pattern.keys is None and pattern.angles is None:
            query, key, value = projected.unbind(-3)
            return self._local(query, key, value, pattern)
        query, key, value = (part.transpose(1, 2) for part in projected.unbind(2))
        if pattern.keys is not None:
            places = pattern.keys.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            query, key = query + places, key + places
        if pattern.angles is not None:
            query, key = rotate(query, pattern.angles), rotate(key, pattern.angles)
        if pattern.band is not None:
            query, key, value = (part.transpose(1, 2) for part in (query, key, value))
            return self._local(query, key, value, pattern)
        if pattern.memory is not None:
            key, value = pattern.memory.extend(key, value)
        return self._all(query, key, value, pattern).transpose(1, 2)

    def _by_parts(self, projected: Float[Tensor, "n 3 h e"], parts: Parts) -> Float[Tensor, "n h e"]:
        groups = projected.split([ragged.ends[-1] for ragged, _ in parts.each])
        return torch.cat(
            [
                ragged.pack(self._mixed(ragged.unpack(group), pattern))
                for (ragged, pattern), group in zip(parts.each, groups, strict=True)
            ]
        )

    def _all(
        self, query: Float[Tensor, "b h t e"], key: Tensor, value: Tensor, pattern: Pattern
    ) -> Float[Tensor, "b h t e"]:
        mask = _mask(pattern, query.dtype)
        if mask is not None and mask.shape[-1] > key.shape[2]:
            key, value = F.pad(key, (0, 0, 0, 1)), F.pad(value, (0, 0, 0, 1))
        causal, share = self.causal and pattern.bias is None, self.dropout if self.training else 0.0
        if causal and mask is None and not share and lanes.pays(query):
            return lanes.attend(query, key, value)
        if share and query.device.type == "cpu":
            return _by_hand(query, key, value, mask, causal, share)
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal, dropout_p=share)

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
        weights = (scores + band).softmax(-1)
        if self.training:
            weights = dropout(weights, self.dropout)
        return sum(  # type: ignore[return-value]
            (weights[..., i, None] * value.narrow(-3, i, t) for i in range(1, offsets)),
            weights[..., 0, None] * value.narrow(-3, 0, t),
        )
