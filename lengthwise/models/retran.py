"""ReTran, the recurrent transformer (ACL 2025): each layer attends to its own outputs at earlier positions, and an LSTM
cell replaces the MLP."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lengthwise.base.ranges import Decay, Positive, Size
from lengthwise.base.types import Inputs, UsageError
from lengthwise.base.vocab import Vocab
from lengthwise.models import Model, ModelSpec
from lengthwise.nn.lstm import Cell, States
from lengthwise.nn.position import turned
from lengthwise.nn.readout import Scaled


@dataclass(frozen=True)
class ReTran(ModelSpec):
    """A recurrent transformer: ``layers`` with ``heads`` heads and LSTM cells whose long state has ``hidden`` numbers.

    A layer at position t, with input x_t and outputs y:

        a = attention(query x_t at rotary position t + 1; keys and values of y_0 … y_{t−1} at rotary positions 1 … t,
            and of a learned vector at rotary position 0)
        h = norm(x_t + a), y_t = norm(h + cell(h))

    The model is recurrent in t, so ``build`` raises UsageError for a layout that is not causal. In a second loop the
    input is the output of the first.
    """

    width: Size = 16  # numbers per position
    hidden: Size = 64  # numbers of a cell's long state
    layers: Size = 3  # layers, one above the other
    heads: Size = 8  # of the attention; width must be a multiple
    dropout: Decay = 0.1  # share of values dropped in training
    base: Positive = 10_000.0  # of the rotary encoding

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % (2 * self.heads):
            raise UsageError(f"width must be a multiple of 2 · heads, not {self.width} / {self.heads}")

    def build(self, reads: Vocab, writes: Vocab, *, causal: bool) -> Model:
        if not causal:
            raise UsageError("ReTran reads from left to right: it takes a causal layout, e.g. NextToken")
        return ReTranModel(self, len(reads), len(writes))


@dataclass
class Past:
    """A layer's memory of earlier positions: keys and values "r h e" of each, and the states of its cell."""

    states: States
    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


class Layer(nn.Module):
    """One layer, computed position by position."""

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
            end = linear is self.mix  # its output is added to the residual stream, as in GPT-2's initialisation
            nn.init.normal_(linear.weight, std=0.02 / math.sqrt(2 * spec.layers) if end else 0.02)
            nn.init.zeros_(linear.bias)

    def start(self, rows: int) -> Past:
        past = Past(self.cell.start(rows))
        self._remember(past, self.first.expand(rows, -1), None)
        return past

    def forward(self, x: Float[Tensor, "r d"], past: Past, angles: Float[Tensor, " half"]) -> Float[Tensor, "r d"]:
        query = _rotated(self._by_head(self.query(x)), angles)
        keys, values = torch.stack(past.keys, 2), torch.stack(past.values, 2)
        probability = self.dropout if self.training else 0.0
        found = F.scaled_dot_product_attention(query[:, :, None], keys, values, dropout_p=probability)
        h = self.norm_attention(x + F.dropout(self.mix(found.flatten(1)), probability))
        output, past.states = self.cell(h, past.states)
        y = self.norm_cell(h + F.dropout(output, probability))
        self._remember(past, y, angles)
        return y

    def _remember(self, past: Past, y: Float[Tensor, "r d"], angles: Float[Tensor, " half"] | None) -> None:
        key = self._by_head(self.key(y))
        past.keys.append(key if angles is None else _rotated(key, angles))
        past.values.append(self._by_head(self.value(y)))

    def _by_head(self, x: Float[Tensor, "r d"]) -> Float[Tensor, "r h e"]:
        return x.unflatten(-1, (self.heads, -1))


class ReTranModel(Model):
    """The model of ``ReTran``. Context and state are "r t d"."""

    def __init__(self, spec: ReTran, reads: int, writes: int) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = nn.Embedding(reads, spec.width)
        layers = [Layer(spec) for _ in range(spec.layers)]
        self.layers: Sequence[Layer] = nn.ModuleList(layers)  # type: ignore[assignment]
        self.readout = Scaled(spec.width, writes)
        half = spec.width // spec.heads // 2
        self.register_buffer("rates", spec.base ** (-torch.arange(half) / half), persistent=False)

    def embed(self, inputs: Inputs) -> Float[Tensor, "r t d"]:
        return self.embedding(inputs.tokens)

    def start(self, context: Float[Tensor, "r t d"]) -> Float[Tensor, "r t d"]:
        return context

    def advance(self, state: Float[Tensor, "r t d"], context: Float[Tensor, "r t d"]) -> Float[Tensor, "r t d"]:
        pasts = [layer.start(len(state)) for layer in self.layers]
        return torch.stack([self.step(x, pasts, position) for position, x in enumerate(state.unbind(1))], 1)

    def step(self, x: Float[Tensor, "r d"], pasts: list[Past], position: int) -> Float[Tensor, "r d"]:
        """Compute all layers at one position, counted from 0."""
        for layer, past in zip(self.layers, pasts, strict=True):
            x = layer(x, past, (position + 1) * self.rates)
        return x

    def read(self, state: Float[Tensor, "r t d"]) -> Float[Tensor, "r t v"]:
        return self.readout(state)


def _rotated(x: Float[Tensor, "r h e"], angles: Float[Tensor, " half"]) -> Float[Tensor, "r h e"]:
    return turned(x, angles.cos(), angles.sin(), axis=-1)
