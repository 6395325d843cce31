"""Export models as graphs, by torch.export and ONNX, for any batch, row length and number of loops.

The loop over depth is an operation of the graph (``while_loop``; ONNX's Loop), and so is the loop over positions of an
LSTM or of ReTran.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch._higher_order_ops.while_loop import while_loop
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_unflatten

from lengthwise.base.types import Inputs, UsageError
from lengthwise.models import Model
from lengthwise.models.retran import Layer, LSTMModel, ReTranModel
from lengthwise.models.scan import ScanModel
from lengthwise.models.single_pass import SinglePass
from lengthwise.nn.lstm import Cell
from lengthwise.nn.position import Encoding

INPUT_NAMES = (*(one.name for one in fields(Inputs)), "loops")  # the graph's inputs, in order


class ExportedModule(nn.Module):
    """A module that maps the fields of ``Inputs`` ("b t") and ``loops`` ("b", at least 1) to logits "b t v" after each
    row's own number of loops. An LSTM or ReTran always runs one loop."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = copy.deepcopy(model).cpu().eval()
        for part in self.model.modules():
            if isinstance(part, Encoding):
                part.check = lambda inputs: None  # type: ignore[method-assign]  # the check reads values, unknown while tracing

    def forward(
        self,
        tokens: Int[Tensor, "b t"],
        position: Int[Tensor, "b t"],
        digit_position: Int[Tensor, "b t"],
        padding_mask: Bool[Tensor, "b t"],
        line: Int[Tensor, "b t"],
        loops: Int[Tensor, " b"],
    ) -> Float[Tensor, "b t v"]:
        model = self.model
        context = model.embed(Inputs(tokens, position, digit_position, padding_mask, line=line))
        if isinstance(model, (LSTMModel, ReTranModel)):
            advance = _advance_lstm if isinstance(model, LSTMModel) else _advance_retran
            return model.read(advance(model, context))  # type: ignore[arg-type]
        leaves, form = tree_flatten((context, model.start(context)))
        tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
        constant = sum(isinstance(leaf, Tensor) for leaf in tree_flatten(context)[0])

        def rebuild_tree(values: Any) -> Any:
            tensor_values = iter(values)
            return tree_unflatten([next(tensor_values) if isinstance(leaf, Tensor) else leaf for leaf in leaves], form)

        def has_more(k: Tensor, loops: Tensor, *values: Tensor) -> Tensor:
            return k < loops.max()

        def run_loop(k: Tensor, loops: Tensor, *values: Tensor) -> tuple[Tensor, ...]:
            context, state = rebuild_tree(values)
            scan = isinstance(model, ScanModel)
            changed = tree_flatten(_advance_scan(model, state, k) if scan else model.advance(state, context))[0]
            new_and_old = zip([leaf for leaf in changed if isinstance(leaf, Tensor)], values[constant:], strict=True)
            kept_states = []  # a finished row keeps its state
            for new, old in new_and_old:
                runs = (k < loops).view(-1, *[1] * (new.dim() - 1))
                # onnxruntime has no ``where`` for Booleans.
                bits = new.dtype == torch.bool
                kept_states.append((runs & new) | (~runs & old) if bits else torch.where(runs, new, old))
            return k + 1, loops.clone(), *(constant_value.clone() for constant_value in values[:constant]), *kept_states

        first = torch.zeros((), dtype=torch.long), loops.clone(), *(tensor.clone() for tensor in tensors)
        return model.read(rebuild_tree(while_loop(has_more, run_loop, first)[2:])[1])


def export_program(model: Model, inputs: Inputs, loops: Int[Tensor, " b"]) -> torch.export.ExportedProgram:
    """Export a model as a program of torch.export (see ``ExportedModule``), for any inputs. Tracing needs
    ``inputs`` of at least two rows and three positions. Raises UsageError for a model that torch cannot trace."""
    rows, positions = torch.export.Dim("rows"), torch.export.Dim("positions")
    shapes = (*({0: rows, 1: positions} for _ in INPUT_NAMES[:-1]), {0: rows})
    try:
        with torch.no_grad(), _use_explicit_attention():
            given = list_graph_inputs(inputs, loops)
            return torch.export.export(ExportedModule(model), given, dynamic_shapes=shapes, strict=False)
    except UsageError:
        raise
    except Exception as error:
        kind = type(model.module if isinstance(model, SinglePass) else model).__name__
        traced = "torch 2.13 traces all non-recurrent models, and the package's LSTM and ReTran"
        message = f"{kind}: torch {torch.__version__} cannot trace this model ({type(error).__name__}); {traced}"
        raise UsageError(message) from error


def list_graph_inputs(inputs: Inputs, loops: Int[Tensor, " b"]) -> tuple[Tensor, ...]:
    """Return the graph's input tensors for a batch, in the order of ``INPUT_NAMES``."""
    return *(getattr(inputs, field.name).contiguous() for field in fields(Inputs)), loops


