"""Multi-head softmax attention (Vaswani et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from lengthwise.base.types import UsageError
from lengthwise.nn.mixer import AttentionContext, Hidden, Mixer, MixerSpec, draw_normal
from lengthwise.nn.position import rotate

QKV = Float[Tensor, "b t 3 h e"]  # queries, keys and values by head


@dataclass(frozen=True)
class Attention(MixerSpec):
    """Multi-head attention: softmax(q kᵀ / √e + bias) v for each head of width e."""

    def build(self, width: int, heads: int, *, dropout: float, biases: bool, **_: Any) -> Mixer:
        return SoftmaxAttention(width, heads, dropout=dropout, biases=biases)


class SoftmaxAttention(Mixer):
    """The module of ``Attention``. ``dropout`` is the probability of dropping an attention weight in training.

    Raises UsageError if ``width`` is not a multiple of ``heads``.
    """

    attends = caches = True

    def __init__(self, width: int, heads: int, *, dropout: float = 0.0, biases: bool = True) -> None:
        super().__init__()
        if width % heads:
            raise UsageError(f"width must be a multiple of the number of heads ({heads}), not {width}")
        self.heads, self.dropout = heads, dropout
        self.project = nn.Linear(width, 3 * width, bias=biases)
        self.out = nn.Linear(width, width, bias=biases)

    def initialise(self, std: float, out_std: float) -> None:
        draw_normal(self.project, std)
        draw_normal(self.out, out_std)

    @torch.no_grad()
    def tie_query_key(self, heads: Bool[Tensor, " h"]) -> None:
        """Copy the query weights of the selected heads to their key weights."""
        query, key, _ = self.project.weight.view(3, self.heads, -1, self.project.in_features)
        key[heads] = query[heads]

    def forward(self, x: Hidden, context: AttentionContext, cache: Any = None) -> Hidden:
        return self.out(self.attend(self.project_heads(x), context, cache).flatten(2))

    def project_heads(self, x: Hidden) -> QKV:
        """Return queries, keys and values by head."""
        return self.project(x).unflatten(-1, (3, self.heads, -1))

    def add_positions(self, qkv: QKV, context: AttentionContext) -> list[Float[Tensor, "b h t e"]]:
        """Return queries, keys and values, after positional vectors and rotations are applied to queries and keys."""
        query, key, value = qkv.unbind(2)
        if context.keys is not None:
            vectors = context.keys.unflatten(-1, (self.heads, -1))
            query, key = query + vectors, key + vectors
        if context.angles is not None:
            query, key = rotate(query, context.angles), rotate(key, context.angles)
        return [part.transpose(1, 2) for part in (query, key, value)]

    def attend(self, qkv: QKV, context: AttentionContext, cache: Any = None) -> Float[Tensor, "b t h e"]:
        """Return the heads' outputs, before ``out``: softmax attention of every query over the keys it may see."""
        query, key, value = self.add_positions(qkv, context)
        if cache is not None:  # keys are cached after their rotation, which depends on no other position
            key, value = cache.extend(key, value)
        bias = None if context.bias is None else context.bias.to(query.dtype)
        if bias is not None and bias.shape[-1] > key.shape[2]:  # the last column is the blank key's
            key, value = F.pad(key, (0, 0, 0, 1)), F.pad(value, (0, 0, 0, 1))
        mixed = F.scaled_dot_product_attention(
            query, key, value, bias, self.dropout if self.training else 0.0, is_causal=context.causal and bias is None
        )
        return mixed.transpose(1, 2)
