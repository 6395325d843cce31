"""The runners of recurrent models (LSTM, ReTran), for a CPU.

They skip padding, position by position (``Packing``), and split large batches into groups of rows of about equal
length. For several loops, they use the plain runner's loop over depth, and compute each loop fast. Each cell of the
LSTM runs over all positions as one autograd function (``cell``).

ReTran's layers are computed at once, as a wave: at step w, layer l computes position w − l, so one product with stacked
weights serves all active layers, and there are t + layers − 1 steps instead of t · layers. Keys and values are in one
tensor (``recall``). Results are equal up to rounding; with dropout, in distribution.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from lengthwise.base.types import Inputs
from lengthwise.models import Model
from lengthwise.models.retran import Layer, LSTMModel, ReTranModel
from lengthwise.nn.input_output import ScaledReadout
from lengthwise.nn.lstm import Cell
from lengthwise.runners import Logits, RowLoops, Selected, Steps
from lengthwise.runners.cpu import claims
from lengthwise.runners.cpu.cell import build_gate_matrix, run_cell, step_cells
from lengthwise.runners.cpu.elementwise import dropout
from lengthwise.runners.cpu.packing import Packing, group_by_length, restore_order, select_unique
from lengthwise.runners.cpu.recall import Recall
from lengthwise.runners.plain import Plain

GROUP_POSITIONS = 32_768  # about the fastest group size, in positions with padding
NORMS = ("norm_attention", "norm_cell")
EPS = 1e-5  # ε of the norms, torch's default
# Names of linear layers in cells and in ReTran's layers, and whether these have biases.
BIASED = dict.fromkeys(("input", "short", "out", "query", "key", "value", "mix"), True) | {"recurrent": False}
READOUT = (ScaledReadout, nn.Linear)
CELL = {Cell: dict.fromkeys(("input", "recurrent", "short", "out"), (nn.Linear,)), ScaledReadout: {}}
LSTM_MODEL = {"embedding": (nn.Embedding,), "cells": [Cell], "drop": (nn.Dropout,), "readout": READOUT}
LAYER = dict.fromkeys(("query", "key", "value", "mix"), (nn.Linear,)) | dict.fromkeys(NORMS, (nn.LayerNorm,))
RETRAN_MODEL = {"embedding": (nn.Embedding,), "layers": [Layer], "readout": READOUT}


class RecurrentRunner(claims.Claiming):
    """A runner for models whose state is "r t d" and starts as the embedded input."""

    model: Any

    @classmethod
    def declines(cls, model: Model) -> str | None:
        if (reason := super().declines(model)) is not None:
            return reason
        for part in model.modules():
            for name, own in part.named_children():
                if type(own) is nn.Linear and name in BIASED and (own.bias is None) == BIASED[name]:
                    return f"a linear layer, {name}, is {'without' if BIASED[name] else 'with'} biases"
        return None

    @abstractmethod
    def run_packed(self, x: Float[Tensor, "r t d"], packing: Packing) -> Float[Tensor, "n d"]:
        """Return the packed states of all real tokens after one loop."""

    def last(self, inputs: Inputs, loops: RowLoops, at: Selected, *, no_grad_loops: int = 0) -> Logits:
        # Several loops need states in the batch's order, padded; one loop can stay packed up to the logits.
        if no_grad_loops or int(loops.max()) > 1:
            return Plain(_FastLoops(self)).last(inputs, loops, at, no_grad_loops=no_grad_loops)
        rows, logits = group_by_length(inputs, GROUP_POSITIONS), []
        for group in rows:
            part = inputs.take(group).cut_padding()
            packing, wanted = Packing.from_mask(part.padding_mask), at[group, : part.tokens.shape[1]]
            found = self.run_packed(self.model.embed(part), packing)
            logits.append(self.model.readout(select_unique(found, packing.find_positions(wanted))))
        return restore_order(torch.cat(logits), torch.cat(rows), at)

    def steps(self, inputs: Inputs, loops: RowLoops, at: Selected, *, movement: bool = False) -> Steps:
        return Plain(_FastLoops(self)).steps(inputs, loops, at, movement=movement)


class _FastLoops(Model):
    """The model with its loops computed by the fast runner, so that the plain runner can run it."""

    def __init__(self, runner: RecurrentRunner) -> None:
        super().__init__()
        self.runner = runner

    def embed(self, inputs: Inputs) -> tuple[Float[Tensor, "b t d"], Bool[Tensor, "b t"]]:
        return self.runner.model.embed(inputs), inputs.padding_mask

    def start(self, context: Any) -> Float[Tensor, "r t d"]:
        return context[0]

    def advance(self, state: Float[Tensor, "r t d"], context: Any) -> Float[Tensor, "r t d"]:
        packing = Packing.from_mask(context[1])
        return packing.unpack(self.runner.run_packed(state, packing), state.shape[1])

    def read(self, state: Float[Tensor, "r t d"]) -> Float[Tensor, "r t v"]:
        return self.runner.model.read(state)


class PackedLSTM(RecurrentRunner):
    """The runner of ``LSTMModel``."""

    kind, parts = LSTMModel, claims.register_types({LSTMModel: LSTM_MODEL, **CELL})

    def run_packed(self, x: Float[Tensor, "r t d"], packing: Packing) -> Float[Tensor, "n d"]:
        packed, drop = packing.pack(x).T, self.model.drop
        for number, cell in enumerate(self.model.cells):
            if number and drop.training:
                packed = dropout(packed, drop.p)
            packed = run_cell(cell, packed, packing.counts)
        return packed.T


class Wave(RecurrentRunner):
    """The runner of ``ReTranModel``."""

    kind = ReTranModel
    parts = claims.register_types({ReTranModel: RETRAN_MODEL, Layer: {**LAYER, "cell": (Cell,)}, **CELL})

    @classmethod
    def declines(cls, model: Model) -> str | None:
        if (reason := super().declines(model)) is not None:
            return reason
        # The formulas compute all layers together, so layers may differ only in their weights.
        if any(part.eps != EPS for part in model.modules() if isinstance(part, nn.LayerNorm)):
            return f"a norm's ε is not {EPS:g}"
        layers = [part for part in model.modules() if isinstance(part, Layer)]
        kinds = {(one.heads, one.dropout, one.training, *(part.shape for part in one.parameters())) for one in layers}
        return "its layers differ in more than their weights" if len(kinds) > 1 else None

    def run_packed(self, x: Float[Tensor, "r t d"], packing: Packing) -> Float[Tensor, "n d"]:
        ordered = packing.sort_rows(x).transpose(0, 1)
        return torch.cat(WavePass(self.model, ordered, len(packing.counts)).run(ordered, packing.counts))


class WavePass:
    """A pass over all positions, in which layer l computes position w − l at step w.

    The output of layer l at position t is stored in slot t + l + 1, its learned first vector in slot l.
    """

    def __init__(self, model: ReTranModel, x: Float[Tensor, "t b d"], positions: int) -> None:
        """Prepare a pass over the first ``positions`` positions of the rows of ``x``."""
        _, rows, width = x.shape
        layers: list[Layer] = list(model.layers)  # type: ignore[arg-type]
        heads = layers[0].heads
        self.depth, self.probability = len(layers), layers[0].dropout if layers[0].training else 0.0
        self.maps, self.norms = stack_maps(layers, heads), stack_norms(layers)
        self.gates = torch.stack([build_gate_matrix(layer.cell) for layer in layers])
        self.rates = model.rates.repeat(2 * heads)  # per coordinate: both halves of a head rotate equally
        self.short = [layer.cell.first_short.expand(rows, -1) for layer in layers]
        self.long = [layer.cell.first_long[:, None].expand(-1, rows) for layer in layers]
        self.outputs = [x[0]] * self.depth
        shape = self.depth, positions + self.depth, width, rows
        self.recall = Recall(shape, heads, probability=self.probability, like=x)
        for number, layer in enumerate(layers):
            key, value = (part(layer.first).expand(1, rows, -1) for part in (layer.key, layer.value))
            self.recall.store(key, value, number, number)

    def run(self, x: Float[Tensor, "t b d"], counts: list[int]) -> list[Float[Tensor, "n d"]]:
        """Return the last layer's outputs at each position t, for the first ``counts[t]`` rows, which are long
        enough."""
        found, positions = [], len(counts)
        for wave in range(positions + self.depth - 1):
            # The active layers: those whose position, wave − layer, is inside the row.
            layers = range(max(0, wave - positions + 1), min(self.depth, wave + 1))
            rows = counts[wave - layers[-1]]  # the earliest of the positions has the most rows
            below = [self.outputs[layer - 1] if layer else x[wave] for layer in layers]
            short = torch.stack([self.short[layer][:rows] for layer in layers])
            long = torch.stack([self.long[layer][:, :rows] for layer in layers])
            new = self._step(torch.stack([part[:rows] for part in below]), short, long, layers, wave)
            for layer, *parts in zip(layers, *(part.unbind() for part in new), strict=True):
                self.outputs[layer], self.short[layer], self.long[layer] = parts
            if layers[-1] == self.depth - 1:
                found.append(self.outputs[-1])
        return found

    def _step(
        self,
        x: Float[Tensor, "l r d"],
        short: Float[Tensor, "l r d"],
        long: Float[Tensor, "l h r"],
        layers: range,
        wave: int,
    ) -> tuple[Float[Tensor, "l r d"], Float[Tensor, "l r d"], Float[Tensor, "l h r"]]:
        """Return the active layers' outputs, short states and long states after one step."""
        first, count = layers[0], len(layers)
        position = wave + 1 - torch.arange(first, first + count, device=x.device)
        angles = (position[:, None, None] * self.rates).to(x.dtype)
        cos_sin = angles.cos(), angles.sin()
        slots = torch.arange(wave + 1 - first, device=x.device)
        # Layer l's keys begin at slot l; its earlier slots are empty.
        hidden_mask = slots < torch.arange(count, device=x.device)[:, None] if count > 1 else None

        query = rotate(self._apply_linear("query", x, layers), cos_sin)
        mixed = self._apply_linear("mix", self.recall.attend(query, first, slice(first, wave + 1), hidden_mask), layers)
        h = self._apply_norm("norm_attention", x + dropout(mixed, self.probability), layers)
        seen = torch.cat([h, short, torch.ones_like(h[..., :1])], -1)
        emitted, long = step_cells(seen, self._select_layers(self.gates, layers), long)
        out, short = self._apply_linear("out_short", emitted.mT, layers).chunk(2, -1)
        y = self._apply_norm("norm_cell", h + dropout(out, self.probability), layers)
        *keys, value = self._apply_linear("key_value", y, layers).split(x.shape[-1], -1)
        self.recall.store(rotate(torch.cat(keys, -1), cos_sin), value, first, wave + 1)
        return y, short, long

    def _select_layers(self, part: Float[Tensor, "all ..."], layers: range) -> Float[Tensor, "l ..."]:
        """Select the active layers of stacked weights. No slice if all are active: its gradient would cost a copy."""
        return part if len(layers) == self.depth else part[layers.start : layers.stop]

    def _apply_linear(self, name: str, x: Float[Tensor, "l r i"], layers: range) -> Float[Tensor, "l r o"]:
        weight, bias = (self._select_layers(part, layers) for part in self.maps[name])
        return torch.baddbmm(bias, x, weight)

    def _apply_norm(self, name: str, x: Float[Tensor, "l r d"], layers: range) -> Float[Tensor, "l r d"]:
        weight, bias = (self._select_layers(part, layers) for part in self.norms[name])
        return torch.addcmul(bias, F.layer_norm(x, x.shape[-1:]), weight)


