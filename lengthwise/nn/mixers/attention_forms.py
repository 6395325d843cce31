"""Variants of attention for long rows: scalable softmax, forgetting and stick-breaking attention."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lengthwise.base.types import UsageError
from lengthwise.nn import check_causal
from lengthwise.nn.attention import QKV, SoftmaxAttention
from lengthwise.nn.mixer import AttentionContext, Hidden, Mixer, MixerSpec
from lengthwise.nn.mixers.recurrent import exempt_from_decay


@dataclass(frozen=True)
class ScalableSoftmax(MixerSpec):
    """Softmax attention whose scores are multiplied by s log(1 + n), so that many keys do not flatten the weights. Here
    n is the number of keys up to the query's position, and s is learned per head (Nakanishi 2025 uses log n)."""

    def build(self, width: int, heads: int, *, dropout: float, biases: bool, **_: Any) -> Mixer:
        return ScalableAttention(width, heads, dropout=dropout, biases=biases)


class ScalableAttention(SoftmaxAttention):
    """The module of ``ScalableSoftmax``. In layouts that are not causal, n is the row's number of tokens."""

    def __init__(self, width: int, heads: int, *, dropout: float, biases: bool) -> None:
        super().__init__(width, heads, dropout=dropout, biases=biases)
        self.scale = exempt_from_decay(nn.Parameter(torch.full((heads, 1), 0.43)))  # initially s log n = log₁₀ n

    def attend(self, qkv: QKV, context: AttentionContext, cache: Any = None) -> Float[Tensor, "b t h e"]:
        query, key, value = qkv.unbind(2)
        if context.causal:
            before = 0 if cache is None or cache.get_current_entry() is None else cache.get_current_entry()[0].shape[2]
            count = torch.arange(before + 1, before + query.shape[1] + 1, device=query.device)[None]
        else:
            count = context.padding_mask.sum(1, keepdim=True)
        log_count = (1 + count).to(query.dtype).log()[..., None, None]  # 1 + count: not zero for one key
        query = query * self.scale * log_count
        return super().attend(torch.stack([query, key, value], 2), context, cache)


@dataclass(frozen=True)
class ForgettingAttention(MixerSpec):
    """Softmax attention with a forget gate f = σ(w x + b) per head (Lin et al. 2025): the sum of log f_l for j < l ≤ i
    is added to the score of key j for query i. The layout must be causal. The block is the authors' plain one, without
    output gate, norms or token shift, except that b starts in 2 … 6 instead of at 0."""

    def build(self, width: int, heads: int, *, causal: bool, biases: bool, **_: Any) -> Mixer:
        check_causal(self, causal)
        return ForgettingMixer(width, heads, biases=biases)


class ForgettingMixer(SoftmaxAttention):
    """The module of ``ForgettingAttention``.

    F_i is the sum of log f up to position i. It enters the scores through two more coordinates of queries and keys:
    [q, F_i, 1] · [k, 1, −F_j].
    """

    def __init__(self, width: int, heads: int, *, biases: bool) -> None:
        super().__init__(width, heads, biases=biases)
        self.forget = nn.Linear(width, heads, bias=False)
        self.forget_bias = exempt_from_decay(nn.Parameter(torch.linspace(2, 6, heads)))

    def forward(self, x: Hidden, context: AttentionContext, cache: Any = None) -> Hidden:
        query, key, value = self.add_positions(self.project_heads(x), context)
        total = F.logsigmoid(self.forget(x) + self.forget_bias).transpose(1, 2).cumsum(-1)
        if cache is not None and (last := cache.get_current_entry()) is not None:
            total = total - last[0][:, :, -1:, -1]  # −F of the last cached key
        width, one = query.shape[-1], torch.ones_like(total)[..., None]
        query = torch.cat([query, total[..., None] * width**0.5, one * width**0.5], -1)
        key = torch.cat([key, one, -total[..., None]], -1)
        if cache is not None:
            key, value = cache.extend(key, value)
        bias = _get_bias_without_blank("ForgettingAttention", context, key)
        with _turn_off_autocast(x.device.type):  # scores are differences of large sums, which 16 bits would round
            value = value.to(key.dtype)
            mixed = F.scaled_dot_product_attention(query, key, value, bias, is_causal=bias is None, scale=width**-0.5)
        return self.out(mixed.transpose(1, 2).flatten(2))


def _turn_off_autocast(device: str) -> AbstractContextManager[Any]:
    """Return a context manager that turns autocast off, or does nothing if autocast is off already: an exported
    program must not contain the change."""
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()


@dataclass(frozen=True)
class StickBreaking(MixerSpec):
    """Stick-breaking attention (Tan et al. 2025): with β = σ(q kᵀ / √e), query i gives key j the weight
    β_ij Π_{j < l ≤ i} (1 − β_il), so that near keys take precedence without a positional encoding. The layout must be
    causal. Unlike with the defaults of the authors' code, a query sees its own key, and leftover weight is dropped."""

    def build(self, width: int, heads: int, *, causal: bool, biases: bool, **_: Any) -> Mixer:
        check_causal(self, causal)
        return StickBreakingMixer(width, heads, biases=biases)


class StickBreakingMixer(SoftmaxAttention):
    """The module of ``StickBreaking``. A hidden key has weight 0."""

    def forward(self, x: Hidden, context: AttentionContext, cache: Any = None) -> Hidden:
        query, key, value = self.add_positions(self.project_heads(x), context)
        if cache is not None:
            key, value = cache.extend(key, value)
        score = query @ key.mT / query.shape[-1] ** 0.5
        hidden = torch.ones(score.shape[-2:], dtype=torch.bool, device=x.device).triu(1 + score.shape[-1] - x.shape[1])
        bias = _get_bias_without_blank("StickBreaking", context, key)
        score = score if bias is None else score + bias
        left = F.logsigmoid(-score).masked_fill(hidden, 0.0)  # log(1 − β)
        # log β = score + log(1 − β), so the sum starts at key j itself.
        weight = (score + left.flip(-1).cumsum(-1).flip(-1)).exp().masked_fill(hidden, 0.0)
        return self.out((weight @ value).transpose(1, 2).flatten(2))


def _get_bias_without_blank(name: str, context: AttentionContext, key: Float[Tensor, "b h k e"]) -> Tensor | None:
    """Return the attention bias, converted to the keys' type. Raises UsageError for a bias with a blank key."""
    if context.bias is not None and context.bias.shape[-1] > key.shape[2]:
        raise UsageError(f"{name} supports no blank key: leave out Blank and EarlierHeads")
    return None if context.bias is None else context.bias.to(key.dtype)
