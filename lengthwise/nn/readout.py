"""Output layers that models share."""

from __future__ import annotations

import math

from jaxtyping import Float
from torch import Tensor, nn


class ScaledReadout(nn.Linear):
    """A linear layer without bias whose logits are divided by √width (ReTran, ACL 2025)."""

    def __init__(self, width: int, symbols: int) -> None:
        super().__init__(width, symbols, bias=False)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b v"]:
        return super().forward(x) / math.sqrt(self.in_features)
