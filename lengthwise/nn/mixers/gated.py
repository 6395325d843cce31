"""Torch's LSTM and GRU layers as mixers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from lengthwise.nn.mixer import Mixer, MixerSpec
from lengthwise.nn.mixers.recurrent import RecurrentMixer


@dataclass(frozen=True)
class LSTMLayer(MixerSpec):
    """A layer of torch's LSTM (Hochreiter and Schmidhuber 1997), h = o · tanh(c), then a linear layer. One head."""

    def build(self, width: int, heads: int, *, biases: bool, **_: Any) -> Mixer:
        return TorchLayer(nn.LSTM(width, width, batch_first=True), width, biases=biases)


@dataclass(frozen=True)
class GRULayer(MixerSpec):
    """A layer of torch's GRU (Cho et al. 2014), then a linear layer. One head."""

    def build(self, width: int, heads: int, *, biases: bool, **_: Any) -> Mixer:
        return TorchLayer(nn.GRU(width, width, batch_first=True), width, biases=biases)


class TorchLayer(RecurrentMixer):
    """The module of both. Its state is torch's."""

    def __init__(self, layer: nn.LSTM | nn.GRU, width: int, *, biases: bool) -> None:
        super().__init__()
        self.layer = layer
        self.out = nn.Linear(width, width, bias=biases)

    def step(self, x: Float[Tensor, "b t d"], state: Any) -> tuple[Float[Tensor, "b t d"], Any]:
        found, state = self.layer(x, state)
        return self.out(found), state
