"""Convolutions as mixers: each position sees its neighbours, and rows may have any length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional as F

from lengthwise.base.ranges import Size
from lengthwise.nn.mixer import AttentionContext, Hidden, Mixer, MixerSpec


@dataclass(frozen=True)
class Convolution(MixerSpec):
    """A convolution over a position and its ``reach`` neighbours on either side, with zeros beyond the ends. In a
    loop with input injection, it is the recurrent convolution with recall (Bansal et al. 2022)."""

    sees_neighbours_only: ClassVar[bool] = True
    reach: Size = 1  # neighbours on either side that are seen

    def build(self, width: int, heads: int, *, dropout: float, biases: bool) -> Mixer:
        return ConvolutionMixer(width, self.reach, biases=biases)


class ConvolutionMixer(Mixer):
    """The module of ``Convolution``. The layer ``out`` maps the concatenated states of a position and its neighbours to
    the output. In a causal layout, zeros replace the neighbours on the right."""

    def __init__(self, width: int, reach: int, *, biases: bool) -> None:
        super().__init__()
        self.reach = reach
        self.out = nn.Linear((2 * reach + 1) * width, width, bias=biases)

    def forward(self, x: Hidden, context: AttentionContext, cache: Any = None) -> Hidden:
        real = x.masked_fill(~context.padding_mask[..., None], 0)
        padded = F.pad(real, (0, 0, self.reach, self.reach))
        seen = [padded[:, i : i + x.shape[1]] for i in range(2 * self.reach + 1)]
        if context.causal:
            seen[self.reach + 1 :] = [torch.zeros_like(x)] * self.reach
        return self.out(torch.cat(seen, -1))


@dataclass(frozen=True)
class GridConvolution(MixerSpec):
    """A convolution over a cell of a grid and the cells above, below, left and right of it, with zeros beyond the edges
    (for the layout ``Grid``). In a loop with input injection, it is the recurrent convolution with recall (Bansal et
    al. 2022)."""

    sees_neighbours_only: ClassVar[bool] = True

    def build(self, width: int, heads: int, *, dropout: float, biases: bool) -> Mixer:
        return GridConvolutionMixer(width, biases=biases)


class GridConvolutionMixer(Mixer):
    """The module of ``GridConvolution``. The layer ``out`` maps the concatenated states of a cell and its four
    neighbours to the output."""

    needs_neighbour_index = True

    def __init__(self, width: int, *, biases: bool) -> None:
        super().__init__()
        self.out = nn.Linear(5 * width, width, bias=biases)

    def forward(self, x: Hidden, context: AttentionContext, cache: Any = None) -> Hidden:
        assert context.neighbour_index is not None
        rows, count = x.shape[:2]
        padded = F.pad(x, (0, 0, 0, 1))  # zeros for cells that do not exist
        first = torch.arange(rows, device=x.device)[:, None, None] * (count + 1)
        near = F.embedding(context.neighbour_index + first, padded.flatten(0, 1))
        return self.out(torch.cat([x, near.flatten(2)], -1))
