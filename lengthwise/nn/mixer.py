"""The interface of token mixers: the part of a block that combines positions, e.g. attention."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from jaxtyping import Bool, Float
from torch import Tensor, nn

from lengthwise.base.fields import Part
from lengthwise.nn.attention_context import Sight


class Mixer(nn.Module, ABC):
    """Base of token mixers. The output of its last linear layer, ``out``, is added to the residual stream; ``out`` is
    initialised smaller than other weights (see ``Block.initialise``)."""

    attends: ClassVar[bool] = False  # True if it uses the bias, angles and keys of ``Sight``
    out: nn.Linear

    @abstractmethod
    def forward(self, x: Float[Tensor, "b t d"], sight: Sight, cache: Any = None) -> Float[Tensor, "b t d"]:
        """Mix every position with those that ``sight`` lets it see. In cached decoding, mixers that attend are given a
        key–value ``cache``."""

    def start_alike(self, heads: Bool[Tensor, " h"]) -> None:
        """Start with the keys of these heads equal to their queries, so that equal inputs find each other from the
        first step. By default nothing is done: a mixer need not have keys and queries."""


class MixerSpec(Part):
    """The configuration of a mixer. Subclasses are frozen dataclasses."""

    @abstractmethod
    def build(self, width: int, heads: int, *, dropout: float, biases: bool) -> Mixer:
        """Build the mixer for states of ``width``; ``biases``: whether its linear layers have biases."""
