"""What a block does across positions: the seam behind which attention and its rivals stand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lengthwise.base.types import Inputs, UsageError
from lengthwise.nn.position import Encoding


class Sight(NamedTuple):
    """Who may look at whom in a batch, and how positions enter: made once per batch, the same in every loop."""

    padding_mask: Bool[Tensor, "b t"]  # True for a real token
    causal: bool  # no position sees a later one
    # Added to attention scores, −inf where a key is not seen, for whatever reason. None: causality is the only one.
    # A key beyond the t positions is a blank: zeros with a value of zeros.
    bias: Float[Tensor, "#b #h t k"] | None = None
    angles: Float[Tensor, "b t half"] | None = None  # by which queries and keys are rotated, in radians
    keys: Float[Tensor, "b t d"] | None = None  # added to queries and keys, heads side by side

    @staticmethod
    def of(encodings: Iterable[Encoding], inputs: Inputs, *, causal: bool) -> Sight:
        """What encodings, causality and padding make of a batch. UsageError where two encodings exclude each other."""
        angles = _given(encoding.angles(inputs) for encoding in encodings)
        keys = _given(encoding.keys(inputs) for encoding in encodings)
        blanks = _given(encoding.blank() for encoding in encodings)
        if len(angles) > 1 or len(blanks) > 1:
            raise UsageError("a model takes one rotary encoding, and one encoding with a blank, at most")
        bias = _hidden(_given(encoding.attention_bias(inputs) for encoding in encodings), inputs.padding_mask, causal)
        if blanks and bias is not None:
            column = blanks[0][:, None, None].expand(*bias.shape[:1], -1, *bias.shape[2:3], 1)
            bias = torch.cat([bias.expand(-1, column.shape[1], -1, -1), column], -1)
        return Sight(
            inputs.padding_mask, causal, bias, angles[0] if angles else None, sum(keys[1:], keys[0]) if keys else None
        )


def _given(found: Iterable[Any]) -> list[Any]:
    return [part for part in found if part is not None]


def _hidden(biases: list[Tensor], padding_mask: Bool[Tensor, "b t"], causal: bool) -> Tensor | None:
    """The sum of biases, −inf where causality or padding hides a key."""
    if causal and not biases:
        return None
    itself = torch.eye(padding_mask.shape[1], dtype=torch.bool, device=padding_mask.device)
    # Padding stands at a row's end, where no causal position looks. It sees itself: a softmax over nothing is NaN.
    hidden = torch.ones_like(itself).triu(1) if causal else ~(padding_mask[:, None, None] | itself)
    bias = sum((bias if bias.dim() == 4 else bias[None] for bias in biases), torch.zeros((), device=hidden.device))
    return bias.masked_fill(hidden, -torch.inf)


class Mixer(nn.Module, ABC):
    """Mixes positions. What it returns is added to the residual stream, through its linear layer ``out``, which starts
    smaller than other weights."""

    attends: ClassVar[bool] = False  # does it heed a sight's bias, angles and keys?
    out: nn.Linear

    @abstractmethod
    def forward(self, x: Float[Tensor, "b t d"], sight: Sight, cache: Any = None) -> Float[Tensor, "b t d"]:
        """What every position finds among those that ``sight`` lets it see. A key–value ``cache`` is given in decoding
        position by position, to mixers that attend."""


class MixerSpec(ABC):
    """The configuration of a mixer. Subclasses are frozen dataclasses."""

    @abstractmethod
    def build(self, width: int, heads: int, *, dropout: float, biases: bool) -> Mixer:
        """A mixer for states of this width; ``biases``: do its linear layers have any?"""
