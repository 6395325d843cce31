"""The transformer block, in the variants of the published systems."""

from __future__ import annotations

import math
from typing import Any, Literal

from jaxtyping import Float
from torch import Tensor, nn

from lengthwise.nn.mixer import AttentionContext, Mixer, draw_normal

Activation = Literal["gelu", "relu"]


class MLP(nn.Module):
    """A two-layer perceptron, width → hidden → width. It computes W₂ act(W₁ x) or, if ``gated``, W₂ (u · act(g)) with
    [u; g] = W₁ x (GEGLU, Shazeer 2020)."""

    def __init__(self, width: int, hidden: int, activation: Activation, *, gated: bool, biases: bool) -> None:
        super().__init__()
        self.gated = gated
        self.widen = nn.Linear(width, 2 * hidden if gated else hidden, bias=biases)
        self.act = nn.ReLU() if activation == "relu" else nn.GELU(approximate="tanh")
        self.narrow = nn.Linear(hidden, width, bias=biases)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        x = self.widen(x)
        if self.gated:
            x, gate = x.chunk(2, -1)
            return self.narrow(x * self.act(gate))
        return self.narrow(self.act(x))


class Block(nn.Module):
    """A block of a mixer and, unless ``mlp`` is None, an MLP. Each has a residual connection: x + f(norm(x)) or, if
    ``post``, norm(x + f(x)) (Vaswani et al. 2017)."""

    def __init__(self, mixer: Mixer, mlp: MLP | None, width: int, *, post: bool, eps: float, dropout: float) -> None:
        super().__init__()
        self.post = post
        self.norm_mixer = nn.LayerNorm(width, eps)
        self.mixer = mixer
        if mlp is not None:
            self.norm_mlp = nn.LayerNorm(width, eps)
        self.mlp: MLP = mlp  # type: ignore[assignment]  # may be None; runners that need an MLP decline such blocks
        self.drop = nn.Dropout(dropout)

    def forward(
        self, x: Float[Tensor, "b t d"], context: AttentionContext, injection: Tensor | None = None, cache: Any = None
    ) -> Float[Tensor, "b t d"]:
        """Apply the block. Add ``injection`` "b t d" to the inputs of mixer and MLP, not to the residual stream."""
        if self.post:
            x = self.norm_mixer(x + self.drop(self._mix(add_injection(x, injection), context, cache)))
            return x if self.mlp is None else self.norm_mlp(x + self.drop(self.mlp(add_injection(x, injection))))
        x = x + self.drop(self._mix(add_injection(self.norm_mixer(x), injection), context, cache))
        return x if self.mlp is None else x + self.drop(self.mlp(add_injection(self.norm_mlp(x), injection)))

    def _mix(self, x: Float[Tensor, "b t d"], context: AttentionContext, cache: Any) -> Float[Tensor, "b t d"]:
        """Apply the mixer. In decoding, a mixer that stores no keys continues from its state in ``cache``."""
        if cache is None or self.mixer.caches:
            return self.mixer(x, context, cache)
        return cache.step(self.mixer, x)

    def initialise(self, std: float, layers: int, *, scale_mlp: bool = True) -> None:
        """Initialize the MLP's weights from N(0, std²), and the mixer's as ``Mixer.initialise`` does.

        The layers whose output is added to the residual stream get std / √(2 · layers): the mixer's and, with
        ``scale_mlp``, the MLP's ``narrow``.
        """
        # Each block adds 2 outputs to the residual stream; smaller weights keep its variance independent of depth.
        small = std / math.sqrt(2 * layers)
        self.mixer.initialise(std, small)
        if self.mlp is not None:
            draw_normal(self.mlp.widen, std)
            draw_normal(self.mlp.narrow, small if scale_mlp else std)


def add_injection(x: Float[Tensor, "*b d"], injection: Float[Tensor, "*b d"] | None) -> Float[Tensor, "*b d"]:
    """Return x + ``injection``, or x if ``injection`` is None."""
    return x if injection is None else x + injection
