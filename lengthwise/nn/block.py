"""A transformer block, in the forms that the systems here were published with."""

from __future__ import annotations

import math
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lengthwise.nn.attention import Attention
from lengthwise.nn.dropout import Dropout
from lengthwise.nn.gelu import GELU
from lengthwise.nn.packed import picked
from lengthwise.nn.pattern import Pattern

Activation = Literal["gelu", "relu"]


class MLP(nn.Module):
    """width → hidden → width; or gated (GEGLU, Shazeer 2020): half of what comes out of the first layer, activated,
    times the other half."""

    def __init__(self, width: int, hidden: int, activation: Activation, *, gated: bool, biases: bool) -> None:
        super().__init__()
        self.gated = gated
        self.widen = nn.Linear(width, 2 * hidden if gated else hidden, bias=biases)
        self.act = nn.ReLU() if activation == "relu" else GELU()
        self.narrow = nn.Linear(hidden, width, bias=biases)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        x = self.widen(x)
        if self.gated:
            x, gate = x.chunk(2, -1)
            return self.narrow(x * self.act(gate))
        return self.narrow(self.act(x))


class Block(nn.Module):
    """Attention, then an MLP, each around a residual connection: x + f(norm(x)), or norm(x + f(x)) with ``post``
    (Vaswani et al. 2017)."""

    def __init__(self, attention: Attention, mlp: MLP, *, post: bool, eps: float, dropout: float) -> None:
        super().__init__()
        width = attention.out.out_features
        self.post = post
        self.norm_attention = nn.LayerNorm(width, eps)
        self.attention = attention
        self.norm_mlp = nn.LayerNorm(width, eps)
        self.mlp = mlp
        self.drop = Dropout(dropout)

    def forward(
        self,
        x: Float[Tensor, "*b d"],
        pattern: Pattern,
        read: Float[Tensor, "*b d"] | None = None,
        at: Int[Tensor, " m"] | None = None,
    ) -> Float[Tensor, "*b d"] | Float[Tensor, "m d"]:
        """``read`` is added to what attention and the MLP read, not to the residual stream. With ``at``, what comes out
        at these places only, counted row after row."""
        seen = _plus(x if self.post else self.norm_attention(x), read)
        x = (x if at is None else picked(x, at)) + self.drop(self.attention(seen, pattern, at))
        read = read if read is None or at is None else picked(read, at)
        if self.post:
            x = self.norm_attention(x)
            return self.norm_mlp(x + self.drop(self.mlp(_plus(x, read))))
        return x + self.drop(self.mlp(_plus(self.norm_mlp(x), read)))

    @torch.no_grad()
    def initialise(self, std: float, layers: int, *, mlp_too: bool = True) -> None:
        """Weights start N(0, std), those of what is added to the residual stream N(0, std / √(2·layers)), of the MLP's
        where it is meant too, biases 0; GPT-2's std is 0.02 (Radford et al. 2019)."""
        ends = (self.attention.out, self.mlp.narrow) if mlp_too else (self.attention.out,)
        for linear in (self.attention.project, self.attention.out, self.mlp.widen, self.mlp.narrow):
            nn.init.normal_(linear.weight, std=std / math.sqrt(2 * layers) if linear in ends else std)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)


def _plus(x: Float[Tensor, "*b d"], read: Float[Tensor, "*b d"] | None) -> Float[Tensor, "*b d"]:
    return x if read is None else x + read
