"""The base class and helpers of mixers with a recurrent state, and torch's LSTM and GRU layers as mixers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lengthwise.nn.mixer import AttentionContext, Hidden, Mixer, MixerSpec


class RecurrentMixer(Mixer):
    """Base class of mixers with a state. In a layout that is not causal, each row is read from both ends with the same
    weights, and the two outputs are added."""

    @abstractmethod
    def step(self, x: Hidden, state: Any) -> tuple[Hidden, Any]:
        """Continue from ``state`` as ``Mixer.step`` does. A whole row is computed as one step from the state None."""

    def forward(self, x: Hidden, context: AttentionContext, cache: Any = None) -> Hidden:
        mixed, _ = self.step(x, None)
        if context.causal:
            return mixed
        reversed_x = reverse_rows(x, context.padding_mask)
        return mixed + reverse_rows(self.step(reversed_x, None)[0], context.padding_mask)


def reverse_rows(x: Hidden, padding_mask: Tensor) -> Hidden:
    """Reverse each row; its padding stays at the end."""
    length, index = padding_mask.sum(1, keepdim=True), torch.arange(x.shape[1], device=x.device)
    source = torch.where(index < length, length - 1 - index, index)
    return x.gather(1, source[..., None].expand_as(x))


class ShortConvolution(nn.Module):
    """A causal convolution of each channel over the last ``taps`` positions, then SiLU. The state holds the inputs at
    the last ``taps`` − 1 positions. If ``taps`` is 0, the module applies only SiLU."""

    def __init__(self, width: int, taps: int) -> None:
        super().__init__()
        self.taps = taps
        self.weight = nn.Parameter(torch.empty(width, 1, taps).uniform_(-1, 1) / taps**0.5) if taps else None

    def forward(self, x: Float[Tensor, "b t c"], state: Any) -> tuple[Float[Tensor, "b t c"], Any]:
        if self.weight is None:
            return F.silu(x), None
        before = x.new_zeros(len(x), self.taps - 1, x.shape[-1]) if state is None else state
        seen = torch.cat([before, x], 1)
        # In two dimensions, of which one has length 1, torch is three to four times as fast: no copy reorders channels.
        mixed = F.conv2d(seen.mT[:, :, None], self.weight[:, :, None], groups=x.shape[-1])[:, :, 0].mT
        return F.silu(mixed), seen[:, x.shape[1] :]


def split_heads(x: Float[Tensor, "b t c"], heads: int) -> Float[Tensor, "b h t e"]:
    """Split the channels into heads of consecutive channels."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join_heads(x: Float[Tensor, "b h t e"]) -> Float[Tensor, "b t c"]:
    """Concatenate heads: the inverse of ``split_heads``."""
    return x.transpose(1, 2).flatten(2)


def split_chunks(x: Float[Tensor, "b h t c"], chunk: int, filler: float = 0.0) -> Float[Tensor, "b h n s c"]:
    """Cut rows into n chunks of s = ``chunk`` positions; the last chunk is padded with ``filler``."""
    return F.pad(x, (0, 0, 0, -x.shape[2] % chunk), value=filler).unflatten(2, (-1, chunk))


def unbind_chunks(*parts: Float[Tensor, "_ _ n _ _"]) -> Iterator[tuple[Tensor, ...]]:
    """Yield the chunks of all parts, one after the other. A loop over ``part[:, :, i]`` would take time that is
    quadratic in the number of chunks, because the gradient of each slice is as large as ``part``."""
    return zip(*(part.unbind(2) for part in parts), strict=True)


def solve_unit_lower(matrix: Float[Tensor, "*b s s"], right_side: Float[Tensor, "*b s c"]) -> Float[Tensor, "*b s c"]:
    """Return the solution x of (I + L) x = ``right_side``, where L is ``matrix`` below its diagonal. It is computed in
    32 bits or more, since torch's solver does not support 16 bits."""
    dtype = torch.promote_types(matrix.dtype, torch.float32)
    return torch.linalg.solve_triangular(matrix.to(dtype), right_side.to(dtype), upper=False, unitriangular=True)


def exempt_from_decay(parameter: nn.Parameter) -> nn.Parameter:
    """Exempt a parameter from weight decay (see ``group_by_weight_decay``)."""
    parameter.no_weight_decay = True  # type: ignore[attr-defined]
    return parameter


@dataclass(frozen=True)
class LSTMLayer(MixerSpec):
    """A layer of torch's LSTM (Hochreiter and Schmidhuber 1997) with h = o · tanh(c), then a linear layer. The number
    of heads has no effect."""

    def build(self, width: int, heads: int, *, biases: bool, **_: Any) -> Mixer:
        return TorchLayer(nn.LSTM(width, width, batch_first=True), width, biases=biases)


@dataclass(frozen=True)
class GRULayer(MixerSpec):
    """A layer of torch's GRU (Cho et al. 2014, but its reset gate acts after the recurrent product), then a linear
    layer. The number of heads has no effect."""

    def build(self, width: int, heads: int, *, biases: bool, **_: Any) -> Mixer:
        return TorchLayer(nn.GRU(width, width, batch_first=True), width, biases=biases)


class TorchLayer(RecurrentMixer):
    """The module of ``LSTMLayer`` and ``GRULayer``. Its state is that of the torch layer."""

    def __init__(self, layer: nn.LSTM | nn.GRU, width: int, *, biases: bool) -> None:
        super().__init__()
        self.layer = layer
        self.out = nn.Linear(width, width, bias=biases)

    def step(self, x: Hidden, state: Any) -> tuple[Hidden, Any]:
        outputs, state = self.layer(x, state)
        return self.out(outputs), state
