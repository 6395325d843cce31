"""The runner of ``models.lstm``, for a CPU.

Claims ``LSTMModel`` of known parts. It skips padding (``packing``), and each cell's steps over all positions are one
autograd function (``cell``). A cell's output at a position depends only on its row's earlier positions, so results are
equal up to rounding; with dropout, in distribution.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from lengthwise.fast import claims
from lengthwise.fast.cell import run
from lengthwise.fast.dropout import dropout
from lengthwise.fast.packing import Packing
from lengthwise.fast.recurrent import CELL, Sequential
from lengthwise.models.lstm import LSTMModel
from lengthwise.nn.lstm import Cell
from lengthwise.nn.readout import Scaled

MODEL = {"embedding": (nn.Embedding,), "cells": [Cell], "drop": (nn.Dropout,), "readout": (Scaled, nn.Linear)}
PARTS = claims.known({LSTMModel: MODEL, Cell: CELL, Scaled: {}})


class PackedLSTM(Sequential):
    """The runner of ``LSTMModel``."""

    kind, parts = LSTMModel, PARTS

    def along(self, x: Float[Tensor, "r t d"], packing: Packing) -> Float[Tensor, "n d"]:
        packed, drop = packing.pack(x).T, self.model.drop
        for number, cell in enumerate(self.model.cells):
            if number and drop.training:
                packed = dropout(packed, drop.p)
            packed = run(cell, packed, packing.counts)
        return packed.T
