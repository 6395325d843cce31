"""ReTran, the recurrent transformer (ACL 2025), and its recurrent baseline, a stack of LSTM cells.

Each layer of ReTran attends to its own outputs at earlier positions, and has an LSTM cell in place of the MLP.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lengthwise.base.ranges import Decay, Positive, Size
from lengthwise.base.types import UsageError, Vocab
from lengthwise.models import Model, ModelSpec, SequenceModel
from lengthwise.nn import check_causal
from lengthwise.nn.input_output import ScaledReadout
from lengthwise.nn.lstm import Cell


@dataclass(frozen=True)
class ReTran(ModelSpec):
    """A recurrent transformer of ``layers`` layers, with ``heads`` heads and LSTM cells of ``hidden`` units.

    A layer at position t, with input x_t and outputs y:

        a = attention(query x_t at rotary position t + 1; keys and values of y_0 … y_{t−1} at rotary positions 1 … t,
            and of a learned vector at rotary position 0)
        h = norm(x_t + a), y_t = norm(h + cell(h))

    The model is recurrent in t, so ``build`` raises UsageError for a layout that is not causal. In a second loop the
    input is the output of the first loop.
    """

    width: Size = 16  # numbers per position
    hidden: Size = 64  # numbers of an LSTM cell's long (cell) state
    layers: Size = 3  # number of layers
    heads: Size = 8  # attention heads; width must be a multiple
    dropout: Decay = 0.1  # probability of dropping a value in training
    base: Positive = 10_000.0  # base of the rotary encoding

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % (2 * self.heads):
            raise UsageError(f"width must be a multiple of 2 · heads ({2 * self.heads}), not {self.width}")

    def build(self, reads: Vocab, writes: Vocab, *, causal: bool) -> Model:
        check_causal(self, causal)
        return ReTranModel(self, len(reads), len(writes))


# For each coordinate of a head, the factor of itself (cosine), and that of the other coordinate of its pair (± sine).
Rotations = tuple[Float[Tensor, "t e"], Float[Tensor, "t e"]]


class Layer(nn.Module):
    """One layer of ReTran, computed position by position. Terms that need no earlier output are computed for all
    positions at once: on a GPU, launching a small operation takes longer than computing its result."""

    def __init__(self, spec: ReTran) -> None:
        super().__init__()
        width = spec.width
        self.heads, self.dropout = spec.heads, spec.dropout
        self.first = nn.Parameter(torch.zeros(width))  # the learned vector at rotary position 0
        self.query, self.key, self.value, self.mix = (nn.Linear(width, width) for _ in range(4))
        self.norm_attention = nn.LayerNorm(width)
        self.cell = Cell(width, spec.hidden)
        self.norm_cell = nn.LayerNorm(width)
        self.cell.initialise(0.02)
        for linear in (self.query, self.key, self.value, self.mix):
            end = linear is self.mix  # its output is added to the residual stream, as in GPT-2's initialization
            nn.init.normal_(linear.weight, std=0.02 / math.sqrt(2 * spec.layers) if end else 0.02)
            nn.init.zeros_(linear.bias)

    def forward(
        self, x: Float[Tensor, "r t d"], rotations: Rotations, memory: Any
    ) -> tuple[Float[Tensor, "r t d"], Any]:
        """Return the outputs at the next positions, and the memory after them: keys, values, and the cell's states."""
        probability = self.dropout if self.training else 0.0
        # Dropout's factors of both sublayers' outputs: 1 / (1 − p), or 0.
        factors = F.dropout(x.new_ones(2, *x.shape), probability).split(1, 2)
        first, outputs = self.first.expand(len(x), 1, -1), []
        start = *(self._split_heads(part(first)) for part in (self.key, self.value)), self.cell.start(len(x))
        keys, values, states = memory or start
        queries = _rotate(self._split_heads(self.query(x)), rotations) / math.sqrt(keys.shape[-1])
        parts = (x.split(1, 1), queries.split(1, 1), factors, rotations[0].split(1), rotations[1].split(1))
        for column, query, (mixing, emitting), *rotation in zip(*parts, strict=True):
            weights = F.dropout(torch.bmm(query, keys.mT).softmax(-1), probability)
            h = self.norm_attention(column + mixing * self.mix(torch.bmm(weights, values).view_as(column)))
            output, states = self.cell(h, states)
            y = self.norm_cell(h + emitting * output)
            keys = torch.cat([keys, _rotate(self._split_heads(self.key(y)), rotation)], 1)
            values = torch.cat([values, self._split_heads(self.value(y))], 1)
            outputs.append(y)
        return torch.cat(outputs, 1), (keys, values, states)

    def _split_heads(self, x: Float[Tensor, "r t d"]) -> Float[Tensor, "rh t e"]:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2).flatten(0, 1)


