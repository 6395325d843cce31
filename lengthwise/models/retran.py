"""ReTran, the recurrent transformer (ACL 2025): at each place attention to the layer's own outputs at earlier places,
then an LSTM cell in the MLP's stead."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from lengthwise.base.types import Inputs, UsageError
from lengthwise.base.vocab import Vocab
from lengthwise.models import Model, ModelSpec, State
from lengthwise.nn.dropout import dropout
from lengthwise.nn.lstm import Cell, emit, into
from lengthwise.nn.packed import Packed, Ragged, picked
from lengthwise.nn.packing import Packing
from lengthwise.nn.readout import Scaled
from lengthwise.nn.recall import Recall


@dataclass(frozen=True)
class ReTran(ModelSpec):
    """``layers`` layers of ``heads`` heads, their cells with a long state of ``hidden``. A layer at place t: attention,
    with a query of its input at rotary position t + 1, and keys and values of its own outputs y₀ … y_{t−1}, at
    positions 1 … t, and of one learned vector at position 0; add and norm; LSTM cell; add and norm.

    So it is recurrent in t, and only from left to right: a layout has to be causal. Advanced more than once, it reads
    its own output as its next input.
    """

    width: int = 16
    hidden: int = 64
    layers: int = 3
    heads: int = 8
    dropout: float = 0.1
    base: float = 10_000.0  # of the rotary encoding

    def __post_init__(self) -> None:
        for name in ("width", "hidden", "layers", "heads"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be 1 or more, not {getattr(self, name)}")
        if self.width % (2 * self.heads):
            raise UsageError(f"width must be a multiple of 2 · heads, not {self.width} / {self.heads}")
        if not 0 <= self.dropout < 1:
            raise UsageError(f"dropout must be at least 0 and below 1, not {self.dropout}")

    def build(self, reads: Vocab, writes: Vocab, *, causal: bool) -> Model:
        if not causal:
            raise UsageError("ReTran reads from left to right: it takes a causal layout, e.g. NextToken")
        return ReTranModel(self, len(reads), len(writes))


class Layer(nn.Module):
    """The parameters of one layer; how it is computed is ``_Wave``'s business."""

    def __init__(self, spec: ReTran) -> None:
        super().__init__()
        width = spec.width
        self.first = nn.Parameter(torch.zeros(width))  # stands before the first output
        self.query, self.key, self.value, self.mix = (nn.Linear(width, width) for _ in range(4))
        self.norm_attention = nn.LayerNorm(width)
        self.cell = Cell(width, spec.hidden)
        self.norm_cell = nn.LayerNorm(width)
        self.cell.initialise(0.02)
        for linear in (self.query, self.key, self.value, self.mix):
            end = linear is self.mix
            nn.init.normal_(linear.weight, std=0.02 / math.sqrt(2 * spec.layers) if end else 0.02)
            nn.init.zeros_(linear.bias)


class ReTranContext(NamedTuple):
    """What stays the same from loop to loop."""

    embedded: Float[Tensor, "b t d"]
    padding_mask: Bool[Tensor, "b t"]


class ReTranModel(Model):
    """See ``ReTran``. The state is "r t d"."""

    together = 32_768  # it computes no padding anyway

    def __init__(self, spec: ReTran, reads: int, writes: int) -> None:
        super().__init__()
        self.spec = spec
        self.embedding = nn.Embedding(reads, spec.width)
        self.layers = nn.ModuleList([Layer(spec) for _ in range(spec.layers)])
        self.readout = Scaled(spec.width, writes)
        half = spec.width // spec.heads // 2
        self.register_buffer("rates", spec.base ** (-torch.arange(half) / half), persistent=False)

    def embed(self, inputs: Inputs) -> ReTranContext:
        return ReTranContext(self.embedding(inputs.tokens), inputs.padding_mask)

    def start(self, context: ReTranContext) -> Float[Tensor, "r t d"]:
        return context.embedded

    def advance(self, state: Float[Tensor, "r t d"], context: ReTranContext) -> Float[Tensor, "r t d"]:
        packing = Packing.of(context.padding_mask)
        return packing.unpack(self._said(state, packing), state.shape[1])

    def finish(self, state: Float[Tensor, "r t d"], context: ReTranContext, wanted: Bool[Tensor, "r t"]) -> Packed:
        packing = Packing.of(context.padding_mask)
        return Packed(picked(self._said(state, packing), packing.find(wanted)), Ragged.of(wanted))

    def _said(self, state: Float[Tensor, "r t d"], packing: Packing) -> Float[Tensor, "n d"]:
        """By the last layer."""
        x = packing.order(state).transpose(0, 1)
        return torch.cat(_Wave(self, x, len(packing.counts)).run(x, packing.counts))

    def read(self, state: State, at: Bool[Tensor, "r t"]) -> Float[Tensor, "n v"]:
        return self.readout(state[at])

    def piecewise(self, inputs: Inputs) -> Model:
        return _Piecewise(self, inputs.tokens.shape[1])


