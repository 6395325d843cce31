"""All loops of a batch in one step of autograd: for pre-norm blocks of small heads, on a CPU.

In a small model autograd takes about as long as arithmetic: it records every step, fills up with zeros the gradients of
rows that have left, makes those of the shared weights and of the input anew in every loop, and adds them up. Here loops
are run in plain tensors, forward and then backward by hand: rows that leave are a slice, and gradients are added up
where they stand. Places that a causal model cannot tell apart are one place. See bench/step.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lengthwise.fast import gelu, small
from lengthwise.fast.pattern import attention_of, dropped
from lengthwise.fast.ragged import picked
from lengthwise.nn.block import Block

DENSE = 0.9  # of places: where more are distinct, leaving out the others saves less than it costs


class Loop(NamedTuple):
    """Who takes part in a loop: places row after row, those of rows that leave last first."""

    positions: int
    views: list[View]  # how places see each other: those of some rows, then those of the next
    wanted: Int[Tensor, " m"] | None  # those whose state is of use afterwards; None: all
    going: int  # how many of these take part in the next loop: the first ones
    done: Int[Tensor, " l"]  # which of them are done


def distinct(
    x: Float[Tensor, "n d"], tokens: Int[Tensor, "b t"], ends: Sequence[int], looks: list[small.Look]
) -> Int[Tensor, " n"] | None:
    """Of a causal model's places: which of them are to be computed for each; see ``alike``. None: all."""
    if any(len(look.bias) > 1 for look in looks):
        return None  # rows may differ
    which = alike(tokens, ends, [look.square.rows for look in looks])
    first = _first(which)
    if len(first) > DENSE * len(which) or not torch.equal(x.detach()[first[which]], x.detach()):  # positions may differ
        return None
    return which


def _first(which: Int[Tensor, " n"]) -> Int[Tensor, " m"]:
    """Where each number comes for the first time."""
    return newcomers(which).nonzero()[:, 0]


