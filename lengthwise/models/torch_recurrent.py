"""Torch's LSTM and GRU: recurrent baselines. ``models/lstm.py`` has another LSTM, that of ReTran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from lengthwise.base.ranges import Decay, Size
from lengthwise.base.types import Inputs, UsageError
from lengthwise.base.vocab import Vocab
from lengthwise.models import Model, ModelSpec


@dataclass(frozen=True)
class _TorchRecurrent(ModelSpec):
    width: Size = 64  # numbers of an embedded symbol and of a hidden state
    layers: Size = 2  # one above the other
    dropout: Decay = 0.0  # probability of dropping a value between layers in training

    def build(self, reads: Vocab, writes: Vocab, *, causal: bool) -> Model:
        if not causal:
            raise UsageError(
                f"{type(self).__name__} reads from left to right: it takes a causal layout, e.g. NextToken"
            )
        return TorchRecurrentModel(self, self._layers(), len(reads), len(writes))

    def _layers(self) -> nn.RNNBase:
        raise NotImplementedError


@dataclass(frozen=True)
class TorchLSTM(_TorchRecurrent):
    """``torch.nn.LSTM``, ``layers`` of them, between an embedding and a linear readout.

    Unlike ``LSTM``, the cell of ReTran, it takes tanh of its long state, and it learns parity. In a second loop the
    input is the output of the first. ``build`` raises UsageError for a layout that is not causal.
    """

    def _layers(self) -> nn.RNNBase:
        return nn.LSTM(self.width, self.width, self.layers, batch_first=True, dropout=self.dropout)


@dataclass(frozen=True)
class TorchGRU(_TorchRecurrent):
    """``torch.nn.GRU``, ``layers`` of them, between an embedding and a linear readout; see ``TorchLSTM``."""

    def _layers(self) -> nn.RNNBase:
        return nn.GRU(self.width, self.width, self.layers, batch_first=True, dropout=self.dropout)


class TorchRecurrentModel(Model):
    """The model of both. Context and state are "r t d"."""

    def __init__(self, spec: _TorchRecurrent, layers: nn.RNNBase, reads: int, writes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(reads, spec.width)
        self.layers = layers
        self.readout = nn.Linear(spec.width, writes)

    def embed(self, inputs: Inputs) -> Float[Tensor, "r t d"]:
        return self.embedding(inputs.tokens)

    def start(self, context: Float[Tensor, "r t d"]) -> Float[Tensor, "r t d"]:
        return context

    def advance(self, state: Float[Tensor, "r t d"], context: Float[Tensor, "r t d"]) -> Float[Tensor, "r t d"]:
        return self.layers(state)[0]

    def step(self, state: Float[Tensor, "r t d"], memory: Any) -> tuple[Float[Tensor, "r t d"], Any]:
        return self.layers(state, memory)

    def read(self, state: Float[Tensor, "r t d"]) -> Float[Tensor, "r t v"]:
        return self.readout(state)
