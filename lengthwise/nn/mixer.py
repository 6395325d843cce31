"""The interface of token mixers, the parts of blocks that combine positions, e.g. attention.

``AttentionContext`` passes positional encodings, causality and padding to a mixer.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lengthwise.base.fields import Config
from lengthwise.base.types import Inputs, UsageError
from lengthwise.nn.position import Encoding

Hidden = Float[Tensor, "b t d"]  # a vector per position, from layer to layer


class AttentionContext(NamedTuple):
    """The attention bias and positional terms of a batch; they are computed once and used in every loop."""

    padding_mask: Bool[Tensor, "b t"]  # True for a real token
    causal: bool  # no position sees a later one
    # Added to attention scores; −inf hides a key. None: only causality hides keys. If there is a blank (a key and a
    # value of zeros), the last column is its bias.
    bias: Float[Tensor, "#b #h t k"] | None = None
    angles: Float[Tensor, "b t half"] | None = None  # rotation of queries and keys, in radians
    keys: Float[Tensor, "b t d"] | None = None  # added to queries and keys; coordinates of all heads
    # The positions of the cells above, below, left and right of each position; t if there is no such cell. Only mixers
    # that set ``needs_neighbour_index`` need them.
    neighbour_index: Int[Tensor, "b t 4"] | None = None

    @staticmethod
    def build(encodings: Iterable[Encoding], inputs: Inputs, *, causal: bool) -> AttentionContext:
        """Combine encodings, causality and padding for a batch. Raises UsageError if a row does not fit an encoding, or
        if two encodings are incompatible."""
        for encoding in encodings:  # checked before a bias is computed: its size is the square of a row's length
            encoding.check(inputs)
        angles = _drop_none(encoding.angles(inputs) for encoding in encodings)
        keys = _drop_none(encoding.keys(inputs) for encoding in encodings)
        blanks = _drop_none(encoding.blank() for encoding in encodings)
        if len(angles) > 1 or len(blanks) > 1:
            raise UsageError("a model takes at most one rotary encoding, and at most one encoding with a blank key")
        biases = _drop_none(encoding.attention_bias(inputs) for encoding in encodings)
        # A blank is a column of the bias, so it needs a bias, even one that only hides later positions.
        bias, mask = None, inputs.padding_mask
        if biases or blanks or not causal:
            itself = torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
            # Causality already hides padding, which is at the end of a row. Without it, padding sees itself: a softmax
            # over no keys would be NaN.
            hidden = torch.ones_like(itself).triu(1) if causal else ~(mask[:, None, None] | itself)
            bias = sum(biases, torch.zeros(1, 1, 1, 1, device=mask.device)).masked_fill(hidden, -torch.inf)
        if blanks and bias is not None:
            column = blanks[0][:, None, None].expand(*bias.shape[:1], -1, *bias.shape[2:3], 1)
            bias = torch.cat([bias.expand(-1, column.shape[1], -1, -1), column], -1)
        summed_keys = sum(keys[1:], keys[0]) if keys else None
        return AttentionContext(inputs.padding_mask, causal, bias, angles[0] if angles else None, summed_keys)


def _drop_none(terms: Iterable[Any]) -> list[Any]:
    return [term for term in terms if term is not None]


class Mixer(nn.Module, ABC):
    """Base class of token mixers, whose output is added to the residual stream."""

    attends: ClassVar[bool] = False  # True if it uses the bias, angles and keys of ``AttentionContext``
    needs_neighbour_index: ClassVar[bool] = False  # True if it uses the neighbouring cells of ``AttentionContext``
    caches: ClassVar[bool] = False  # True if ``forward`` stores its keys and values in its argument ``cache``

    @abstractmethod
    def forward(self, x: Hidden, context: AttentionContext, cache: Any = None) -> Hidden:
        """Mix every position with the positions that ``context`` lets it see. In decoding, a mixer with ``caches`` gets
        only the new positions, and a key–value ``cache``."""

    def step(self, x: Hidden, state: Any) -> tuple[Hidden, Any]:
        """Return the outputs at one or more next positions of a causal layout, and the state after them; ``state`` is
        None before the first. For a mixer without ``step``, decoding computes the whole row again for every symbol."""
        raise NotImplementedError

    def initialise(self, std: float, out_std: float) -> None:
        """Initialize the weights as the transformer requires: from N(0, std²), and from N(0, out_std²) for the layer
        whose output is added to the residual stream. By default the weights stay as built."""

    def tie_query_key(self, heads: Bool[Tensor, " h"]) -> None:
        """Make the key weights of these heads equal to their query weights, so that equal inputs attend to each other
        from the first step. Mixers without queries and keys do nothing."""


class MixerSpec(Config):
    """Base class of configurations of mixers. Subclasses are frozen dataclasses."""

    sees_neighbours_only: ClassVar[bool] = False  # True if positions see only neighbours: cost is linear in row length

    @abstractmethod
    def build(
        self, width: int, heads: int, *, causal: bool, layer: int, dropout: float, biases: bool
    ) -> Mixer | nn.Module:
        """Build the mixer for states of ``width``. A subclass may leave out keyword arguments that it does not need
        (see ``build_mixer``)."""


def build_mixer(
    spec: MixerSpec, width: int, heads: int, *, causal: bool, layer: int, dropout: float, biases: bool
) -> Mixer:
    """Build the mixer of layer number ``layer``, counted from 0. ``spec.build`` gets only the keyword arguments that it
    accepts.

    With ``causal``, no position may see a later position. With ``biases``, linear layers have biases. A torch module
    that is not a ``Mixer`` is wrapped in ``PlainMixer``. Raises UsageError if ``spec.build`` returns no torch module.
    """
    keywords: dict[str, Any] = {"causal": causal, "layer": layer, "dropout": dropout, "biases": biases}
    signature, advice = inspect.signature(spec.build), f"beside width and heads, it may take {', '.join(keywords)}"
    takes = signature.parameters
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in takes.values()):
        keywords = {name: value for name, value in keywords.items() if name in takes}
    try:
        signature.bind(width, heads, **keywords)
    except TypeError as error:
        raise UsageError(f"{type(spec).__name__}.build: {error}; {advice}") from None
    module = spec.build(width, heads, **keywords)
    if isinstance(module, Mixer):
        return module
    if not isinstance(module, nn.Module):
        raise UsageError(f"{type(spec).__name__}.build must return a torch module, not {module!r}")
    return PlainMixer(module, causal=causal)


class PlainMixer(Mixer):
    """A mixer that wraps a torch module, whose causal ``forward(x)`` maps states "b t d" to states "b t d".

    If ``forward`` has a parameter ``padding_mask``, it gets the mask "b t", True for a real token. Raises UsageError if
    this parameter is missing and the layout is not causal, or if the output has another shape.
    """

    def __init__(self, module: nn.Module, *, causal: bool) -> None:
        super().__init__()
        self.module = module
        self.takes_mask = "padding_mask" in inspect.signature(module.forward).parameters
        if not (causal or self.takes_mask):
            advice = "it fits only causal layouts; for others, define forward(self, x, padding_mask)"
            raise UsageError(f"{type(module).__name__}.forward takes no padding_mask: {advice}")

    def forward(self, x: Hidden, context: AttentionContext, cache: Any = None) -> Hidden:
        mixed = self.module(x, padding_mask=context.padding_mask) if self.takes_mask else self.module(x)
        if not isinstance(mixed, Tensor) or mixed.shape != x.shape:
            shape = tuple(mixed.shape) if isinstance(mixed, Tensor) else f"a value of type {type(mixed).__name__}"
            fault = f"but {type(self.module).__name__} returned {shape}"
            raise UsageError(f"a mixer must map states {tuple(x.shape)} to states of that shape, {fault}")
        return mixed


@torch.no_grad()
def draw_normal(linear: nn.Linear, std: float) -> None:
    """Initialize weights from N(0, std²) and biases to 0, as GPT-2 does with std 0.02 (Radford et al. 2019)."""
    nn.init.normal_(linear.weight, std=std)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