def newcomers(which: Int[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Where a number comes that has not come before."""
    return which.cummax(0).values.diff(prepend=which.new_tensor([-1])) > 0


def alike(tokens: Int[Tensor, "b t"], ends: Sequence[int], parts: Sequence[int]) -> Int[Tensor, " n"]:
    """Of rows' places, one row after the other: which of them hold the same as one before, and so do all before them in
    their rows. A causal model makes the same of these. Equal ones get equal numbers, counted up from 0 as they come; of
    rows in several parts, these many each, every part has its own."""
    found, count, start = [], 0, 0
    starts = set(accumulate(parts))
    known: dict[tuple[int, int], int] = {}
    for number, (row, end) in enumerate(zip(tokens.tolist(), ends, strict=True)):
        if number in starts:
            known = {}
        own = -1
        for token in row[: end - start]:
            own = known.setdefault((own, token), count)
            count += own == count
            found.append(own)
        start = end
    return torch.tensor(found)


def plan(
    looks: list[list[small.Look]],
    ends: Sequence[int],
    running: list[int],
    until: Int[Tensor, " n"],
    which: Int[Tensor, " n"] | None,
) -> list[Loop]:
    """The loops of rows that end at ``ends``, of which the first ``running[k]`` take part in loop k; for ``until`` see
    ``Model.whole``. Places with equal numbers, ``which``, are one."""
    which = torch.arange(len(until)) if which is None else which
    new = newcomers(which)
    counts = [0, *new.cumsum(0).tolist()]  # how many differ up to each place
    last = until.new_zeros(counts[-1]).scatter_reduce_(0, which, until, "amax")
    found = []
    for k, (rows, seen) in enumerate(zip(running, looks, strict=True), 1):
        stay = ends[running[k] - 1] if k < len(running) else 0
        positions = counts[ends[rows - 1]]
        wanted = last[:positions] >= k
        leaving = which[stay : ends[rows - 1]][until[stay : ends[rows - 1]] == k]
        at = None
        if not bool(wanted.all()):
            at, leaving = wanted.nonzero()[:, 0], (wanted.cumsum(0) - 1)[leaving]
        found.append(Loop(positions, _views(seen, which, new), at, counts[stay], leaving))
    return found


class View(NamedTuple):
    """How the heads of some rows' places see each other."""

    spread: Int[Tensor, " p"]  # which place stands at each of the padded rows: any where there is none
    at: Int[Tensor, " n"]  # where each stands, for the first time if it does so more than once
    again: tuple[Int[Tensor, " m"], Int[Tensor, " m"]] | None  # where some stand again, and which
    real: Float[Tensor, "rows width"]  # 1 where one stands for the first time, else 0
    bias: Float[Tensor, "#r #k #k"]  # of scores, all rows of the first head, then those of the next


def _views(looks: list[small.Look], which: Int[Tensor, " n"], new: Bool[Tensor, " n"]) -> list[View]:
    """Of places of which equal ones are one."""
    found, start = [], 0
    for look in looks:
        square = look.square
        padded = square.rows * square.width
        at = torch.arange(padded) if square.at is None else square.at
        own = slice(start, start + len(at))
        here, number = new[own], which[own] - which[start]
        spread = number.new_zeros(padded).index_copy_(0, at, number)
        again = None if bool(here.all()) else (at[~here], number[~here])
        at = at[here]
        real = look.bias.new_zeros(padded).index_fill_(0, at, 1.0).view(square.rows, square.width)
        bias = look.bias
        if len(bias) > 1:
            bias = bias.unflatten(0, (square.rows, look.heads)).transpose(0, 1).flatten(0, 1)
        found.append(View(spread, at, again, real, bias))
        start = own.stop
    return found


def possible(block: Block) -> bool:
    """Can such blocks be run here?"""
    drops = (block.drop.training and block.drop.p) or (dropped(attention_of(block)))
    return not (block.post or block.mlp.gated or drops)


def run(
    x: Float[Tensor, "n d"],
    which: Int[Tensor, " n"] | None,
    loops: list[Loop],
    blocks: Sequence[Block],
    norm: nn.LayerNorm | None,
    *,
    again: bool,
) -> Float[Tensor, "m d"]:
    """The states of all places as they are done, loop after loop; a loop is all blocks, and the norm. The first starts
    from x; with ``again``, x is added before every further one. Blocks are alike but for their weights."""
    x = x if which is None else picked(x, _first(which))
    block = blocks[0]
    relu, eps = isinstance(block.mlp.act, nn.ReLU), block.norm_mixer.eps
    course = _Course(loops, len(blocks), attention_of(block).heads, eps, relu, again)
    parameters = [parameter for block in blocks for parameter in _Layer.of(block)]
    last = (None, None) if norm is None else (norm.weight, norm.bias)
    return _Run.apply(x, course, *parameters, *last)


@dataclass(frozen=True)
class _Course:
    loops: list[Loop]
    layers: int
    heads: int
    eps: float
    relu: bool
    again: bool

    def split(self, tensors: Sequence[Any]) -> tuple[list[_Layer], Sequence[Any]]:
        """Each layer's parameters, or their gradients, and those of the norm after them."""
        size, end = len(_Layer._fields), len(tensors) - 2
        return [_Layer(*tensors[start : start + size]) for start in range(0, end, size)], tensors[end:]


class _Layer(NamedTuple):
    """The parameters of a block, or their gradients; None where there are no biases."""

    norm_attention: Tensor
    norm_attention_bias: Tensor
    project: Tensor
    project_bias: Tensor | None
    out: Tensor
    out_bias: Tensor | None
    norm_mlp: Tensor
    norm_mlp_bias: Tensor
    widen: Tensor
    widen_bias: Tensor | None
    narrow: Tensor
    narrow_bias: Tensor | None

    @staticmethod
    def of(block: Block) -> _Layer:
        """Heads' first numbers come first, then all second ones…: so a head's places need no moving to stand last."""
        attention, mlp = attention_of(block), block.mlp
        parts = block.norm_mixer, attention.project, attention.out, block.norm_mlp, mlp.widen, mlp.narrow
        layer = _Layer(*(parameter for part in parts for parameter in (part.weight, part.bias)))
        bias = None if layer.project_bias is None else _turned(layer.project_bias, (3, attention.heads))
        out = _turned(layer.out.T, (1, attention.heads)).T
        return layer._replace(project=_turned(layer.project, (3, attention.heads)), project_bias=bias, out=out)


def _turned(x: Float[Tensor, "c ..."], parts: tuple[int, int]) -> Float[Tensor, "c ..."]:
    """Rows in parts, of heads, of numbers: in parts, of numbers, of heads."""
    return x.unflatten(0, (*parts, -1)).transpose(1, 2).flatten(0, 2)


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, course: _Course, *parameters: Tensor | None) -> Tensor:
        layers, norm = course.split(parameters)
        state, done, kept = x, [], []
        for number, loop in enumerate(course.loops):
            if number:
                state = state[: loop.positions]
                state = state + x[: loop.positions] if course.again else state
            for layer in layers:
                state, saved = _layer(state, layer, loop, course, last=layer is layers[-1])
                kept.append(saved)
            if norm[0] is not None:
                before = state
                state, *normed = _norm(before, norm[0], norm[1], course.eps)
                kept.append([before, *normed])
            done.append(state.index_select(0, loop.done))
        ctx.course, ctx.sizes = course, [len(saved) for saved in kept]
        ctx.save_for_backward(*parameters, *(tensor for saved in kept for tensor in saved))
        return torch.cat(done)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_done: Tensor) -> tuple[Tensor | None, ...]:
        course, saved = ctx.course, iter(ctx.saved_tensors)
        parameters = list(islice(saved, len(ctx.saved_tensors) - sum(ctx.sizes)))
        kept = [list(islice(saved, size)) for size in ctx.sizes]
        to = [None if parameter is None else torch.zeros_like(parameter) for parameter in parameters]
        layers, norm = course.split(list(zip(parameters, to, strict=True)))
        to_x, to_state = to_done.new_zeros(course.loops[0].positions, to_done.shape[1]), to_done[:0]
        lefts = to_done.split([len(loop.done) for loop in course.loops])
        for number, loop in reversed(list(enumerate(course.loops))):
            count = loop.positions if loop.wanted is None else len(loop.wanted)
            to_state = torch.cat([to_state, to_state.new_zeros(count - loop.going, to_state.shape[1])])
            to_state.index_add_(0, loop.done, lefts[number])
            if norm[0][0] is not None:
                to_state = _norm_back(to_state, *kept.pop(), *norm)
            for layer in reversed(layers):
                to_state = _layer_back(to_state, kept.pop(), layer, loop, course, last=layer is layers[-1])
            if course.again or not number:
                to_x[: loop.positions].add_(to_state)
        return to_x, None, *to


