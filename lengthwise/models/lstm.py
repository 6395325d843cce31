"""A stack of LSTM cells, the recurrent baseline: nothing stands between the cells but dropout (ReTran, ACL 2025)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lengthwise.base.types import Inputs, UsageError
from lengthwise.base.vocab import Vocab
from lengthwise.models import Model, ModelSpec, State
from lengthwise.nn.dropout import dropout
from lengthwise.nn.lstm import Cell, emit, into, run
from lengthwise.nn.packed import Packed, Ragged, picked
from lengthwise.nn.packing import Packing
from lengthwise.nn.readout import Scaled


@dataclass(frozen=True)
class LSTM(ModelSpec):
    """``layers`` cells with a short state of ``width`` and a long state of ``hidden``. Advanced more than once, it
    reads its own output as its next input. It reads from left to right, so a layout has to be causal."""

    width: int = 16
    hidden: int = 64
    layers: int = 3
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for name in ("width", "hidden", "layers"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout must be at least 0 and below 1, not {self.dropout}")

    def build(self, reads: Vocab, writes: Vocab, *, causal: bool) -> Model:
        if not causal:
            raise UsageError("LSTM reads from left to right: it takes a causal layout, e.g. NextToken")
        return LSTMModel(self, len(reads), len(writes))


class LSTMContext(NamedTuple):
    """What stays the same from loop to loop."""

    embedded: Float[Tensor, "b t d"]
    padding_mask: Bool[Tensor, "b t"]


class LSTMModel(Model):
    """See ``LSTM``. The state is "r t d"."""

    together = 32_768  # it computes no padding anyway

    def __init__(self, spec: LSTM, reads: int, writes: int) -> None:
        super().__init__()
        self.dropout = spec.dropout
        self.embedding = nn.Embedding(reads, spec.width)
        cells = [Cell(spec.width, spec.hidden) for _ in range(spec.layers)]
        self.cells: Iterable[Cell] = nn.ModuleList(cells)  # type: ignore[assignment]
        for cell in cells:
            cell.initialise(None)
        self.readout = Scaled(spec.width, writes)

    def embed(self, inputs: Inputs) -> LSTMContext:
        return LSTMContext(self.embedding(inputs.tokens), inputs.padding_mask)

    def start(self, context: LSTMContext) -> Float[Tensor, "r t d"]:
        return context.embedded

    def advance(self, state: Float[Tensor, "r t d"], context: LSTMContext) -> Float[Tensor, "r t d"]:
        packing = Packing.of(context.padding_mask)
        return packing.unpack(self._said(state, packing).T, state.shape[1])

    def finish(self, state: Float[Tensor, "r t d"], context: LSTMContext, wanted: Bool[Tensor, "r t"]) -> Packed:
        packing = Packing.of(context.padding_mask)
        return Packed(picked(self._said(state, packing).T, packing.find(wanted)), Ragged.of(wanted))

    def _said(self, state: Float[Tensor, "r t d"], packing: Packing) -> Float[Tensor, "d n"]:
        """By the last cell."""
        x = packing.pack(state).T
        for number, cell in enumerate(self.cells):
            if number and self.training:
                x = dropout(x, self.dropout)
            x = run(cell, x, packing.counts)
        return x

    def read(self, state: State, at: Bool[Tensor, "r t"]) -> Float[Tensor, "n v"]:
        return self.readout(state[at])

    def piecewise(self, inputs: Inputs) -> Model:
        return _Piecewise(self)


class _Piecewise(Model):
    """See ``Model.piecewise``: every cell's states are remembered, for each loop apart."""

    def __init__(self, model: LSTMModel) -> None:
        super().__init__()
        self.model, self.turn = model, 0
        self.into = [into(cell) for cell in model.cells]
        self.states: list[list[tuple[Tensor, Tensor]]] = []

    def embed(self, inputs: Inputs) -> LSTMContext:
        self.turn = 0
        return self.model.embed(inputs)

    def start(self, context: LSTMContext) -> Float[Tensor, "r t d"]:
        return self.model.start(context)

    def advance(self, state: Float[Tensor, "r t d"], context: LSTMContext) -> Float[Tensor, "r t d"]:
        if self.turn == len(self.states):
            rows = len(state)
            first = [(cell.first_short, cell.first_long[:, None]) for cell in self.model.cells]
            self.states.append([(short.expand(rows, -1), long.expand(-1, rows)) for short, long in first])
        states, self.turn = self.states[self.turn], self.turn + 1
        said = []
        for x in state.unbind(1):
            for number, cell in enumerate(self.model.cells):
                short, long = states[number]
                e, long = emit(torch.cat([x, short, torch.ones_like(x[:, :1])], 1), self.into[number], long)
                states[number], x = (cell.short(e.mT), long), cell.out(e.mT)
            said.append(x)
        return torch.stack(said, 1)

    def read(self, state: State, at: Bool[Tensor, "r t"]) -> Float[Tensor, "n v"]:
        return self.model.read(state, at)
