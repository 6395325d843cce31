"""The runners of recurrent models (LSTM, ReTran), for a CPU.

They skip padding, position by position (``Packing``), and split large batches into groups of rows of about equal
length. If there are several loops, the plain runner runs the loop over depth, and these runners compute each loop. Each
cell of the LSTM runs over all positions as one autograd function (``cell``).

ReTran's layers are computed at once, as a wave: at step w, layer l computes position w − l. One product with stacked
weights serves all active layers, in t + layers − 1 steps instead of t · layers. Keys and values are in preallocated
tensors (``KeyValueSlots``): with a Python list, autograd would stack all keys at every step and add up one gradient per
pair of steps. Results equal the plain runner's up to rounding, or in distribution with dropout.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lengthwise.base.types import Inputs
from lengthwise.models import Model
from lengthwise.models.retran import Layer, LSTMModel, ReTranModel
from lengthwise.nn.input_output import ScaledReadout
from lengthwise.nn.lstm import Cell
from lengthwise.runners import Logits, Mask, RowLoops, Steps
from lengthwise.runners.cpu import support
from lengthwise.runners.cpu.cell import build_gate_matrix, run_cell, step_cells
from lengthwise.runners.cpu.elementwise import draw_dropout_factors, dropout
from lengthwise.runners.cpu.packing import Packing, group_by_length, restore_order, select_unique
from lengthwise.runners.plain import Plain

GROUP_POSITIONS = 32_768  # about the fastest group size, in positions with padding
NORM_NAMES = ("norm_attention", "norm_cell")
NORM_EPS = 1e-5  # ε of the norms, torch's default
# Names of linear layers in cells and in ReTran's layers, and whether these have biases.
HAS_BIAS = dict.fromkeys(("input", "short", "out", "query", "key", "value", "mix"), True) | {"recurrent": False}
MODEL_PARTS = {"embedding": (nn.Embedding,), "readout": (ScaledReadout, nn.Linear)}
CELL_PARTS = {Cell: dict.fromkeys(("input", "recurrent", "short", "out"), (nn.Linear,)), ScaledReadout: {}}
LAYER_PARTS = dict.fromkeys(("query", "key", "value", "mix"), (nn.Linear,)) | dict.fromkeys(NORM_NAMES, (nn.LayerNorm,))


class RecurrentRunner(support.SpecializedRunner):
    """A runner for models whose state is "r t d" and starts as the embedded input."""

    model: Any

    @classmethod
    def find_obstacle(cls, model: Model) -> str | None:
        if (reason := super().find_obstacle(model)) is not None:
            return reason
        for part in model.modules():
            for name, child in part.named_children():
                if type(child) is nn.Linear and name in HAS_BIAS and (child.bias is None) == HAS_BIAS[name]:
                    return f"a linear layer, {name}, is {'without' if HAS_BIAS[name] else 'with'} biases"
        return None

    @abstractmethod
    def run_packed(self, x: Float[Tensor, "r t d"], packing: Packing) -> Float[Tensor, "n d"]:
        """Return the packed states of all real tokens after one loop."""

    def last(self, inputs: Inputs, loops: RowLoops, positions: Mask, *, no_grad_loops: int = 0) -> Logits:
        # Several loops need states in the batch's order, padded; one loop can stay packed up to the logits.
        if no_grad_loops or int(loops.max()) > 1:
            return Plain(_FastModel(self)).last(inputs, loops, positions, no_grad_loops=no_grad_loops)
        rows, logits = group_by_length(inputs, GROUP_POSITIONS), []
        for group in rows:
            part = inputs.take(group).cut_padding()
            packing, wanted = Packing.from_mask(part.padding_mask), positions[group, : part.tokens.shape[1]]
            states = self.run_packed(self.model.embed(part), packing)
            logits.append(self.model.readout(select_unique(states, packing.find_positions(wanted))))
        return restore_order(torch.cat(logits), torch.cat(rows), positions)

    def steps(self, inputs: Inputs, loops: RowLoops, positions: Mask, *, movement: bool = False) -> Steps:
        return Plain(_FastModel(self)).steps(inputs, loops, positions, movement=movement)


class _FastModel(Model):
    """A model whose ``advance`` is computed by the fast runner, for the plain runner's loop over depth."""

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

    model_type = LSTMModel
    part_types = support.register_types(
        {LSTMModel: {**MODEL_PARTS, "cells": [Cell], "drop": (nn.Dropout,)}, **CELL_PARTS}
    )

    def run_packed(self, x: Float[Tensor, "r t d"], packing: Packing) -> Float[Tensor, "n d"]:
        packed, drop = packing.pack(x).T, self.model.drop
        for number, cell in enumerate(self.model.cells):
            if number and drop.training:
                packed = dropout(packed, drop.p)
            packed = run_cell(cell, packed, packing.row_counts)
        return packed.T