def _layer(
    x: Float[Tensor, "n d"], layer: _Layer, loop: Loop, course: _Course, *, last: bool
) -> tuple[Float[Tensor, "m d"], list[Any]]:
    """One block, and what has to be saved. After its attention, the last block of a loop is for places wanted only."""
    wanted = loop.wanted if last else None
    seen, *normed = _norm(x, layer.norm_attention, layer.norm_attention_bias, course.eps)
    projected = layer.project @ seen.T
    if layer.project_bias is not None:
        projected.add_(layer.project_bias[:, None])
    found, looked = _look(projected, loop.views, course.heads)
    found, rest = (found, x) if wanted is None else (found.index_select(1, wanted), x.index_select(0, wanted))
    middle = F.linear(found.T, layer.out, layer.out_bias).add_(rest)
    read, *normed_again = _norm(middle, layer.norm_mlp, layer.norm_mlp_bias, course.eps)
    wide = F.linear(read, layer.widen, layer.widen_bias)
    active, gate = (wide.relu(), None) if course.relu else gelu.activate(wide)
    state = F.linear(active, layer.narrow, layer.narrow_bias).add_(middle)
    wide = None if course.relu else wide
    return state, [x, *normed, seen, found, middle, *normed_again, read, wide, gate, active, *looked]


