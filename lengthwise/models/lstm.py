"""The recurrent baseline of ReTran (ACL 2025): a stack of LSTM cells with dropout between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from lengthwise.base.ranges import Decay, Size
from lengthwise.base.vocab import Vocab
from lengthwise.models import Model, ModelSpec, SequenceModel, check_causal
from lengthwise.nn.input_output import ScaledReadout
from lengthwise.nn.lstm import Cell


@dataclass(frozen=True)
class LSTM(ModelSpec):
    """``layers`` LSTM cells, with short (hidden) states of ``width`` and long (cell) states of ``hidden`` numbers.

    In a second loop the input is the output of the first. The model reads from left to right, so ``build`` raises
    UsageError for a layout that is not causal.
    """

    width: Size = 16  # numbers of the input and of a short state
    hidden: Size = 64  # numbers of a long state
    layers: Size = 3  # cells, one above the other
    dropout: Decay = 0.1  # probability of dropping a value in training

    def build(self, reads: Vocab, writes: Vocab, *, causal: bool) -> Model:
        check_causal(self, causal)
        return LSTMModel(self, len(reads), len(writes))


class LSTMModel(SequenceModel):
    """The model of ``LSTM``."""

    def __init__(self, spec: LSTM, reads: int, writes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(reads, spec.width)
        cells = [Cell(spec.width, spec.hidden) for _ in range(spec.layers)]
        for cell in cells:
            cell.initialise(None)
        self.cells: Sequence[Cell] = nn.ModuleList(cells)  # type: ignore[assignment]
        self.drop = nn.Dropout(spec.dropout)
        self.readout = ScaledReadout(spec.width, writes)

    def advance(self, state: Float[Tensor, "r t d"], context: Float[Tensor, "r t d"]) -> Float[Tensor, "r t d"]:
        return self.step(state, None)[0]

    def step(self, state: Float[Tensor, "r t d"], memory: Any) -> tuple[Float[Tensor, "r t d"], Any]:
        states = list(memory) if memory else [cell.start(len(state)) for cell in self.cells]
        for number, cell in enumerate(self.cells):
            x = self.drop(state) if number else state  # dropout between cells, not on the input
            state, states[number] = cell(x, states[number])
        return state, states
