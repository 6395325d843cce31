"""Forms of attention that do not dilute: scalable softmax, forgetting and stick-breaking attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lengthwise.base.types import UsageError
from lengthwise.nn.attention import SoftmaxAttention
from lengthwise.nn.attention_context import AttentionContext
from lengthwise.nn.mixer import Mixer, MixerSpec
from lengthwise.nn.mixers.recurrent import without_decay
from lengthwise.nn.position import rotate


@dataclass(frozen=True)
class ScalableSoftmax(MixerSpec):
    """Softmax attention whose scores are multiplied by s log(1 + n), with n the keys up to the query's position and s
    learned per head (Nakanishi 2025, there log n), so that many keys do not flatten it."""

    def build(self, width: int, heads: int, *, dropout: float, biases: bool, **_: Any) -> Mixer:
        return ScalableAttention(width, heads, dropout=dropout, biases=biases)


class ScalableAttention(SoftmaxAttention):
    """The module of ``ScalableSoftmax``. In layouts that are not causal, n counts the row's tokens."""

    def __init__(self, width: int, heads: int, *, dropout: float, biases: bool) -> None:
        super().__init__(width, heads, dropout=dropout, biases=biases)
        self.scale = without_decay(nn.Parameter(torch.full((heads, 1), 0.43)))  # log₁₀ at first

    def mix(
        self, projected: Float[Tensor, "b t 3 h e"], context: AttentionContext, cache: Any = None
    ) -> Float[Tensor, "b t h e"]:
        query, key, value = projected.unbind(2)
        if context.causal:
            before = 0 if cache is None else cache.length
            count = torch.arange(before + 1, before + query.shape[1] + 1, device=query.device)[None]
        else:
            count = context.padding_mask.sum(1, keepdim=True)
        query = query * self.scale * (1 + count).to(query.dtype).log()[..., None, None]  # of one key, too, not zero
        return super().mix(torch.stack([query, key, value], 2), context, cache)


@dataclass(frozen=True)
class ForgettingAttention(MixerSpec):
    """Softmax attention with a forget gate (Lin et al. 2025): to the score of key j for query i, the sum of log f_l for
    j < l ≤ i is added, with f = σ(w x + b) per head. For causal layouts."""

    def build(self, width: int, heads: int, *, causal: bool, biases: bool, **_: Any) -> Mixer:
        _check_causal(self, causal)
        return ForgettingMixer(width, heads, biases=biases)


class ForgettingMixer(SoftmaxAttention):
    """The module of ``ForgettingAttention``.

    The sums of logarithms F enter as two more coordinates of queries and keys: [q, F_i, 1] · [k, 1, −F_j].
    """

    def __init__(self, width: int, heads: int, *, biases: bool) -> None:
        super().__init__(width, heads, biases=biases)
        self.forget = nn.Linear(width, heads, bias=False)
        self.forget_bias = without_decay(nn.Parameter(torch.linspace(2, 6, heads)))

    def forward(
        self, x: Float[Tensor, "b t d"], context: AttentionContext, cache: Any = None
    ) -> Float[Tensor, "b t d"]:
        query, key, value = _positioned(self, x, context)
        total = F.logsigmoid(self.forget(x) + self.forget_bias).transpose(1, 2).cumsum(-1)
        if cache is not None and (kept := cache.last()) is not None:
            total = total - kept[0][:, :, -1:, -1]  # that of the last key so far, with its sign
        width, one = query.shape[-1], torch.ones_like(total)[..., None]
        query = torch.cat([query, total[..., None] * width**0.5, one * width**0.5], -1)
        key = torch.cat([key, one, -total[..., None]], -1)
        if cache is not None:
            key, value = cache.extend(key, value)
        bias = None if context.bias is None else context.bias.to(query.dtype)
        if bias is not None and bias.shape[-1] > key.shape[2]:
            raise UsageError("ForgettingAttention has no blank key: leave out Blank and EarlierHeads")
        found = F.scaled_dot_product_attention(query, key, value, bias, is_causal=bias is None, scale=width**-0.5)
        return self.out(found.transpose(1, 2).flatten(2))


@dataclass(frozen=True)
class StickBreaking(MixerSpec):
    """Stick-breaking attention (Tan et al. 2025): with β = σ(q kᵀ / √e), query i gives key j the weight
    β_ij Π_{j < l ≤ i} (1 − β_il): the nearest keys take first. It needs no positions. For causal layouts."""

    def build(self, width: int, heads: int, *, causal: bool, biases: bool, **_: Any) -> Mixer:
        _check_causal(self, causal)
        return StickBreakingMixer(width, heads, biases=biases)


class StickBreakingMixer(SoftmaxAttention):
    """The module of ``StickBreaking``. A hidden key takes nothing."""

    def forward(
        self, x: Float[Tensor, "b t d"], context: AttentionContext, cache: Any = None
    ) -> Float[Tensor, "b t d"]:
        query, key, value = _positioned(self, x, context)
        if cache is not None:
            key, value = cache.extend(key, value)
        score = query @ key.mT / query.shape[-1] ** 0.5
        hidden = torch.ones(score.shape[-2:], dtype=torch.bool, device=x.device).triu(1 + score.shape[-1] - x.shape[1])
        if context.bias is not None:
            if context.bias.shape[-1] > key.shape[2]:
                raise UsageError("StickBreaking has no blank key: leave out Blank and EarlierHeads")
            score = score + context.bias.to(score.dtype)
        left = F.logsigmoid(-score).masked_fill(hidden, 0.0)  # what a key leaves, as a logarithm
        # log β = score + log(1 − β), so the sum from key j on has the share of j too.
        weight = (score + left.flip(-1).cumsum(-1).flip(-1)).exp().masked_fill(hidden, 0.0)
        return self.out((weight @ value).transpose(1, 2).flatten(2))


def _positioned(
    attention: SoftmaxAttention, x: Float[Tensor, "b t d"], context: AttentionContext
) -> tuple[Float[Tensor, "b h t e"], Float[Tensor, "b h t e"], Float[Tensor, "b h t e"]]:
    """Queries, keys and values of heads, with the vectors and angles of positional encodings."""
    query, key, value = attention.project(x).unflatten(-1, (3, attention.heads, -1)).unbind(2)
    if context.keys is not None:
        added = context.keys.unflatten(-1, (attention.heads, -1))
        query, key = query + added, key + added
    if context.angles is not None:
        query, key = rotate(query, context.angles), rotate(key, context.angles)
    return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)


def _check_causal(spec: MixerSpec, causal: bool) -> None:
    if not causal:
        raise UsageError(f"{type(spec).__name__} attends from left to right: it takes a causal layout, e.g. NextToken")