class Wave(RecurrentRunner):
    """The runner of ``ReTranModel``."""

    model_type = ReTranModel
    part_types = support.register_types(
        {ReTranModel: {**MODEL_PARTS, "layers": [Layer]}, Layer: {**LAYER_PARTS, "cell": (Cell,)}, **CELL_PARTS}
    )

    @classmethod
    def find_obstacle(cls, model: Model) -> str | None:
        if (reason := super().find_obstacle(model)) is not None:
            return reason
        # The formulas compute all layers together, so layers may differ only in their weights.
        if any(part.eps != NORM_EPS for part in model.modules() if isinstance(part, nn.LayerNorm)):
            return f"a norm's ε is not {NORM_EPS:g}"
        layers = [part for part in model.modules() if isinstance(part, Layer)]
        shapes = (tuple(part.shape for part in layer.parameters()) for layer in layers)
        kinds = {(one.heads, one.dropout, one.training, *own) for one, own in zip(layers, shapes, strict=True)}
        return "its layers differ in more than their weights" if len(kinds) > 1 else None

    def run_packed(self, x: Float[Tensor, "r t d"], packing: Packing) -> Float[Tensor, "n d"]:
        x, counts, layers = packing.sort_rows(x).transpose(0, 1), packing.row_counts, [*self.model.layers]
        (_, rows, width), positions, depth, heads = x.shape, len(counts), len(layers), layers[0].heads
        probability = layers[0].dropout if layers[0].training else 0.0
        weights = stack_linear_layers(layers, heads) | stack_norms(layers)
        gates = torch.stack([build_gate_matrix(layer.cell) for layer in layers])
        rates = self.model.rates.repeat(2 * heads)  # per coordinate; both halves of a head have equal rates
        outputs = [x[0]] * depth
        shorts = [layer.cell.first_short.expand(rows, -1) for layer in layers]
        longs = [layer.cell.first_long[:, None].expand(-1, rows) for layer in layers]
        # The output of layer l at position t is stored in slot t + l + 1, its learned first vector in slot l.
        memory = KeyValueSlots((depth, positions + depth, width, rows), heads, probability=probability, like=x)
        order = x.new_zeros(()).requires_grad_(torch.is_grad_enabled())
        for number, layer in enumerate(layers):
            key, value = (part(layer.first).expand(1, rows, -1) for part in (layer.key, layer.value))
            order = memory.store(key, value, order, number, number)

        def select_active(part: Float[Tensor, "all ..."]) -> Float[Tensor, "l ..."]:
            """Select the active layers of stacked weights. A slice is avoided if possible: its gradient costs a
            copy."""
            return part if len(active) == depth else part[active.start : active.stop]

        def apply_linear(name: str, x: Float[Tensor, "l r i"]) -> Float[Tensor, "l r o"]:
            weight, bias = map(select_active, weights[name])
            return torch.baddbmm(bias, x, weight)

        def apply_norm(name: str, x: Float[Tensor, "l r d"]) -> Float[Tensor, "l r d"]:
            weight, bias = map(select_active, weights[name])
            return torch.addcmul(bias, F.layer_norm(x, x.shape[-1:]), weight)

        last_outputs = []
        for wave in range(positions + depth - 1):
            # Layer l computes position wave − l; the active layers are those whose position is inside the row.
            active = range(max(0, wave - positions + 1), min(depth, wave + 1))
            first, rows = active[0], counts[wave - active[-1]]  # the earliest of the positions has the most rows
            below = torch.stack([outputs[layer - 1][:rows] if layer else x[wave][:rows] for layer in active])
            short = torch.stack([shorts[layer][:rows] for layer in active])
            long = torch.stack([longs[layer][:, :rows] for layer in active])
            position = wave + 1 - torch.arange(first, active.stop, device=x.device)
            angles = (position[:, None, None] * rates).to(x.dtype)
            cos_sin = angles.cos(), angles.sin()
            slots = torch.arange(wave + 1 - first, device=x.device)
            # Layer l's keys begin at slot l; its earlier slots are empty.
            hidden = slots < torch.arange(len(active), device=x.device)[:, None] if len(active) > 1 else None

            query = apply_rotation(apply_linear("query", below), cos_sin)
            mixed = apply_linear("mix", memory.attend(query, order, first, slice(first, wave + 1), hidden))
            h = apply_norm("norm_attention", below + dropout(mixed, probability))
            cell_input = torch.cat([h, short, torch.ones_like(h[..., :1])], -1)
            emitted, long = step_cells(cell_input, select_active(gates), long)
            out, short = apply_linear("out_short", emitted.mT).chunk(2, -1)
            y = apply_norm("norm_cell", h + dropout(out, probability))
            *keys, value = apply_linear("key_value", y).split(width, -1)
            order = memory.store(apply_rotation(torch.cat(keys, -1), cos_sin), value, order, first, wave + 1)
            outputs[first : active.stop], shorts[first : active.stop] = y.unbind(), short.unbind()
            longs[first : active.stop] = long.unbind()
            if active[-1] == depth - 1:
                last_outputs.append(outputs[-1])
        return torch.cat(last_outputs)