def _layer_back(
    gradient: Float[Tensor, "m d"],
    saved: list[Any],
    layer: Any,
    loop: Loop,
    course: _Course,
    *,
    last: bool,
) -> Float[Tensor, "n d"]:
    """The gradient of what a block was given. Of ``layer``, each field is a parameter and its gradient so far."""
    x, mean, scale, seen, found, middle, mean_again, scale_again, read, wide, gate, active, *looked = saved
    wanted = loop.wanted if last else None
    _add_up(gradient, active, layer.narrow, layer.narrow_bias)
    to_wide = gradient @ layer.narrow[0]
    if course.relu:
        to_wide = torch.ops.aten.threshold_backward(to_wide, active, 0)
    else:
        to_wide = gelu.activate_back(to_wide, wide, gate)
    _add_up(to_wide, read, layer.widen, layer.widen_bias)
    to_read = to_wide @ layer.widen[0]
    to_middle = _norm_back(to_read, middle, mean_again, scale_again, layer.norm_mlp, layer.norm_mlp_bias).add_(gradient)
    _add_up(to_middle, found.T, layer.out, layer.out_bias)
    to_found = layer.out[0].T @ to_middle.T
    if wanted is not None:
        to_found = to_found.new_zeros(len(to_found), len(x)).index_copy_(1, wanted, to_found)
    to_projected = _look_back(to_found, looked, loop.views, course.heads).T
    _add_up(to_projected, seen, layer.project, layer.project_bias)
    to_seen = to_projected @ layer.project[0]
    to_x = _norm_back(to_seen, x, mean, scale, layer.norm_attention, layer.norm_attention_bias)
    return to_x.add_(to_middle) if wanted is None else to_x.index_add_(0, wanted, to_middle)


def _look(projected: Float[Tensor, "c n"], views: list[View], heads: int) -> tuple[Float[Tensor, "d n"], list[Tensor]]:
    """What places find, and what has to be saved. Within, r are the heads of all rows, e numbers of each."""
    parts, saved = [], []
    for part, view in zip(projected.split([len(view.at) for view in views], 1), views, strict=True):
        rows, width = view.real.shape
        query, key, value = part.index_select(1, view.spread).view(3, -1, heads * rows, width).transpose(1, 2)
        weights, over = small.weigh(query, key, view.bias)
        over.view(heads, rows, width).mul_(view.real)
        found = torch.bmm(value, weights.mT).transpose(0, 1)
        found = torch.mul(found, over[:, 0], out=torch.empty(found.shape, dtype=found.dtype))  # "e r t" in memory, too
        parts.append(found.view(-1, rows * width).index_select(1, view.at))
        saved += [query, key, value, weights, over, found]
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1), saved


def _look_back(gradient: Float[Tensor, "d n"], saved: list[Any], views: list[View], heads: int) -> Float[Tensor, "c n"]:
    """The gradient of what was projected."""
    parts, rest = [], iter(saved)
    for part, view in zip(gradient.split([len(view.at) for view in views], 1), views, strict=True):
        query, key, value, weights, over, found = islice(rest, 6)
        to_found = part.index_select(1, view.spread).view(found.shape).mul_(over[:, 0])
        mean = (to_found * found).sum(0)[:, :, None]
        to_found = to_found.transpose(0, 1)
        to_parts, _ = small.weigh_back(to_found, query, key, value, weights, weights, None, mean)
        to_parts = to_parts.transpose(1, 2).reshape(3 * len(gradient), -1)
        to_part = to_parts.index_select(1, view.at)
        if view.again is not None:
            at, which = view.again
            to_part.index_add_(1, which, to_parts.index_select(1, at))
        parts.append(to_part)
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _norm(x: Float[Tensor, "n d"], weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """What comes out, and what is saved: means and scales."""
    return torch.native_layer_norm(x, x.shape[1:], weight, bias, eps)


def _norm_back(
    gradient: Float[Tensor, "n d"],
    x: Float[Tensor, "n d"],
    mean: Tensor,
    scale: Tensor,
    weight: tuple[Tensor, Tensor],
    bias: tuple[Tensor, Tensor],
) -> Float[Tensor, "n d"]:
    """The gradient of what a norm was given; its parameters', which come with them, are added to."""
    to_x, to_weight, to_bias = torch.ops.aten.native_layer_norm_backward(
        gradient, x, x.shape[1:], mean, scale, weight[0], bias[0], [True, True, True]
    )
    weight[1].add_(to_weight)
    bias[1].add_(to_bias)
    return to_x


def _add_up(
    gradient: Float[Tensor, "n o"],
    x: Float[Tensor, "n i"],
    weight: tuple[Tensor, Tensor],
    bias: tuple[Tensor | None, Tensor | None],
) -> None:
    """The gradients of a linear layer's parameters, added to those so far."""
    torch.addmm(weight[1], gradient.T, x, out=weight[1])  # unlike ``addmm_``, this is counted among operations
    if bias[1] is not None:
        bias[1].add_(gradient.sum(0))
