"""All loops of a batch as one autograd function, for pre-norm blocks with small heads, an ungated MLP and no dropout.

In a small model autograd takes about as long as the arithmetic: it records every operation, pads the gradients of
finished rows with zeros, and computes the gradients of shared weights separately in each loop. Here both passes are
written by hand: a slice removes finished rows, and gradients are accumulated in place. In a causal model, positions
with equal tokens and prefixes have equal states, which are computed once. Results equal those of the modules up to
rounding. See bench/step.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, islice
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lengthwise.nn.block import Block
from lengthwise.runners.cpu import elementwise, small_heads
from lengthwise.runners.cpu.packing import select_unique
from lengthwise.runners.cpu.pattern import get_attention, get_dropout_probability

MAX_DISTINCT_FRACTION = 0.9  # if more positions are distinct, merging equal ones costs more than it saves


class LoopPlan(NamedTuple):
    """The plan of one loop. Distinct positions are ordered row by row, rows with the most loops first."""

    positions: int  # number of distinct positions in this loop
    views: list[AttentionView]  # attention among these positions, one view per group of rows
    needed_positions: Int[Tensor, " m"] | None  # positions whose state a later loop or the loss reads; None: all
    staying_count: int  # number of needed positions, the first ones, that take part in the next loop
    leaving_index: Int[Tensor, " l"]  # indices of the needed positions that the loss reads after this loop


class AttentionView(NamedTuple):
    """Attention among the distinct positions of one group of rows, computed in padded rows."""

    distinct_index: Int[Tensor, " p"]  # for each padded position, the distinct position it holds; 0 for padding
    first_padded_index: Int[Tensor, " n"]  # for each distinct position, the first padded position that holds it
    repetitions: tuple[Int[Tensor, " m"], Int[Tensor, " m"]] | None  # further padded positions, and what they hold
    real_mask: Float[Tensor, "rows width"]  # 1 at the padded positions ``first_padded_index``, else 0
    bias: Float[Tensor, "#r #k #k"]  # attention bias: all rows of the first head, then of the next


def find_distinct_states(
    x: Float[Tensor, "n d"], tokens: Int[Tensor, "b t"], ends: Sequence[int], plans: list[small_heads.AttentionPlan]
) -> Int[Tensor, " n"] | None:
    """Return, for each position of a causal model, the number of its distinct state (see ``index_unique_prefixes``).

    Return None if positions with equal tokens and prefixes may have different states, or too few positions are equal to
    save time.
    """
    if any(len(part.bias) > 1 for part in plans):
        return None  # the bias may differ between rows
    state_numbers = index_unique_prefixes(tokens, ends, [len(part.ragged.ends) for part in plans])
    first = mark_first_occurrences(state_numbers).nonzero()[:, 0]
    if len(first) > MAX_DISTINCT_FRACTION * len(state_numbers):
        return None
    # Positional vectors make inputs differ although tokens and prefixes are equal.
    return state_numbers if torch.equal(x.detach()[first[state_numbers]], x.detach()) else None


def mark_first_occurrences(state_numbers: Int[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Return a mask that is True at the first occurrence of each number."""
    return state_numbers.cummax(0).values.diff(prepend=state_numbers.new_tensor([-1])) > 0


def index_unique_prefixes(
    tokens: Int[Tensor, "b t"], ends: Sequence[int], group_sizes: Sequence[int]
) -> Int[Tensor, " n"]:
    """Number the positions of packed rows such that positions with equal tokens and equal prefixes share a number.

    A causal model without positional vectors has equal states at these positions. Numbers count up from 0 in order of
    first occurrence. Rows in different groups, of ``group_sizes`` rows each, never share numbers.
    """
    numbers, count, start = [], 0, 0
    starts = set(accumulate(group_sizes))
    by_prefix: dict[tuple[int, int], int] = {}
    for number, (row, end) in enumerate(zip(tokens.tolist(), ends, strict=True)):
        if number in starts:
            by_prefix = {}
        number_of_prefix = -1
        for token in row[: end - start]:
            number_of_prefix = by_prefix.setdefault((number_of_prefix, token), count)
            count += number_of_prefix == count
            numbers.append(number_of_prefix)
        start = end
    return torch.tensor(numbers)