class KeyValueSlots:
    """The keys and values of ReTran's layers, in slots. The last rows end first.

    ``store`` and ``attend`` are differentiable. Gradients are accumulated in a tensor outside autograd. The scalar
    ``order`` ensures that gradients are complete when they are read: each ``store`` takes the scalar of the previous
    ``store``, and each ``attend`` the latest scalar. The backward pass of a ``store`` therefore runs after those of all
    ``attend`` calls that read its slot. The scalar's graph refers to this object, which must not hold the scalar: such
    a cycle would never be freed.
    """

    def __init__(self, shape: tuple[int, int, int, int], heads: int, *, probability: float, like: Tensor) -> None:
        """Create empty slots of ``shape`` (layers, slots, width, rows). Rows are last, for speed with small heads."""
        self.keys, self.values = like.new_zeros(shape), like.new_zeros(shape)
        self.heads, self.probability = heads, probability
        self._gradients: tuple[Tensor, Tensor] | None = None
        self._pass = -1

    def store(
        self, key: Float[Tensor, "l r d"], value: Float[Tensor, "l r d"], order: Tensor, layer: int, slot: int
    ) -> Float[Tensor, ""]:
        """Write keys and values of l layers, from ``layer`` on, to a slot of the first r rows. Return ``order``."""
        return _StoreSlot.apply(key, value, order, self, layer, slot)

    def attend(
        self,
        query: Float[Tensor, "l r d"],
        order: Tensor,
        layer: int,
        slots: slice,
        hidden_slots: Bool[Tensor, "l s"] | None,
    ) -> Float[Tensor, "l r d"]:
        """Compute attention of each row's query over ``slots``, in l layers from ``layer`` on; ``hidden_slots`` is True
        for slots that a layer does not see. A head's coordinates are contiguous."""
        return _AttendSlots.apply(query, order, self, layer, slots, hidden_slots)

    def read_gradients(self) -> tuple[Tensor, Tensor]:
        """Return the gradients of all keys and values, as accumulated so far in this backward pass."""
        # A retained graph may be run backward again: each backward pass needs new zeros.
        if self._pass != (now := torch._C._current_graph_task_id()) or self._gradients is None:
            self._gradients, self._pass = (torch.zeros_like(self.keys), torch.zeros_like(self.values)), now
        return self._gradients


class _StoreSlot(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, key: Tensor, value: Tensor, order: Tensor, state: KeyValueSlots, layer: int, slot: int
    ) -> Tensor:
        layers, rows, _ = key.shape
        ctx.state, ctx.where = state, (slice(layer, layer + layers), slot, slice(None), slice(rows))
        state.keys[ctx.where], state.values[ctx.where] = key.mT, value.mT
        return order.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_order: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        keys, values = (gradient[ctx.where].mT.contiguous() for gradient in ctx.state.read_gradients())
        return keys, values, grad_order, None, None, None