def rotate(both: Float[Tensor, "l r dd"], cos_sin: tuple[Tensor, Tensor]) -> Float[Tensor, "l r d"]:
    """Rotate queries or keys: x cos + x⊥ sin, given x and x⊥, the vector rotated by 90°, concatenated."""
    straight, on = both.chunk(2, -1)
    return torch.addcmul(straight * cos_sin[0], on, cos_sin[1])


def _with_rotated_copy(linear: nn.Linear, heads: int) -> list[tuple[Tensor, Tensor]]:
    """Return weight and bias of a linear layer, and of a layer whose output is the same rotated by 90°, where
    coordinates i and i + half of a head form a pair."""

    def on(part: Tensor) -> Tensor:
        first, second = part.view(heads, 2, -1, *part.shape[1:]).unbind(1)
        return torch.stack([-second, first], 1).view_as(part)

    return [weight_and_bias(linear), (on(linear.weight), on(linear.bias))]


def stack_maps(layers: list[Layer], heads: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return weights "l i o" and biases "l 1 o" of all linear layers; layers with the same input are concatenated."""
    maps = {
        "query": [_with_rotated_copy(layer.query, heads) for layer in layers],
        "key_value": [[*_with_rotated_copy(layer.key, heads), weight_and_bias(layer.value)] for layer in layers],
        "mix": [[weight_and_bias(layer.mix)] for layer in layers],
        "out_short": [[weight_and_bias(layer.cell.out), weight_and_bias(layer.cell.short)] for layer in layers],
    }
    return {name: stack_linear(parts) for name, parts in maps.items()}


def stack_linear(parts: list[list[tuple[Tensor, Tensor]]]) -> tuple[Tensor, Tensor]:
    """Return weights "l i o" and biases "l 1 o", given (weight, bias) of each layer's maps, which are concatenated."""
    weights, biases = zip(*(map(torch.cat, zip(*part, strict=True)) for part in parts), strict=True)
    return torch.stack(weights).mT, torch.stack(biases)[:, None]


def stack_norms(layers: list[Layer]) -> dict[str, tuple[Tensor, Tensor]]:
    """Return weights and biases "l 1 d" of the layer norms."""
    stacked = {}
    for name in NORMS:
        scales, shifts = zip(*(weight_and_bias(getattr(layer, name)) for layer in layers), strict=True)
        stacked[name] = torch.stack(scales)[:, None], torch.stack(shifts)[:, None]
    return stacked


def weight_and_bias(part: nn.Linear | nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """Return a part's weight and bias."""
    return part.weight, part.bias
