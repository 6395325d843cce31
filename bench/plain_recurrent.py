"""Opponents: the three models of the recurrent system, written straightforwardly: token by token, layer by layer, keys
and values in lists. Rows are as wide as the longest; what stands behind a row's end is computed and not looked at.

Each takes a model of the package for its weights, and tokens "b t"; it gives the last layer's outputs "b t d".
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from lengthwise.models import Model


def retran(model: Model, tokens: Tensor) -> Tensor:
    rows, spec = len(tokens), model.spec
    heads, drop = spec.heads, spec.dropout if model.training else 0.0

    def by_head(x: Tensor) -> Tensor:
        return x.view(rows, heads, -1)

    keys = [[by_head(layer.key(layer.first).expand(rows, -1))] for layer in model.layers]
    values = [[by_head(layer.value(layer.first).expand(rows, -1))] for layer in model.layers]
    states = [_first(layer.cell, rows) for layer in model.layers]
    predicted = []
    for position in range(tokens.shape[1]):
        x = model.embedding(tokens[:, position])
        for number, layer in enumerate(model.layers):
            query = _turned(by_head(layer.query(x)), (position + 1) * model.rates)
            mixed = _attend(query, torch.stack(keys[number], 2), torch.stack(values[number], 2), drop)
            h = layer.norm_attention(x + F.dropout(layer.mix(mixed), drop))
            out, states[number] = _cell(layer.cell, h, states[number])
            x = layer.norm_cell(h + F.dropout(out, drop))
            keys[number].append(_turned(by_head(layer.key(x)), (position + 1) * model.rates))
            values[number].append(by_head(layer.value(x)))
        predicted.append(x)
    return torch.stack(predicted, 1)


def lstm(model: Model, tokens: Tensor) -> Tensor:
    drop = model.dropout if model.training else 0.0
    states = [_first(cell, len(tokens)) for cell in model.cells]
    predicted = []
    for position in range(tokens.shape[1]):
        x = model.embedding(tokens[:, position])
        for number, cell in enumerate(model.cells):
            if number:
                x = F.dropout(x, drop)
            x, states[number] = _cell(cell, x, states[number])
        predicted.append(x)
    return torch.stack(predicted, 1)


def gpt(model: Model, tokens: Tensor) -> Tensor:
    (rotary,) = model.encodings
    rows, blocks = len(tokens), list(model.blocks)
    drop = blocks[0].attention.dropout if model.training else 0.0
    keys: list[list[Tensor]] = [[] for _ in blocks]
    values: list[list[Tensor]] = [[] for _ in blocks]
    predicted = []
    for position in range(tokens.shape[1]):
        x = model.embedding(tokens[:, position])
        for number, block in enumerate(blocks):
            projected = block.attention.project(x).view(rows, 3, block.attention.heads, -1)
            query, key = (_turned(projected[:, i], position * rotary.rates) for i in range(2))
            keys[number].append(key)
            values[number].append(projected[:, 2])
            mixed = _attend(query, torch.stack(keys[number], 2), torch.stack(values[number], 2), drop)
            x = block.norm_attention(x + F.dropout(block.attention.out(mixed), drop))
            wide = F.gelu(block.mlp.widen(x), approximate="tanh")
            x = block.norm_mlp(x + F.dropout(block.mlp.narrow(wide), drop))
        predicted.append(x)
    return torch.stack(predicted, 1)


def _attend(query: Tensor, keys: Tensor, values: Tensor, drop: float) -> Tensor:
    """Query "b h e", keys and values "b h s e"."""
    scores = (query[:, :, None] @ keys.mT)[:, :, 0] / math.sqrt(query.shape[-1])
    weights = F.dropout(scores.softmax(-1), drop)
    return (weights[:, :, None] @ values)[:, :, 0].flatten(1)


def _turned(x: Tensor, angles: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def _first(cell: torch.nn.Module, rows: int) -> tuple[Tensor, Tensor]:
    return cell.first_short.expand(rows, -1), cell.first_long.expand(rows, -1)


def _cell(cell: torch.nn.Module, x: Tensor, states: tuple[Tensor, Tensor]) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    short, long = states
    i, f, o, g = (cell.input(x) + cell.recurrent(short)).chunk(4, -1)
    long = f.sigmoid() * long + i.sigmoid() * g.tanh()
    emitted = o.sigmoid() * long
    return cell.out(emitted), (cell.short(emitted), long)