@contextmanager
def _use_explicit_attention() -> Iterator[None]:
    """Compute attention as two products and a softmax in a ``with`` block, because torch's own operation has no ONNX
    form within a loop."""

    def compute_attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
    ) -> Tensor:
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:
            index = torch.arange(query.shape[2])
            attn_mask = index <= index[:, None]
        if attn_mask is not None:
            is_bias = attn_mask.dtype != torch.bool
            scores = scores + attn_mask if is_bias else scores.masked_fill(~attn_mask, -torch.inf)
        return scores.softmax(-1) @ value

    with patch.object(F, "scaled_dot_product_attention", compute_attention):
        yield


def _scan_positions(
    step: Callable[..., tuple[Tensor, ...]], x: Float[Tensor, "b t d"], width: int, *states: Tensor
) -> Float[Tensor, "b t width"]:
    """Return the outputs of a recurrence over positions: ``step(t, *states)`` returns the output "b width" at position
    t and the new states."""
    index = torch.arange(x.shape[1])

    def has_more(t: Tensor, outputs: Tensor, *states: Tensor) -> Tensor:
        return t < outputs.shape[1]

    def run_loop(t: Tensor, outputs: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        output, *after = step(t, *states)
        return t + 1, torch.where((index == t)[:, None], output[:, None], outputs), *after

    first = torch.zeros((), dtype=torch.long), x.new_zeros(x.shape[0], x.shape[1], width)
    return while_loop(has_more, run_loop, (*first, *(state.clone() for state in states)))[1]


def _select_position(x: Float[Tensor, "b t d"], t: Int[Tensor, ""]) -> Float[Tensor, "b d"]:
    return x.index_select(1, t.view(1)).squeeze(1)


def _advance_scan(model: ScanModel, state: Any, k: Int[Tensor, ""]) -> Any:
    """Advance the state of a ``ScanModel`` that has run ``k`` loops."""
    h, loops = state
    index, distance = torch.arange(h.shape[1]), 2 ** k.clamp(max=40)
    pair = torch.cat([h.index_select(1, (index - distance).clamp(min=0)), h], -1)
    combined = model.norm(model.narrow(model.widen(pair).relu()))
    return torch.where((index >= distance)[:, None], combined, h), loops


def _advance_lstm(model: LSTMModel, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
    """Compute one loop of an LSTM, as ``LSTMModel.advance`` does."""

    def step(cell: Cell, x: Tensor, t: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        output, states = cell(_select_position(x, t)[:, None], states)
        return output[:, 0], *states

    for cell in model.cells:
        x = _scan_positions(partial(step, cell, x), x, x.shape[2], *cell.start(x.shape[0]))
    return x


def _advance_retran(model: ReTranModel, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
    """Compute one loop of ReTran, as ``ReTranModel.advance`` does."""
    angles = torch.arange(1, x.shape[1] + 1)[:, None] * model.rates
    turn = angles.cos().repeat(1, 2), torch.cat([-angles.sin(), angles.sin()], 1)
    for layer in model.layers:
        x = _advance_retran_layer(layer, x, *turn)
    return x


def _advance_retran_layer(
    layer: Layer, x: Float[Tensor, "b t d"], cos: Float[Tensor, "t e"], signed_sin: Float[Tensor, "t e"]
) -> Float[Tensor, "b t d"]:
    """Compute one layer of ReTran, with keys and values of all positions in tensors of fixed size."""
    rows, width = x.shape[0], x.shape[2]
    by_head = (layer.heads, -1)
    first = layer.first + x.new_zeros(rows, 1)
    index = torch.arange(x.shape[1] + 1)
    is_first_slot = (index == 0)[:, None]  # slot 0 holds the learned vector; later slots are filled one by one
    keys, values = (is_first_slot * part(first).unflatten(-1, by_head)[:, :, None] for part in (layer.key, layer.value))
    queries = layer.query(x)

    def rotate(x: Tensor, t: Tensor) -> Tensor:
        swapped = x.roll(x.shape[-1] // 2, -1)
        return x * cos.index_select(0, t.view(1)) + swapped * signed_sin.index_select(0, t.view(1))

    def step(t: Tensor, short: Tensor, long: Tensor, keys: Tensor, values: Tensor) -> tuple[Tensor, ...]:
        query = rotate(_select_position(queries, t).unflatten(-1, by_head), t) / math.sqrt(keys.shape[-1])
        scores = (query[:, :, None] @ keys.mT).masked_fill(index > t, -torch.inf)
        mixed = (scores.softmax(-1) @ values).flatten(1)
        h = layer.norm_attention(_select_position(x, t) + layer.mix(mixed))
        output, (short, long) = layer.cell(h[:, None], (short, long))
        y = layer.norm_cell(h + output[:, 0])
        is_written = (index == t + 1)[:, None]
        keys = torch.where(is_written, rotate(layer.key(y).unflatten(-1, by_head), t)[:, :, None], keys)
        values = torch.where(is_written, layer.value(y).unflatten(-1, by_head)[:, :, None], values)
        return y, short, long, keys, values

    return _scan_positions(step, x, width, *layer.cell.start(rows), keys, values)
