"""The runner of ReTran, for a CPU.

It computes all layers at once, as a wave: at step w, layer l computes position w − l, so one product with stacked
weights serves all active layers, and there are t + layers − 1 steps instead of t · layers. It skips padding
(``packing``) and keeps keys and values in one tensor (``recall``). Results are equal up to rounding; with dropout, in
distribution.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lengthwise.models import Model
from lengthwise.models.retran import Layer, ReTranModel
from lengthwise.nn.lstm import Cell
from lengthwise.nn.readout import ScaledReadout
from lengthwise.runners.cpu import claims
from lengthwise.runners.cpu.cell import gate_matrix, step_cells
from lengthwise.runners.cpu.dropout import dropout
from lengthwise.runners.cpu.packing import Packing
from lengthwise.runners.cpu.recall import Recall
from lengthwise.runners.cpu.recurrent import CELL, Sequential

NORMS = ("norm_attention", "norm_cell")
EPS = 1e-5  # of the norms, as of torch's
LAYER = dict.fromkeys(("query", "key", "value", "mix"), (nn.Linear,)) | dict.fromkeys(NORMS, (nn.LayerNorm,))
PARTS = claims.register_types(
    {
        ReTranModel: {"embedding": (nn.Embedding,), "layers": [Layer], "readout": (ScaledReadout, nn.Linear)},
        Layer: {**LAYER, "cell": (Cell,)},
        Cell: CELL,
        ScaledReadout: {},
    }
)


class Wave(Sequential):
    """The runner of ``ReTranModel``."""

    kind, parts = ReTranModel, PARTS

    @classmethod
    def declines(cls, model: Model) -> str | None:
        return super().declines(model) or find_layer_difference(model)

    def run_packed(self, x: Float[Tensor, "r t d"], packing: Packing) -> Float[Tensor, "n d"]:
        ordered = packing.order(x).transpose(0, 1)
        return torch.cat(Pass(self.model, ordered, len(packing.counts)).run(ordered, packing.counts))


def find_layer_difference(model: nn.Module) -> str | None:
    """Return what differs between layers, which the formulas compute together; None if only weights differ."""
    if any(part.eps != EPS for part in model.modules() if isinstance(part, nn.LayerNorm)):
        return f"a norm's ε is not {EPS:g}"
    layers = [part for part in model.modules() if isinstance(part, Layer)]
    kinds = {(one.heads, one.dropout, one.training, *(part.shape for part in one.parameters())) for one in layers}
    return "its layers differ in more than their weights" if len(kinds) > 1 else None


class Pass:
    """A pass over all positions, in one piece or several. At step w, layer l computes position w − l.

    The output of layer l at position t is stored in slot t + l + 1, its learned first vector in slot l.
    """

    def __init__(self, model: ReTranModel, x: Float[Tensor, "t b d"], positions: int) -> None:
        """Prepare a pass over the rows of ``x``, with at most ``positions`` positions."""
        _, rows, width = x.shape
        layers: list[Layer] = list(model.layers)  # type: ignore[arg-type]
        heads = layers[0].heads
        self.seen = 0  # positions of earlier pieces
        self.depth, self.probability = len(layers), layers[0].dropout if layers[0].training else 0.0
        self.maps, self.norms = stack_maps(layers, heads), stack_norms(layers)
        self.gates = torch.stack([gate_matrix(layer.cell) for layer in layers])
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
        """Return the last layer's outputs at each of the next positions: at the t-th, of the first ``counts[t]`` rows,
        which reach it."""
        found, start = [], self.seen
        self.seen += len(counts)
        for wave in range(start, self.seen + self.depth - 1):
            # The active layers: those whose position, wave − layer, is inside this piece.
            layers = range(max(0, wave - self.seen + 1), min(self.depth, wave - start + 1))
            rows = counts[wave - layers[-1] - start]  # the earliest of the positions has the most rows
            below = [self.outputs[layer - 1] if layer else x[wave - start] for layer in layers]
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
        """Compute one step of the active layers: outputs, short states and long states."""
        first, count = layers[0], len(layers)
        position = wave + 1 - torch.arange(first, first + count, device=x.device)
        angles = (position[:, None, None] * self.rates).to(x.dtype)
        turn = angles.cos(), angles.sin()
        slots = torch.arange(wave + 1 - first, device=x.device)
        # Layer l's keys begin at slot l; its earlier slots are empty.
        hidden = slots < torch.arange(count, device=x.device)[:, None] if count > 1 else None

        query = rotate(self._map("query", x, layers), turn)
        mixed = self._map("mix", self.recall.attend(query, first, slice(first, wave + 1), hidden), layers)
        h = self._norm("norm_attention", x + dropout(mixed, self.probability), layers)
        seen = torch.cat([h, short, torch.ones_like(h[..., :1])], -1)
        emitted, long = step_cells(seen, self._select_layers(self.gates, layers), long)
        out, short = self._map("out_short", emitted.mT, layers).chunk(2, -1)
        y = self._norm("norm_cell", h + dropout(out, self.probability), layers)
        *keys, value = self._map("key_value", y, layers).split(x.shape[-1], -1)
        self.recall.store(rotate(torch.cat(keys, -1), turn), value, first, wave + 1)
        return y, short, long

    def _select_layers(self, part: Float[Tensor, "all ..."], layers: range) -> Float[Tensor, "l ..."]:
        """Select the active layers of stacked weights. No slice if all are active: its gradient would cost a copy."""
        return part if len(layers) == self.depth else part[layers.start : layers.stop]

    def _map(self, name: str, x: Float[Tensor, "l r i"], layers: range) -> Float[Tensor, "l r o"]:
        weight, bias = (self._select_layers(part, layers) for part in self.maps[name])
        return torch.baddbmm(bias, x, weight)

    def _norm(self, name: str, x: Float[Tensor, "l r d"], layers: range) -> Float[Tensor, "l r d"]:
        weight, bias = (self._select_layers(part, layers) for part in self.norms[name])
        return torch.addcmul(bias, F.layer_norm(x, x.shape[-1:]), weight)


def rotate(both: Float[Tensor, "l r dd"], turn: tuple[Tensor, Tensor]) -> Float[Tensor, "l r d"]:
    """Rotate queries or keys: x cos + x⊥ sin, given x and x⊥, the vector rotated by 90°, concatenated."""
    straight, on = both.chunk(2, -1)
    return torch.addcmul(straight * turn[0], on, turn[1])


def _quarter_turn(linear: nn.Linear, heads: int) -> list[tuple[Tensor, Tensor]]:
    """Return weight and bias of a linear layer, and of the layer whose output is the first one's rotated by 90°:
    coordinates i and i + half of a head form a pair."""

    def on(part: Tensor) -> Tensor:
        first, second = part.view(heads, 2, -1, *part.shape[1:]).unbind(1)
        return torch.stack([-second, first], 1).view_as(part)

    return [weights_of(linear), (on(linear.weight), on(linear.bias))]


def stack_maps(layers: list[Layer], heads: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return weights "l i o" and biases "l 1 o" of all linear layers; layers with the same input are concatenated."""
    maps = {
        "query": [_quarter_turn(layer.query, heads) for layer in layers],
        "key_value": [[*_quarter_turn(layer.key, heads), weights_of(layer.value)] for layer in layers],
        "mix": [[weights_of(layer.mix)] for layer in layers],
        "out_short": [[weights_of(layer.cell.out), weights_of(layer.cell.short)] for layer in layers],
    }
    return {name: stack_linear(parts) for name, parts in maps.items()}


def stack_linear(parts: list[list[tuple[Tensor, Tensor]]]) -> tuple[Tensor, Tensor]:
    """Return weights "l i o" and biases "l 1 o", given those of each layer's maps, which are concatenated."""
    weights, biases = zip(*(map(torch.cat, zip(*part, strict=True)) for part in parts), strict=True)
    return torch.stack(weights).mT, torch.stack(biases)[:, None]


def stack_norms(layers: list[Layer]) -> dict[str, tuple[Tensor, Tensor]]:
    """Return weights and biases "l 1 d" of the layer norms."""
    stacked = {}
    for name in NORMS:
        scales, shifts = zip(*(weights_of(getattr(layer, name)) for layer in layers), strict=True)
        stacked[name] = torch.stack(scales)[:, None], torch.stack(shifts)[:, None]
    return stacked


def weights_of(part: nn.Linear | nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """Return a part's weight and bias."""
    return part.weight, part.bias
