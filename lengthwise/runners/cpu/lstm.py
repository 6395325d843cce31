"""The runner of ``models.lstm``, for a CPU.

It skips padding (``packing``), and each cell's steps over all positions are one autograd function (``cell``). Results
are equal up to rounding; with dropout, in distribution.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from lengthwise.models.lstm import LSTMModel
from lengthwise.nn.lstm import Cell
from lengthwise.nn.readout import ScaledReadout
from lengthwise.runners.cpu import claims
from lengthwise.runners.cpu.cell import run_cell
from lengthwise.runners.cpu.dropout import dropout
from lengthwise.runners.cpu.packing import Packing
from lengthwise.runners.cpu.recurrent import CELL, Sequential

MODEL = {"embedding": (nn.Embedding,), "cells": [Cell], "drop": (nn.Dropout,), "readout": (ScaledReadout, nn.Linear)}
PARTS = claims.register_types({LSTMModel: MODEL, Cell: CELL, ScaledReadout: {}})


class PackedLSTM(Sequential):
    """The runner of ``LSTMModel``."""

    kind, parts = LSTMModel, PARTS

    def run_packed(self, x: Float[Tensor, "r t d"], packing: Packing) -> Float[Tensor, "n d"]:
        packed, drop = packing.pack(x).T, self.model.drop
        for number, cell in enumerate(self.model.cells):
            if number and drop.training:
                packed = dropout(packed, drop.p)
            packed = run_cell(cell, packed, packing.counts)
        return packed.T
