"""A convolution as a mixer: each position sees its neighbours, whatever the length of the row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lengthwise.base.ranges import Size
from lengthwise.nn.attention_context import Sight
from lengthwise.nn.mixer import Mixer, MixerSpec


@dataclass(frozen=True)
class Convolution(MixerSpec):
    """A convolution over a position and its ``reach`` neighbours on either side, with zeros beyond the ends. Looped,
    with input injection, it is the recurrent convolution with recall (Bansal et al. 2022)."""

    reach: Size = 1  # neighbours on either side that are seen

    def build(self, width: int, heads: int, *, dropout: float, biases: bool) -> Mixer:
        return ConvolutionMixer(width, self.reach, biases=biases)


class ConvolutionMixer(Mixer):
    """The module of ``Convolution``. ``out`` maps the states of all neighbours, one after the other, to the result. In
    a causal layout the neighbours on the right are zeros."""

    def __init__(self, width: int, reach: int, *, biases: bool) -> None:
        super().__init__()
        self.reach = reach
        self.out = nn.Linear((2 * reach + 1) * width, width, bias=biases)

    def forward(self, x: Float[Tensor, "b t d"], sight: Sight, cache: Any = None) -> Float[Tensor, "b t d"]:
        real = x.masked_fill(~sight.padding_mask[..., None], 0)
        padded = F.pad(real, (0, 0, self.reach, self.reach))
        seen = [padded[:, i : i + x.shape[1]] for i in range(2 * self.reach + 1)]
        if sight.causal:
            seen[self.reach + 1 :] = [torch.zeros_like(x)] * self.reach
        return self.out(torch.cat(seen, -1))
