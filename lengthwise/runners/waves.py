"""Loops of the LSTM and of ReTran at fixed shapes, for recorded steps (``graphs``).

As in ``cpu.recurrent``, all layers are computed at once: in wave w, layer l computes position w − l. Here all waves
have the same shapes, so that one compiled function serves them. A layer whose position is before or after the
row keeps its state. A layer of ReTran attends to all slots of its memory, and masks those that are not written yet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F

from lengthwise.models import Model
from lengthwise.models.retran import LSTMModel, ReTranModel
from lengthwise.nn.lstm import Cell
from lengthwise.runners import cpu
from lengthwise.runners.cpu.cell import build_gate_matrix
from lengthwise.runners.cpu.recurrent import (
    apply_rotation,
    get_weight_and_bias,
    stack_joined,
    stack_linear_layers,
    stack_norms,
)

WaveFunction = Callable[..., Any]  # computes one wave of all layers
Compiler = Callable[[WaveFunction], WaveFunction]
# The states: the layers' outputs "l r d", and the cells' short "l r d" and long states "l r h". ReTran's memory: keys
# and values "l s r d"; for layer l, slot t + l + 1 holds position t, and slot l the learned first vector.
Tensors = tuple[Tensor, ...]
WeightAndBias = tuple[Tensor, Tensor]  # weights and biases: of linear layers "l i o" and "l 1 o", of norms "l 1 d" each


class _LSTM(cpu.recurrent.PackedLSTM):
    devices = "cpu", "cuda"


class _ReTran(cpu.recurrent.Wave):
    devices = "cpu", "cuda"


def can_advance(model: Model) -> bool:
    """Return whether ``advance`` supports this model."""
    return any(isinstance(model, kind.model_type) and kind.find_obstacle(model) is None for kind in (_LSTM, _ReTran))


def advance(
    model: LSTMModel | ReTranModel, x: Float[Tensor, "r t d"], compiler: Compiler = lambda function: function
) -> Float[Tensor, "r t d"]:
    """Compute one loop of the model, wave by wave; ``compiler`` may compile the function that computes a wave."""
    compute = _advance_lstm if isinstance(model, LSTMModel) else _advance_retran
    return torch.stack(compute(model, x, compiler), 1)  # type: ignore[arg-type]


def _advance_lstm(model: LSTMModel, x: Float[Tensor, "r t d"], compiler: Compiler) -> list[Tensor]:
    cells, (rows, positions, width) = [*model.cells], x.shape
    depth, compute_wave, columns, outputs = len(cells), compiler(_compute_cells), x.unbind(1), []
    gates = _stack_gates(cells)
    out_short = stack_joined([[get_weight_and_bias(cell.out), get_weight_and_bias(cell.short)] for cell in cells])
    states, active = _build_initial_states(cells, x), _find_active_layers(depth, positions, x)
    factors = _draw_dropout(x, model.drop.p if model.drop.training else 0.0, len(active), (depth - 1, rows, width))
    for wave, runs in enumerate(active):
        states = compute_wave(gates, out_short, states, columns[min(wave, positions - 1)], runs, factors[wave])
        outputs.append(states[0][-1])
    return outputs[depth - 1 :]


def _compute_cells(
    gates: WeightAndBias,
    out_short: WeightAndBias,
    states: Tensors,
    x: Float[Tensor, "r d"],
    active: Bool[Tensor, "l 1 1"],
    factors: Tensor | None,
) -> Tensors:
    """Return the states after a wave of the LSTM, whose first layer reads ``x``."""
    below = torch.cat([x[None], states[0][:-1] if factors is None else states[0][:-1] * factors])
    return _update_active(active, _step_cells(gates, out_short, below, states), states)


def _advance_retran(model: ReTranModel, x: Float[Tensor, "r t d"], compiler: Compiler) -> list[Tensor]:
    layers, (rows, positions, width) = [*model.layers], x.shape
    depth, heads, compute_wave = len(layers), layers[0].heads, compiler(_compute_layers)
    columns, outputs = x.unbind(1), []
    cells = [layer.cell for layer in layers]
    weights = {"gates": _stack_gates(cells)} | stack_linear_layers(layers, heads) | stack_norms(layers)
    states, active = _build_initial_states(cells, x), _find_active_layers(depth, positions, x)
    layer, slot = (torch.arange(count, device=x.device) for count in (depth, depth + positions))
    wave = torch.arange(len(active), device=x.device)[:, None]
    # Before the first wave, the memory has only the learned first vectors.
    is_first_slot = (slot == layer[:, None])[..., None, None]
    firsts = [(module.key(module.first), module.value(module.first)) for module in layers]
    memory = tuple(
        torch.where(is_first_slot, torch.stack(part)[:, None, None], 0.0).expand(-1, -1, rows, -1).contiguous()
        for part in zip(*firsts, strict=True)
    )
    # A layer always sees its first vector, also before its first position: a softmax over no keys is NaN.
    seen_slots = (slot >= layer[:, None]) & (slot <= wave.maximum(layer)[..., None])
    written = active[..., 0] & (slot == wave[..., None] + 1)
    angles = ((wave - layer + 1)[..., None, None] * model.rates.repeat(2 * heads)).to(x.dtype)
    parts = seen_slots[..., None, None], written[..., None, None], angles.cos(), angles.sin()
    contexts = [*zip(*(part.unbind() for part in parts), strict=True)]
    probability = layers[0].dropout if layers[0].training else 0.0
    attention_factors = _draw_dropout(x, probability, len(active), (depth, depth + positions, rows, heads))
    sum_factors = _draw_dropout(x, probability, len(active), (2, depth, rows, width))
    for number, runs in enumerate(active):
        column, factors = columns[min(number, positions - 1)], (attention_factors[number], sum_factors[number])
        states, memory = compute_wave(weights, states, memory, column, runs, contexts[number], factors, heads)
        outputs.append(states[0][-1])
    return outputs[depth - 1 :]


def _compute_layers(
    weights: dict[str, WeightAndBias],
    states: Tensors,
    memory: Tensors,
    x: Float[Tensor, "r d"],
    active: Bool[Tensor, "l 1 1"],
    context: Tensors,
    factors: tuple[Tensor | None, Tensor | None],
    heads: int,
) -> tuple[Tensors, Tensors]:
    """Return states and memory after a wave of ReTran, whose first layer reads ``x``. ``context`` holds masks "l s 1 1"
    of the slots that each layer reads and writes, and cosines and sines "l 1 d" of the rotation."""
    seen, written, cos, sin = context
    below, turn = torch.cat([x[None], states[0][:-1]]), (cos, sin)
    drop_seen, drop_sums = factors
    query = _split_heads(apply_rotation(_apply_linear(weights["query"], below), turn), heads)[:, None]
    query = query * math.sqrt(heads / x.shape[-1])
    attention = (_split_heads(memory[0], heads) * query).sum(-1).masked_fill(~seen, -torch.inf).softmax(1)
    if drop_seen is not None:
        attention = attention * drop_seen
    mixed = _apply_linear(weights["mix"], (attention[..., None] * _split_heads(memory[1], heads)).sum(1).flatten(-2))
    h = _apply_layer_norm(weights["norm_attention"], below + (mixed if drop_sums is None else mixed * drop_sums[0]))
    emitted, short, long = _step_cells(weights["gates"], weights["out_short"], h, states)
    y = _apply_layer_norm(weights["norm_cell"], h + (emitted if drop_sums is None else emitted * drop_sums[1]))
    straight, rotated, value = _apply_linear(weights["key_value"], y).chunk(3, -1)
    new = apply_rotation(torch.cat([straight, rotated], -1), turn), value
    stored = [torch.where(written, new_part[:, None], old) for new_part, old in zip(new, memory, strict=True)]
    return _update_active(active, (y, short, long), states), tuple(stored)


def _split_heads(x: Float[Tensor, "*l d"], heads: int) -> Float[Tensor, "*l heads e"]:
    return x.unflatten(-1, (heads, -1))


def _step_cells(gates: WeightAndBias, out_short: WeightAndBias, x: Float[Tensor, "l r d"], states: Tensors) -> Tensors:
    """Compute a step of all cells: outputs, short states and long states (``nn.lstm.Cell``)."""
    _, short, long = states
    i, f, o, g = _apply_linear(gates, torch.cat([x, short], -1)).chunk(4, -1)
    long = f.sigmoid() * long + i.sigmoid() * g.tanh()
    output, short = _apply_linear(out_short, o.sigmoid() * long).chunk(2, -1)
    return output, short, long


def _update_active(active: Bool[Tensor, "l 1 1"], new_states: Tensors, old_states: Tensors) -> Tensors:
    return tuple([torch.where(active, *pair) for pair in zip(new_states, old_states, strict=True)])


def _apply_linear(weights: WeightAndBias, x: Float[Tensor, "l r i"]) -> Float[Tensor, "l r o"]:
    return torch.baddbmm(weights[1], x, weights[0])


def _apply_layer_norm(weights: WeightAndBias, x: Float[Tensor, "l r d"]) -> Float[Tensor, "l r d"]:
    return torch.addcmul(weights[1], F.layer_norm(x, x.shape[-1:]), weights[0])


def _stack_gates(cells: Sequence[Cell]) -> WeightAndBias:
    stacked = torch.stack([build_gate_matrix(cell) for cell in cells]).mT  # the last input is 1, for the bias
    return stacked[:, :-1].contiguous(), stacked[:, -1:].contiguous()


def _build_initial_states(cells: Sequence[Cell], x: Float[Tensor, "r t d"]) -> Tensors:
    """Return the states before the first wave."""
    rows, _, width = x.shape
    short = torch.stack([cell.first_short.expand(rows, -1) for cell in cells])
    long = torch.stack([cell.first_long.expand(rows, -1) for cell in cells])
    # Gradients are required, as in later waves, so that one compiled function serves all waves.
    return x.new_zeros(len(cells), rows, width).requires_grad_(torch.is_grad_enabled()), short, long


def _find_active_layers(depth: int, positions: int, x: Tensor) -> Bool[Tensor, "w l 1 1"]:
    """Return, for each wave, a mask of the layers whose position is in the row."""
    wave, layer = (torch.arange(count, device=x.device) for count in (depth + positions - 1, depth))
    position = wave[:, None] - layer
    return ((position >= 0) & (position < positions))[..., None, None]


def _draw_dropout(x: Tensor, probability: float, waves: int, shape: tuple[int, ...]) -> Sequence[Tensor | None]:
    """Draw dropout's factors, 1 / (1 − p) or 0, for each wave; None without dropout."""
    return F.dropout(x.new_ones(waves, *shape), probability).unbind() if probability else [None] * waves
