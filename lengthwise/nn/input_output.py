"""Input and output layers that models share."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from lengthwise.base.types import UsageError, Vocab


class DigitReadin(nn.Linear):
    """A linear layer that reads the digits of each symbol as real numbers, for symbols such as the columns of
    ``Pairs``.

    Raises UsageError unless all symbols consist of digits, and of equally many.
    """

    digits: Float[Tensor, "v n"]

    def __init__(self, vocab: Vocab, width: int) -> None:
        if not all(symbol.isdecimal() for symbol in vocab.symbols) or len({*map(len, vocab.symbols)}) > 1:
            fault = f"such as those of Pairs, not {' '.join(vocab.symbols)}"
            raise UsageError(f"read_in=numbers needs symbols of equally many digits, {fault}")
        super().__init__(len(vocab.symbols[0]), width)
        digits = [[float(digit) for digit in symbol] for symbol in vocab.symbols]
        self.register_buffer("digits", torch.tensor(digits), persistent=False)

    def forward(self, tokens: Int[Tensor, "*b t"]) -> Float[Tensor, "*b t d"]:
        return super().forward(self.digits[tokens])


class ScaledReadout(nn.Linear):
    """A linear layer without bias whose logits are divided by √width (ReTran, ACL 2025)."""

    def __init__(self, width: int, symbol_count: int) -> None:
        super().__init__(width, symbol_count, bias=False)

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b v"]:
        return super().forward(x) / math.sqrt(self.in_features)
