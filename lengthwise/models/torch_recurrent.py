"""Torch's LSTM and GRU as recurrent baselines; ``models/retran.py`` has another LSTM."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Float
from torch import Tensor, nn

from lengthwise.base.ranges import Decay, Size
from lengthwise.base.types import Vocab
from lengthwise.models import Model, ModelSpec, SequenceModel
from lengthwise.nn import check_causal


@dataclass(frozen=True)
class _TorchRecurrent(ModelSpec):
    width: Size = 64  # numbers of an embedded symbol and of a hidden state
    layers: Size = 2  # number of layers
    dropout: Decay = 0.0  # probability of dropping a value between layers in training

    layer_class: ClassVar[type[nn.LSTM] | type[nn.GRU]]

    def build(self, reads: Vocab, writes: Vocab, *, causal: bool) -> Model:
        check_causal(self, causal)
        return TorchRecurrentModel(self, len(reads), len(writes))


@dataclass(frozen=True)
class TorchLSTM(_TorchRecurrent):
    """A stack of ``layers`` layers of ``torch.nn.LSTM``, between an embedding and a linear readout.

    Unlike ``LSTM``, the cell of ReTran, this LSTM takes tanh of its cell state, and it learns parity. In a second loop
    the input is the output of the first loop. ``build`` raises UsageError for a layout that is not causal.
    """

    layer_class = nn.LSTM


@dataclass(frozen=True)
class TorchGRU(_TorchRecurrent):
    """A stack of ``layers`` layers of ``torch.nn.GRU`` between an embedding and a linear readout, as in
    ``TorchLSTM``."""

    layer_class = nn.GRU


class TorchRecurrentModel(SequenceModel):
    """The model of ``TorchLSTM`` and ``TorchGRU``."""

    def __init__(self, spec: _TorchRecurrent, input_symbol_count: int, output_symbol_count: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(input_symbol_count, spec.width)
        self.layers = spec.layer_class(spec.width, spec.width, spec.layers, batch_first=True, dropout=spec.dropout)
        self.readout = nn.Linear(spec.width, output_symbol_count)

    def step(self, state: Float[Tensor, "r t d"], memory: Any) -> tuple[Float[Tensor, "r t d"], Any]:
        return self.layers(state, memory)
