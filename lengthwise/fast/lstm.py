"""The stack of LSTM cells on a CPU: rows without padding, position after position, by one hand-written step."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from lengthwise.fast import claims
from lengthwise.fast.cell import run
from lengthwise.fast.dropout import dropout
from lengthwise.fast.packing import Packing
from lengthwise.fast.recurrent import Sequential
from lengthwise.models.lstm import LSTMModel
from lengthwise.nn.lstm import Cell
from lengthwise.nn.readout import Scaled

PARTS = claims.known([LSTMModel, Cell, Scaled])


class PackedLSTM(Sequential):
    """For the stack of LSTM cells."""

    kind, parts = LSTMModel, PARTS

    def along(self, x: Float[Tensor, "r t d"], packing: Packing) -> Float[Tensor, "n d"]:
        packed, drop = packing.pack(x).T, self.model.drop
        for number, cell in enumerate(self.model.cells):
            if number and drop.training:
                packed = dropout(packed, drop.p)
            packed = run(cell, packed, packing.counts)
        return packed.T