def plan_loops(
    attention_plans: list[list[small_heads.AttentionPlan]],
    ends: Sequence[int],
    running_counts: list[int],
    last_needed: Int[Tensor, " n"],
    state_numbers: Int[Tensor, " n"] | None,
) -> list[LoopPlan]:
    """Plan all loops of packed rows that end at ``ends``. The first ``running_counts[k]`` rows take part in loop k + 1.

    ``attention_plans[k]`` describes attention in loop k + 1. ``last_needed`` is the last loop after which each
    position's state is read (``transformer._find_last_needed_loop``). Positions with equal ``state_numbers`` are
    computed once.
    """
    state_numbers = torch.arange(len(last_needed)) if state_numbers is None else state_numbers
    new = mark_first_occurrences(state_numbers)
    counts = [0, *new.cumsum(0).tolist()]  # number of distinct positions before each position
    # The last loop in which each distinct state is needed, at any of its positions.
    last = last_needed.new_zeros(counts[-1]).scatter_reduce_(0, state_numbers, last_needed, "amax")
    planned = []
    for k, (rows, group_plans) in enumerate(zip(running_counts, attention_plans, strict=True), 1):
        stay = ends[running_counts[k] - 1] if k < len(running_counts) else 0
        positions = counts[ends[rows - 1]]
        needed = last[:positions] >= k
        leaving = state_numbers[stay : ends[rows - 1]][last_needed[stay : ends[rows - 1]] == k]
        needed_index = None
        if not bool(needed.all()):
            needed_index, leaving = needed.nonzero()[:, 0], (needed.cumsum(0) - 1)[leaving]
        # A view per group of rows.
        views, start = [], 0
        for part in group_plans:
            shape, padded_at = (len(part.ragged.ends), part.ragged.width), part.ragged.padded_index
            group_slice, start = slice(start, start + len(padded_at)), start + len(padded_at)
            is_first, number = new[group_slice], state_numbers[group_slice] - state_numbers[group_slice.start]
            distinct_index = number.new_zeros(math.prod(shape)).index_copy_(0, padded_at, number)
            repeated = None if bool(is_first.all()) else (padded_at[~is_first], number[~is_first])
            real = part.bias.new_zeros(math.prod(shape)).index_fill_(0, padded_at[is_first], 1.0).view(shape)
            bias = part.bias
            if len(bias) > 1:
                bias = bias.unflatten(0, (shape[0], part.heads)).transpose(0, 1).flatten(0, 1)
            views.append(AttentionView(distinct_index, padded_at[is_first], repeated, real, bias))
        planned.append(LoopPlan(positions, views, needed_index, counts[stay], leaving))
    return planned


def can_fuse(blocks: Sequence[Block], norm: nn.LayerNorm | None) -> bool:
    """Return whether these blocks can be fused: they differ only in weights, and all norms have the same ε."""
    kinds = {(type(block.mlp.act), get_attention(block).heads) for block in blocks}
    norms = [*(part for block in blocks for part in (block.norm_mixer, block.norm_mlp)), *([norm] if norm else [])]
    for block in blocks:
        drops = (block.drop.training and block.drop.p) or get_dropout_probability(get_attention(block))
        if block.post or block.mlp.gated or drops:
            return False
    return len(kinds) == 1 and len({part.eps for part in norms}) == 1


def run_loops(
    x: Float[Tensor, "n d"],
    state_numbers: Int[Tensor, " n"] | None,
    plans: list[LoopPlan],
    blocks: Sequence[Block],
    norm: nn.LayerNorm | None,
    *,
    inject_again: bool,
) -> Float[Tensor, "m d"]:
    """Return the states that the loss reads, loop by loop. A loop runs all blocks and ``norm``. The first loop's input
    is x; with ``inject_again``, x is added to the state before each later loop."""
    x = x if state_numbers is None else select_unique(x, mark_first_occurrences(state_numbers).nonzero()[:, 0])
    block, heads = blocks[0], get_attention(blocks[0]).heads
    settings = plans, heads, block.norm_mixer.eps, isinstance(block.mlp.act, nn.ReLU), inject_again

    def reorder_heads(x: Float[Tensor, "c ..."], parts: int) -> Float[Tensor, "c ..."]:
        """Reorder the first axis from (part, head, coordinate) to (part, coordinate, head), so that a head's positions
        can be the last axis without a copy."""
        return x.unflatten(0, (parts, heads, -1)).transpose(1, 2).flatten(0, 2)

    parameters = []
    for block in blocks:
        attention, mlp = get_attention(block), block.mlp
        project = attention.project.weight, attention.project.bias
        project = (None if part is None else reorder_heads(part, 3) for part in project)
        out = reorder_heads(attention.out.weight.T, 1).T, attention.out.bias
        parameters += [block.norm_mixer.weight, block.norm_mixer.bias, *project, *out]
        for part in (block.norm_mlp, mlp.widen, mlp.narrow):
            parameters += [part.weight, part.bias]
    last = (None, None) if norm is None else (norm.weight, norm.bias)
    return _FusedLoops.apply(x, settings, *parameters, *last)


# The loops' plans, the number of heads, the norms' ε, whether the activation is ReLU, and ``inject_again``.
_Settings = tuple[list[LoopPlan], int, float, bool, bool]


