"""Softmax attention of small heads over short rows, for a CPU.

Runners use it where ``is_worthwhile`` is true: for many heads of at most 8 coordinates, or with dropout. On a CPU,
torch's fused kernel computes heads one at a time, and does not support dropout. Here positions are the last axis, which
makes each of a step's six matrix products two to four times as fast; the softmax uses powers of 2, which take half the
time of exp. Results equal torch's up to rounding. If sums of weights leave a safe range, torch's softmax is used. See
bench/small_heads.py.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lengthwise.nn.mixer import AttentionContext
from lengthwise.nn.position import rotate_pairs
from lengthwise.runners.cpu.elementwise import draw_dropout_factors
from lengthwise.runners.cpu.packing import Ragged

# With wider heads, fewer heads over all rows, or fewer positions, torch is at least as fast.
MAX_HEAD_WIDTH, MIN_HEADS, MIN_POSITIONS = 8, 64, 10
MIN_FUSED_HEADS = 8  # replaces MIN_HEADS in ``fused_loops``, which saves more
LOG2E = 1 / math.log(2)
SAFE_SUM_RANGE = 2.0**-60, 2.0**60  # range of sums of weights in which late division loses no precision


def is_worthwhile(shape: tuple[int, int, int, int], dropout: float, min_heads: int = MIN_HEADS) -> bool:
    """Return whether this module is faster than torch for a ``shape`` (rows, positions, heads, width of a head). With
    dropout, return True."""
    rows, positions, heads, size = shape
    return dropout > 0 or (size <= MAX_HEAD_WIDTH and rows * heads >= min_heads and positions >= MIN_POSITIONS)


class AttentionPlan(NamedTuple):
    """The arguments of attention that are the same in every layer: all except queries, keys and values."""

    heads: int
    ragged: Ragged  # maps packed positions to the padded rows in which attention is computed
    bias: Float[Tensor, "#r #k #k"]  # attention bias times log₂ e
    rotation: tuple[Tensor, ...]  # cosines and sines of the angles, if any, positions last

    @staticmethod
    def build(like: Tensor, heads: int, ragged: Ragged, context: AttentionContext) -> AttentionPlan:
        """Build the plan for packed rows. ``like`` has the type of queries; the context's ``keys`` are not used."""
        rows, positions, padded_index, bias = len(ragged.ends), ragged.width, ragged.padded_index, context.bias
        width = positions if bias is None else bias.shape[-1]
        if width > positions:  # there is a blank: padded rows get one more position, whose key and value are 0
            ragged = Ragged(ragged.ends, width, padded_index + padded_index // positions * (width - positions))
        if bias is not None:
            bias = bias.to(like.dtype)
            if bias.shape[-2] > 1:
                bias = F.pad(bias, (0, 0, 0, width - bias.shape[-2]))
            # Padding may see no key at all; let it see every key, to avoid NaN. Its results are not used.
            bias = (bias * LOG2E).masked_fill((bias == -torch.inf).all(-1, keepdim=True), 0.0)
            bias = bias.expand(rows, heads, width, width).flatten(0, 1)
        else:
            bias = _build_causal_bias(width, like.dtype) if context.causal else like.new_zeros(1, 1, 1)
        if context.angles is None:
            return AttentionPlan(heads, ragged, bias, ())
        angles = F.pad(context.angles, (0, 0, 0, width - context.angles.shape[1]))
        return AttentionPlan(heads, ragged, bias, (angles.cos().mT[:, None], angles.sin().mT[:, None]))


@lru_cache(maxsize=64)
def _build_causal_bias(positions: int, dtype: torch.dtype) -> Float[Tensor, "1 t t"]:
    """Return the causal bias: −∞ where the key is later than the query, else 0."""
    return torch.full((1, positions, positions), -torch.inf, dtype=dtype).triu(1)


def attend(qkv: Float[Tensor, "n 3 h e"], plan: AttentionPlan, dropout: float) -> Float[Tensor, "n h e"]:
    """Return softmax(q kᵀ / √e + bias) v of packed positions. Queries and keys are rotated by the plan's angles, and
    attention weights are dropped with probability ``dropout``."""
    return _AttendSmall.apply(qkv, plan.ragged, dropout, plan.bias, *plan.rotation)


class _AttendSmall(torch.autograd.Function):
    """``attend`` as an autograd function of a plan. In shapes, r counts all heads of all rows."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, ragged: Ragged, dropout: float, bias: Tensor, *rotation: Tensor) -> Tensor:
        parts = ragged.unpack(qkv).permute(2, 0, 3, 4, 1).contiguous()  # "3 b h e t"
        turns = rotate_pairs(parts[:2], *rotation, axis=-2) if rotation else parts[:2]
        query, key, value = (part.flatten(0, 1) for part in (*turns, parts[2]))  # "r e t"
        weights, inverse_sums = compute_attention_weights(query, key, bias)
        dropout_mask = draw_dropout_factors(weights, dropout) if dropout else None
        dropped_weights = weights if dropout_mask is None else weights * dropout_mask
        output = torch.bmm(value, dropped_weights.mT).mul_(inverse_sums)
        ctx.save_for_backward(
            query, key, value, weights, dropped_weights, dropout_mask, inverse_sums, output, *rotation
        )
        ctx.ragged, ctx.bias_shape = ragged, bias.shape if bias.requires_grad else None
        return ragged.pack(output.view(parts.shape[1:]).permute(0, 3, 1, 2))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # under checkpointing they can be read once
        query, key, value, weights, dropped_weights, dropout_mask, inverse_sums, output, *rotation = saved
        gradient = ctx.ragged.unpack(gradient)
        rows, _, heads, _ = gradient.shape
        gradient = gradient.permute(0, 2, 3, 1).flatten(0, 1) * inverse_sums
        # Softmax needs Σ_k weight · gradient of the weight, which equals output · gradient of the output.
        mean = (gradient * output).sum(1)[:, :, None]
        parts = query, key, value, weights, dropped_weights, dropout_mask
        grad_parts, scores = compute_attention_gradients(gradient, *parts, mean)
        grad_parts = grad_parts.unflatten(1, (rows, heads))
        if rotation:
            grad_parts[:2] = rotate_pairs(grad_parts[:2], rotation[0], -rotation[1], axis=-2)
        grad_bias = None if ctx.bias_shape is None else scores.sum_to_size(ctx.bias_shape) / LOG2E
        return ctx.ragged.pack(grad_parts.permute(1, 4, 0, 2, 3)), None, None, grad_bias, *(None for _ in rotation)


def compute_attention_weights(
    query: Float[Tensor, "r e t"], key: Float[Tensor, "r e t"], bias: Float[Tensor, "#r k k"]
) -> tuple[Float[Tensor, "r t t"], Float[Tensor, "r 1 t"]]:
    """Return unnormalized attention weights of every query, and the factors that give them a sum of 1.

    The factors are applied to the attention's output, which is smaller than the weights. Powers of 2 take half the time
    of powers of e. Subtracting the largest score first would double the time; instead, torch's softmax is used if sums
    become too large or too small.
    """
    scale = LOG2E * query.shape[1] ** -0.5
    weights = torch.baddbmm(bias, query.mT, key, alpha=scale).exp2_()
    sums = weights.sum(-1)
    smallest, largest = sums.aminmax()
    if not (float(smallest) > SAFE_SUM_RANGE[0] and float(largest) < SAFE_SUM_RANGE[1]):
        weights = torch.baddbmm(bias, query.mT, key, alpha=scale).div_(LOG2E).softmax(-1)
        sums = torch.ones_like(sums)
    return weights, sums.reciprocal_()[:, None]


def compute_attention_gradients(
    gradient: Float[Tensor, "r e t"],
    query: Float[Tensor, "r e t"],
    key: Float[Tensor, "r e t"],
    value: Float[Tensor, "r e t"],
    weights: Float[Tensor, "r t t"],
    dropped_weights: Float[Tensor, "r t t"],
    dropout_mask: Tensor | None,
    mean: Float[Tensor, "r t 1"],
) -> tuple[Float[Tensor, "3 r e t"], Float[Tensor, "r t t"]]:
    """Return the gradients of query, key and value, and of the scores.

    ``weights`` are unnormalized, ``dropped_weights`` are weights after dropout. ``gradient`` is that of the output
    times the normalizing factors of ``compute_attention_weights``, and ``mean`` is Σ_e output · ``gradient``.
    """
    grad_parts = value.new_empty(3, *value.shape)
    grad_query, grad_key, grad_value = grad_parts
    scale = value.shape[1] ** -0.5
    if dropout_mask is None:
        scores = torch.baddbmm(mean, gradient.mT, value, beta=-1).mul_(weights)
    else:
        scores = torch.bmm(gradient.mT, value).mul_(dropout_mask).sub_(mean).mul_(weights)
    torch.baddbmm(grad_query, key, scores.mT, beta=0, alpha=scale, out=grad_query)
    torch.baddbmm(grad_key, query, scores, beta=0, alpha=scale, out=grad_key)
    torch.bmm(gradient, dropped_weights, out=grad_value)
    return grad_parts, scores