class _AttendSlots(torch.autograd.Function):
    """The softmax attention of ``KeyValueSlots.attend``. In shapes, s counts slots, e the coordinates of a head."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        order: Tensor,
        state: KeyValueSlots,
        layer: int,
        slots: slice,
        hidden_slots: Tensor | None,
    ) -> Tensor:
        layers, rows, width = query.shape
        ctx.state, ctx.where = state, (slice(layer, layer + layers), slots, slice(None), slice(rows))
        keys, values = (_split_heads(part[ctx.where], state.heads) for part in (state.keys, state.values))
        ctx.scale = math.sqrt(state.heads / width)
        query = _split_heads((query * ctx.scale).mT.contiguous()[:, None], state.heads)
        scores = (keys * query).sum(3)
        if hidden_slots is not None:
            scores.masked_fill_(hidden_slots[:, :, None, None], -torch.inf)
        weights = scores.softmax(1)  # "l s h r"
        dropout_mask = draw_dropout_factors(weights, state.probability) if state.probability else None
        ctx.save_for_backward(query, weights, dropout_mask)
        mixed = (_apply_dropout(weights, dropout_mask)[:, :, :, None] * values).sum(1)
        return mixed.flatten(1, 2).mT.contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_mixed: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        query, weights, dropout_mask = ctx.saved_tensors
        state = ctx.state
        keys, values, grad_keys, grad_values = (
            _split_heads(part[ctx.where], state.heads) for part in (state.keys, state.values, *state.read_gradients())
        )
        grad_mixed = _split_heads(grad_mixed.mT.contiguous()[:, None], state.heads)
        grad_values.addcmul_(_apply_dropout(weights, dropout_mask)[:, :, :, None], grad_mixed)
        grad_weights = _apply_dropout((values * grad_mixed).sum(3), dropout_mask).mul_(weights)
        grad_scores = grad_weights.addcmul_(weights, grad_weights.sum(1, keepdim=True), value=-1)[:, :, :, None]
        grad_keys.addcmul_(grad_scores, query)
        grad_query = (grad_scores * keys).sum(1).flatten(1, 2).mT * ctx.scale
        return grad_query, torch.zeros_like(grad_mixed[0, 0, 0, 0, 0]), None, None, None, None


def _split_heads(x: Float[Tensor, "l s d r"], heads: int) -> Float[Tensor, "l s h e r"]:
    return x.unflatten(2, (heads, -1))


def _apply_dropout(weights: Tensor, dropout_mask: Tensor | None) -> Tensor:
    return weights if dropout_mask is None else weights * dropout_mask


def apply_rotation(
    straight_and_rotated: Float[Tensor, "l r dd"], cos_sin: tuple[Tensor, Tensor]
) -> Float[Tensor, "l r d"]:
    """Rotate queries or keys: x cos + x⊥ sin. The input is x and x⊥ (x rotated by 90°), concatenated."""
    straight, rotated = straight_and_rotated.chunk(2, -1)
    return torch.addcmul(straight * cos_sin[0], rotated, cos_sin[1])


def _add_rotated_copy(linear: nn.Linear, heads: int) -> list[tuple[Tensor, Tensor]]:
    """Return weight and bias of a linear layer, and of a layer with the same output rotated by 90°. Coordinates i and i
    + half of a head form a pair."""

    def rotate_rows(part: Tensor) -> Tensor:
        first, second = part.view(heads, 2, -1, *part.shape[1:]).unbind(1)
        return torch.stack([-second, first], 1).view_as(part)

    return [get_weight_and_bias(linear), (rotate_rows(linear.weight), rotate_rows(linear.bias))]


def stack_linear_layers(layers: list[Layer], heads: int) -> dict[str, tuple[Tensor, Tensor]]:
    """Return weights "l i o" and biases "l 1 o" of all linear layers; layers with the same input are concatenated."""
    maps = {
        "query": [_add_rotated_copy(layer.query, heads) for layer in layers],
        "key_value": [[*_add_rotated_copy(layer.key, heads), get_weight_and_bias(layer.value)] for layer in layers],
        "mix": [[get_weight_and_bias(layer.mix)] for layer in layers],
        "out_short": [[get_weight_and_bias(layer.cell.out), get_weight_and_bias(layer.cell.short)] for layer in layers],
    }
    return {name: stack_joined(maps_by_layer) for name, maps_by_layer in maps.items()}


def stack_joined(maps_by_layer: list[list[tuple[Tensor, Tensor]]]) -> tuple[Tensor, Tensor]:
    """Concatenate the outputs of each layer's maps, given as pairs (weight, bias); return stacked weights "l i o" and
    biases "l 1 o"."""
    weights, biases = zip(*(map(torch.cat, zip(*layer_maps, strict=True)) for layer_maps in maps_by_layer), strict=True)
    return torch.stack(weights).mT, torch.stack(biases)[:, None]


def stack_norms(layers: list[Layer]) -> dict[str, tuple[Tensor, Tensor]]:
    """Return weights and biases "l 1 d" of the layer norms."""

    def stack_norm(name: str) -> tuple[Tensor, Tensor]:
        weights, biases = zip(*(get_weight_and_bias(getattr(layer, name)) for layer in layers), strict=True)
        return torch.stack(weights)[:, None], torch.stack(biases)[:, None]

    return {name: stack_norm(name) for name in NORM_NAMES}


def get_weight_and_bias(part: nn.Linear | nn.LayerNorm) -> tuple[Tensor, Tensor]:
    """Return a layer's weight and bias."""
    return part.weight, part.bias
