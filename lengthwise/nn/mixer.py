"""The interface of token mixers: the part of a block that combines positions, e.g. attention."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from lengthwise.base.fields import Config
from lengthwise.base.types import UsageError
from lengthwise.nn.attention_context import AttentionContext, Hidden


class Mixer(nn.Module, ABC):
    """Base class of token mixers, whose output is added to the residual stream."""

    attends: ClassVar[bool] = False  # True if it uses the bias, angles and keys of ``AttentionContext``
    sees_cells: ClassVar[bool] = False  # True if it uses the neighbouring cells of ``AttentionContext``
    caches: ClassVar[bool] = False  # True if ``forward`` keeps its keys and values in the cache that it is given

    @abstractmethod
    def forward(self, x: Hidden, context: AttentionContext, cache: Any = None) -> Hidden:
        """Mix every position with the positions that ``context`` lets it see. In decoding, a mixer with ``caches`` gets
        only the new positions, and a key–value ``cache``."""

    def step(self, x: Hidden, state: Any) -> tuple[Hidden, Any]:
        """Return the outputs at one or more next positions, and the state after them; used in causal layouts. ``state``
        is None before the first position. Without ``step``, decoding computes the whole row again for every symbol."""
        raise NotImplementedError

    @property
    def decodes(self) -> bool:
        """Whether the mixer can continue from earlier positions, by a cache or by ``step``."""
        return self.caches or type(self).step is not Mixer.step

    def initialise(self, std: float, out_std: float) -> None:
        """Initialise the weights as the transformer requires: N(0, std²), and N(0, out_std²) for the layer whose output
        is added to the residual stream. By default the weights stay as built."""

    def tie_query_key(self, heads: Bool[Tensor, " h"]) -> None:
        """Make the key weights of these heads equal to their query weights, so that equal inputs attend to each other
        from the first step. By default do nothing, as a mixer need not have keys and queries."""


class MixerSpec(Config):
    """The configuration of a mixer. Subclasses are frozen dataclasses."""

    sees_neighbours_only: ClassVar[bool] = False  # True if its cost per position does not grow with the row

    @abstractmethod
    def build(
        self, width: int, heads: int, *, causal: bool, layer: int, dropout: float, biases: bool
    ) -> Mixer | nn.Module:
        """Build the mixer for states of ``width``. A subclass may leave out keyword arguments that it does not need
        (see ``build_mixer``)."""


def build_mixer(
    spec: MixerSpec, width: int, heads: int, *, causal: bool, layer: int, dropout: float, biases: bool
) -> Mixer:
    """Build a layer's mixer by ``spec.build(width, heads, …)``, with the keyword arguments that it takes.

    ``causal``: no position may see a later one. ``layer`` is counted from 0. ``biases``: whether linear layers have
    biases. A module that is not a ``Mixer`` is wrapped in ``PlainMixer``. Raises UsageError for anything else.
    """
    keywords: dict[str, Any] = {"causal": causal, "layer": layer, "dropout": dropout, "biases": biases}
    takes = inspect.signature(spec.build).parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values()):
        keywords = {name: value for name, value in keywords.items() if name in takes}
    module = spec.build(width, heads, **keywords)
    if isinstance(module, Mixer):
        return module
    if not isinstance(module, nn.Module):
        raise UsageError(f"{type(spec).__name__}.build must return a torch module, not {module!r}")
    return PlainMixer(module, causal=causal)


class PlainMixer(Mixer):
    """Wraps a module with ``forward(x)``, states "b t d" to states "b t d", that reads from left to right.

    If ``forward`` has a parameter ``padding_mask``, it gets the mask "b t", True for a real token. Raises UsageError if
    this parameter is missing and the layout is not causal, or if the output has another shape.
    """

    def __init__(self, module: nn.Module, *, causal: bool) -> None:
        super().__init__()
        self.module = module
        self.masked = "padding_mask" in inspect.signature(module.forward).parameters
        if not (causal or self.masked):
            raise UsageError(
                f"{type(module).__name__}.forward takes no padding_mask: it fits a causal layout, e.g. NextToken; "
                "elsewhere write forward(self, x, padding_mask)"
            )

    def forward(self, x: Hidden, context: AttentionContext, cache: Any = None) -> Hidden:
        mixed = self.module(x, padding_mask=context.padding_mask) if self.masked else self.module(x)
        if not isinstance(mixed, Tensor) or mixed.shape != x.shape:
            shape = tuple(mixed.shape) if isinstance(mixed, Tensor) else f"a {type(mixed).__name__}"
            name = type(self.module).__name__
            raise UsageError(
                f"a mixer maps states {tuple(x.shape)} to states of that shape, but {name} returned {shape}"
            )
        return mixed


@torch.no_grad()
def draw_normal(linear: nn.Linear, std: float) -> None:
    """Initialise weights N(0, std²) and biases 0, as GPT-2 does with std 0.02 (Radford et al. 2019)."""
    nn.init.normal_(linear.weight, std=std)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