class _Wave:
    """All layers side by side: wave w takes layer l to place w − l, so one product of stacked weights serves all the
    layers that are on their way. It can go on from where it stood, with the rows' next places.

    What layer l says at place t is kept at slot t + l + 1, what stands before the row at slot l.
    """

    def __init__(self, model: ReTranModel, x: Float[Tensor, "t b d"], positions: int) -> None:
        """For as many rows as ``x`` has, and up to so many places."""
        spec, rows = model.spec, x.shape[1]
        layers: list[Layer] = list(model.layers)  # type: ignore[arg-type]
        self.depth, self.dropout, self.position = spec.layers, spec.dropout if model.training else 0.0, 0
        self.maps, self.norms = _stacked_maps(layers, spec.heads), _stacked_norms(layers)
        self.gates = torch.stack([into(layer.cell) for layer in layers])
        self.rates = model.rates.repeat(2 * spec.heads)  # of each coordinate: a head's halves turn alike
        self.short = [layer.cell.first_short.expand(rows, -1) for layer in layers]
        self.long = [layer.cell.first_long[:, None].expand(-1, rows) for layer in layers]
        self.said = [x[0]] * self.depth
        shape = self.depth, positions + self.depth, spec.width, rows
        self.recall = Recall(shape, spec.heads, dropout=self.dropout, like=x)
        for number, layer in enumerate(layers):
            key, value = (part(layer.first).expand(1, rows, -1) for part in (layer.key, layer.value))
            self.recall.store(key, value, number, number)

    def run(self, x: Float[Tensor, "t b d"], counts: list[int]) -> list[Float[Tensor, "n d"]]:
        """What the last layer says at each of the next places, in the rows that reach it: the first ``counts``."""
        start, self.position = self.position, self.position + len(counts)
        found = []
        for wave in range(start, self.position + self.depth - 1):
            layers = range(max(0, wave - self.position + 1), min(self.depth, wave - start + 1))
            rows = counts[wave - layers[-1] - start]  # the lowest of their places has most
            below = [self.said[layer - 1] if layer else x[wave - start] for layer in layers]
            short = torch.stack([self.short[layer][:rows] for layer in layers])
            long = torch.stack([self.long[layer][:, :rows] for layer in layers])
            new = self._step(torch.stack([part[:rows] for part in below]), short, long, layers, wave)
            for layer, *parts in zip(layers, *(part.unbind() for part in new), strict=True):
                self.said[layer], self.short[layer], self.long[layer] = parts
            if layers[-1] == self.depth - 1:
                found.append(self.said[-1])
        return found

    def _step(
        self,
        x: Float[Tensor, "l r d"],
        short: Float[Tensor, "l r d"],
        long: Float[Tensor, "l h r"],
        layers: range,
        wave: int,
    ) -> tuple[Float[Tensor, "l r d"], Float[Tensor, "l r d"], Float[Tensor, "l h r"]]:
        """One wave: what is said, and the states."""
        first, count = layers[0], len(layers)
        position = wave + 1 - torch.arange(first, first + count, device=x.device)
        angles = (position[:, None, None] * self.rates).to(x.dtype)
        turn = angles.cos(), angles.sin()
        slots = torch.arange(wave + 1 - first, device=x.device)
        hidden = slots < torch.arange(count, device=x.device)[:, None] if count > 1 else None

        query = _turned(self._map("query", x, layers), turn)
        mixed = self._map("mix", self.recall.attend(query, first, slice(first, wave + 1), hidden), layers)
        h = self._norm("norm_attention", x + dropout(mixed, self.dropout), layers)
        seen = torch.cat([h, short, torch.ones_like(h[..., :1])], -1)
        emitted, long = emit(seen, self._of(self.gates, layers), long)
        out, short = self._map("out_short", emitted.mT, layers).chunk(2, -1)
        y = self._norm("norm_cell", h + dropout(out, self.dropout), layers)
        *keys, value = self._map("key_value", y, layers).split(x.shape[-1], -1)
        self.recall.store(_turned(torch.cat(keys, -1), turn), value, first, wave + 1)
        return y, short, long

    def _of(self, part: Float[Tensor, "all ..."], layers: range) -> Float[Tensor, "l ..."]:
        """Of stacked weights those of these layers; all of them as they are, since a slice's gradient costs a copy."""
        return part if len(layers) == self.depth else part[layers.start : layers.stop]

    def _map(self, name: str, x: Float[Tensor, "l r i"], layers: range) -> Float[Tensor, "l r o"]:
        weight, bias = (self._of(part, layers) for part in self.maps[name])
        return torch.baddbmm(bias, x, weight)

    def _norm(self, name: str, x: Float[Tensor, "l r d"], layers: range) -> Float[Tensor, "l r d"]:
        weight, bias = (self._of(part, layers) for part in self.norms[name])
        return torch.addcmul(bias, F.layer_norm(x, x.shape[-1:]), weight)