class ReTranModel(SequenceModel):
    """The model of ``ReTran``."""

    def __init__(self, spec: ReTran, input_symbol_count: int, output_symbol_count: int) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = nn.Embedding(input_symbol_count, spec.width)
        layers = [Layer(spec) for _ in range(spec.layers)]
        self.layers: Sequence[Layer] = nn.ModuleList(layers)  # type: ignore[assignment]
        self.readout = ScaledReadout(spec.width, output_symbol_count)
        half = spec.width // spec.heads // 2
        self.register_buffer("rates", spec.base ** (-torch.arange(half) / half), persistent=False)

    def step(self, state: Float[Tensor, "r t d"], memory: Any) -> tuple[Float[Tensor, "r t d"], Any]:
        position, memories = memory or (0, [None] * len(self.layers))
        end = position + state.shape[1]
        angles = torch.arange(position + 1, end + 1, device=state.device)[:, None] * self.rates
        rotations = angles.cos().repeat(1, 2), torch.cat([-angles.sin(), angles.sin()], 1)
        new_memories = []
        for layer, layer_memory in zip(self.layers, memories, strict=True):
            state, new = layer(state, rotations, layer_memory)
            new_memories.append(new)
        return state, (end, new_memories)


def _rotate(x: Float[Tensor, "rh t e"], rotations: Sequence[Float[Tensor, "t e"]]) -> Float[Tensor, "rh t e"]:
    """Rotate each head by ``rotations``: the result is that of ``nn.position.rotate``, from half as many operations."""
    cosine, sine = rotations
    return x * cosine + x.roll(x.shape[-1] // 2, -1) * sine


@dataclass(frozen=True)
class LSTM(ModelSpec):
    """A stack of ``layers`` LSTM cells. A hidden (short) state has ``width`` numbers, and a cell (long) state has
    ``hidden`` numbers.

    In a second loop the input is the output of the first loop. The model reads from left to right, so ``build`` raises
    UsageError for a layout that is not causal.
    """

    width: Size = 16  # numbers of the input and of a short (hidden) state
    hidden: Size = 64  # numbers of a long (cell) state
    layers: Size = 3  # number of cells
    dropout: Decay = 0.1  # probability of dropping a value in training

    def build(self, reads: Vocab, writes: Vocab, *, causal: bool) -> Model:
        check_causal(self, causal)
        return LSTMModel(self, len(reads), len(writes))


class LSTMModel(SequenceModel):
    """The model of ``LSTM``."""

    def __init__(self, spec: LSTM, input_symbol_count: int, output_symbol_count: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(input_symbol_count, spec.width)
        cells = [Cell(spec.width, spec.hidden) for _ in range(spec.layers)]
        for cell in cells:
            cell.initialise(None)
        self.cells: Sequence[Cell] = nn.ModuleList(cells)  # type: ignore[assignment]
        self.drop = nn.Dropout(spec.dropout)
        self.readout = ScaledReadout(spec.width, output_symbol_count)

    def step(self, state: Float[Tensor, "r t d"], memory: Any) -> tuple[Float[Tensor, "r t d"], Any]:
        states = list(memory) if memory else [cell.start(len(state)) for cell in self.cells]
        for number, cell in enumerate(self.cells):
            x = self.drop(state) if number else state  # dropout between cells only
            state, states[number] = cell(x, states[number])
        return state, states