class _LayerParameters(NamedTuple):
    """The parameters of a block: for each part its weight and bias, or two pairs (parameter, gradient). A linear
    layer's bias may be None."""

    norm_attention: Any
    project: Any
    out: Any
    norm_mlp: Any
    widen: Any
    narrow: Any


def _split_parameters(parameters: Sequence[Any]) -> tuple[list[_LayerParameters], tuple[Any, Any]]:
    """Return the parameters of each layer, and those of the final norm."""
    *pairs, norm = zip(parameters[::2], parameters[1::2], strict=True)
    size = len(_LayerParameters._fields)
    return [_LayerParameters(*pairs[start : start + size]) for start in range(0, len(pairs), size)], norm


class _FusedLoops(torch.autograd.Function):
    """All loops as one autograd function, whose backward pass is written by hand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, settings: _Settings, *parameters: Tensor | None) -> Tensor:
        layers, norm = _split_parameters(parameters)
        (loops, heads, eps, is_relu, inject_again), width = settings, x.shape[1:]
        state, leaving, saved_tensors = x, [], []
        for number, loop in enumerate(loops):
            if number:
                state = state[: loop.positions]
                state = state + x[: loop.positions] if inject_again else state
            for layer in layers:
                attention_input, *normed = torch.native_layer_norm(state, width, *layer.norm_attention, eps=eps)
                qkv = layer.project[0] @ attention_input.T
                if layer.project[1] is not None:
                    qkv.add_(layer.project[1][:, None])
                attention_output, attended = _attend(qkv, loop.views, heads)
                residual, saved_first = state, [state, *normed, attention_input]
                # The last block computes only the states that a later loop or the loss reads.
                if layer is layers[-1] and loop.needed_positions is not None:
                    attention_output = attention_output.index_select(1, loop.needed_positions)
                    residual = residual.index_select(0, loop.needed_positions)
                middle = F.linear(attention_output.T, *layer.out).add_(residual)
                mlp_input, *normed = torch.native_layer_norm(middle, width, *layer.norm_mlp, eps=eps)
                wide = F.linear(mlp_input, *layer.widen)
                active, gate = (wide.relu(), None) if is_relu else elementwise.gelu_forward(wide)
                state = F.linear(active, *layer.narrow).add_(middle)
                saved_last = [mlp_input, None if is_relu else wide, gate, active, *attended]
                saved_tensors.append([*saved_first, attention_output, middle, *normed, *saved_last])
            if norm[0] is not None:
                unnormalized = state
                state, *normed = torch.native_layer_norm(unnormalized, width, *norm, eps=eps)
                saved_tensors.append([unnormalized, *normed])
            leaving.append(state.index_select(0, loop.leaving_index))
        ctx.settings, ctx.sizes = settings, [len(saved) for saved in saved_tensors]
        ctx.save_for_backward(*parameters, *(tensor for saved in saved_tensors for tensor in saved))
        return torch.cat(leaving)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_leaving: Tensor) -> tuple[Tensor | None, ...]:
        loops, heads, _, is_relu, inject_again = ctx.settings
        tensors = ctx.saved_tensors  # under checkpointing they can be read once
        saved = iter(tensors)
        parameters = list(islice(saved, len(tensors) - sum(ctx.sizes)))
        saved_by_step = [list(islice(saved, size)) for size in ctx.sizes]
        gradients = [None if parameter is None else torch.zeros_like(parameter) for parameter in parameters]
        layers, norm = _split_parameters(list(zip(parameters, gradients, strict=True)))
        grad_x, grad_state = grad_leaving.new_zeros(loops[0].positions, grad_leaving.shape[1]), grad_leaving[:0]
        grad_leaving_by_loop = grad_leaving.split([len(loop.leaving_index) for loop in loops])
        for number, loop in reversed(list(enumerate(loops))):
            count = loop.positions if loop.needed_positions is None else len(loop.needed_positions)
            grad_state = torch.cat([grad_state, grad_state.new_zeros(count - loop.staying_count, grad_state.shape[1])])
            grad_state.index_add_(0, loop.leaving_index, grad_leaving_by_loop[number])
            if norm[0][0] is not None:
                x, mean, scale = saved_by_step.pop()
                grad_state = _norm_backward(grad_state, x, mean, scale, norm)
            for layer in reversed(layers):
                x, mean, scale, attention_input, attention_output, *others = saved_by_step.pop()
                middle, mean_again, scale_again, mlp_input, wide, gate, active, *attended = others
                _add_linear_gradients(grad_state, active, layer.narrow)
                grad_wide = grad_state @ layer.narrow[0][0]
                if is_relu:
                    grad_wide = torch.ops.aten.threshold_backward(grad_wide, active, 0)
                else:
                    grad_wide = elementwise.gelu_backward(grad_wide, wide, gate)
                _add_linear_gradients(grad_wide, mlp_input, layer.widen)
                grad_mlp_input = grad_wide @ layer.widen[0][0]
                grad_middle = _norm_backward(grad_mlp_input, middle, mean_again, scale_again, layer.norm_mlp)
                grad_middle.add_(grad_state)
                _add_linear_gradients(grad_middle, attention_output.T, layer.out)
                grad_attention_output = layer.out[0][0].T @ grad_middle.T
                needed = loop.needed_positions if layer is layers[-1] else None
                if needed is not None:
                    zeros = grad_attention_output.new_zeros(len(grad_attention_output), len(x))
                    grad_attention_output = zeros.index_copy_(1, needed, grad_attention_output)
                grad_projected = _attend_backward(grad_attention_output, attended, loop.views, heads).T
                _add_linear_gradients(grad_projected, attention_input, layer.project)
                grad_attention_input = grad_projected @ layer.project[0][0]
                grad_state = _norm_backward(grad_attention_input, x, mean, scale, layer.norm_attention)
                grad_state = (
                    grad_state.add_(grad_middle) if needed is None else grad_state.index_add_(0, needed, grad_middle)
                )
            if inject_again or not number:  # x enters this loop
                grad_x[: loop.positions].add_(grad_state)
        return grad_x, None, *gradients


def _attend(
    qkv: Float[Tensor, "c n"], views: list[AttentionView], heads: int
) -> tuple[Float[Tensor, "d n"], list[Tensor]]:
    """Compute attention; return its output and the tensors for its backward pass. In shapes, r counts the heads of all
    rows, e the coordinates of a head."""
    parts, saved = [], []
    for part, view in zip(qkv.split([len(view.first_padded_index) for view in views], 1), views, strict=True):
        rows, width = view.real_mask.shape
        query, key, value = part.index_select(1, view.distinct_index).view(3, -1, heads * rows, width).transpose(1, 2)
        weights, inverse_sums = small_heads.compute_attention_weights(query, key, view.bias)
        inverse_sums.view(heads, rows, width).mul_(view.real_mask)
        output = torch.bmm(value, weights.mT).transpose(0, 1)
        # Writing to ``out`` keeps the order "e r t" in memory too.
        output = torch.mul(output, inverse_sums[:, 0], out=torch.empty(output.shape, dtype=output.dtype))
        parts.append(output.view(-1, rows * width).index_select(1, view.first_padded_index))
        saved += [query, key, value, weights, inverse_sums, output]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1), saved


def _attend_backward(
    gradient: Float[Tensor, "d n"], saved: list[Any], views: list[AttentionView], heads: int
) -> Float[Tensor, "c n"]:
    """Return the gradient of the projected queries, keys and values."""
    parts, tensors = [], iter(saved)
    for part, view in zip(gradient.split([len(view.first_padded_index) for view in views], 1), views, strict=True):
        query, key, value, weights, inverse_sums, output = islice(tensors, 6)
        grad_output = part.index_select(1, view.distinct_index).view(output.shape).mul_(inverse_sums[:, 0])
        mean = (grad_output * output).sum(0)[:, :, None]
        grad_output = grad_output.transpose(0, 1)
        grad_parts, _ = small_heads.compute_attention_gradients(
            grad_output, query, key, value, weights, weights, None, mean
        )
        grad_parts = grad_parts.transpose(1, 2).reshape(3 * len(gradient), -1)
        grad_part = grad_parts.index_select(1, view.first_padded_index)
        if view.repetitions is not None:
            padded_index, state_numbers = view.repetitions
            grad_part.index_add_(1, state_numbers, grad_parts.index_select(1, padded_index))
        parts.append(grad_part)
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _norm_backward(
    gradient: Float[Tensor, "n d"], x: Float[Tensor, "n d"], mean: Tensor, scale: Tensor, pairs: Any
) -> Float[Tensor, "n d"]:
    """Return the gradient of a layer norm's input; update its parameters' gradients, given as pairs (parameter,
    gradient)."""
    (weight, weight_gradient), (bias, bias_gradient) = pairs
    grad_x, grad_weight, grad_bias = torch.ops.aten.native_layer_norm_backward(
        gradient, x, x.shape[1:], mean, scale, weight, bias, [True, True, True]
    )
    weight_gradient.add_(grad_weight)
    bias_gradient.add_(grad_bias)
    return grad_x


def _add_linear_gradients(gradient: Float[Tensor, "n o"], x: Float[Tensor, "n i"], pairs: Any) -> None:
    """Add to the gradients of a linear layer's parameters, given as pairs (parameter, gradient)."""
    (_, weight), (_, bias) = pairs
    torch.addmm(weight, gradient.T, x, out=weight)  # torch's FLOP counter does not count ``addmm_``
    if bias is not None:
        bias.add_(gradient.sum(0))