def _turned(both: Float[Tensor, "l r dd"], turn: tuple[Tensor, Tensor]) -> Float[Tensor, "l r d"]:
    """Queries or keys turned by their angles, from themselves and themselves a quarter turn on, side by side."""
    straight, on = both.chunk(2, -1)
    return torch.addcmul(straight * turn[0], on, turn[1])


def _quarter_turn(linear: nn.Linear, heads: int) -> list[tuple[Tensor, Tensor]]:
    """Weight and bias of a linear layer, and of the layer that says the same a quarter turn on: coordinate i of a head
    turns together with i + half."""

    def on(part: Tensor) -> Tensor:
        first, second = part.view(heads, 2, -1, *part.shape[1:]).unbind(1)
        return torch.stack([-second, first], 1).view_as(part)

    return [_both(linear), (on(linear.weight), on(linear.bias))]


def _stacked_maps(layers: list[Layer], heads: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Weights "l i o" and biases "l 1 o" of all linear layers, those side by side that read the same."""
    maps = {
        "query": [_quarter_turn(layer.query, heads) for layer in layers],
        "key_value": [[*_quarter_turn(layer.key, heads), _both(layer.value)] for layer in layers],
        "mix": [[_both(layer.mix)] for layer in layers],
        "out_short": [[_both(layer.cell.out), _both(layer.cell.short)] for layer in layers],
    }
    stacked = {}
    for name, parts in maps.items():
        weights, biases = zip(*(map(torch.cat, zip(*part, strict=True)) for part in parts), strict=True)
        stacked[name] = torch.stack(weights).mT, torch.stack(biases)[:, None]
    return stacked


def _stacked_norms(layers: list[Layer]) -> dict[str, tuple[Tensor, Tensor]]:
    """Scales and shifts "l 1 d" of the norms."""
    stacked = {}
    for name in ("norm_attention", "norm_cell"):
        scales, shifts = zip(*(_both(getattr(layer, name)) for layer in layers), strict=True)
        stacked[name] = torch.stack(scales)[:, None], torch.stack(shifts)[:, None]
    return stacked


def _both(part: nn.Linear | nn.LayerNorm) -> tuple[Tensor, Tensor]:
    return part.weight, part.bias


class _Piecewise(Model):
    """See ``Model.piecewise``: every layer goes on from where it stood, for each loop apart."""

    def __init__(self, model: ReTranModel, positions: int) -> None:
        super().__init__()
        self.model, self.positions, self.turn = model, positions, 0
        self.waves: list[_Wave] = []

    def embed(self, inputs: Inputs) -> ReTranContext:
        self.turn = 0
        return self.model.embed(inputs)

    def start(self, context: ReTranContext) -> Float[Tensor, "r t d"]:
        return self.model.start(context)

    def advance(self, state: Float[Tensor, "r t d"], context: ReTranContext) -> Float[Tensor, "r t d"]:
        x = state.transpose(0, 1)
        if self.turn == len(self.waves):
            self.waves.append(_Wave(self.model, x, self.positions))
        wave, self.turn = self.waves[self.turn], self.turn + 1
        return torch.stack(wave.run(x, [x.shape[1]] * len(x)), 1)

    def read(self, state: State, at: Bool[Tensor, "r t"]) -> Float[Tensor, "n v"]:
        return self.model.read(state, at)
