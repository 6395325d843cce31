"""Attention of one place to those before it, step by step, over keys and values that are kept in one tensor.

Autograd would keep a list of them, stack it at every step and add up one gradient per pair of steps. Here each is
written once to where it stays, and its gradient is gathered in place: see ``Recall``.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lengthwise.fast import dropout


class Recall:
    """Keys and values of ``layers`` layers for ``slots`` steps, for rows that may leave: the last ones first.

    ``store`` and ``attend`` are differentiable. Gradients meet in one tensor that autograd does not see, so it is
    told their order by a token that each call to ``store`` takes from the one before: what was stored gives its
    gradient on only when everything that has looked at it has given its own.
    """

    def __init__(self, shape: tuple[int, int, int, int], heads: int, *, probability: float, like: Tensor) -> None:
        """``shape`` is layers, slots, width and rows: these are last, so that heads may be tiny."""
        self.kept = _Kept(like.new_zeros(shape), like.new_zeros(shape), heads, probability)
        self.token = like.new_zeros(()).requires_grad_(torch.is_grad_enabled())

    def store(self, key: Float[Tensor, "l r d"], value: Float[Tensor, "l r d"], layer: int, slot: int) -> None:
        """Keep these of the layers from ``layer`` on, at this slot of their first rows."""
        self.token = _Store.apply(key, value, self.token, self.kept, layer, slot)

    def attend(
        self, query: Float[Tensor, "l r d"], layer: int, slots: slice, hidden: Bool[Tensor, "l s"] | None
    ) -> Float[Tensor, "l r d"]:
        """What each row's query finds in these slots, in the layers from ``layer`` on, but for those that are hidden.
        A head's coordinates stand side by side."""
        return _Attend.apply(query, self.token, self.kept, layer, slots, hidden)


class _Kept:
    """What the steps share. It does not know the token, whose graph knows it: a cycle would never be freed."""

    def __init__(self, keys: Tensor, values: Tensor, heads: int, probability: float) -> None:
        self.keys, self.values, self.heads, self.probability = keys, values, heads, probability
        self._gradients: tuple[Tensor, Tensor] | None = None
        self._pass = -1

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Of all keys and values, as far as they are gathered in this backward pass."""
        if self._pass != (now := torch._C._current_graph_task_id()) or self._gradients is None:
            self._gradients, self._pass = (torch.zeros_like(self.keys), torch.zeros_like(self.values)), now
        return self._gradients


class _Store(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, key: Tensor, value: Tensor, token: Tensor, kept: _Kept, layer: int, slot: int) -> Tensor:
        layers, rows, _ = key.shape
        ctx.kept, ctx.where = kept, (slice(layer, layer + layers), slot, slice(None), slice(rows))
        kept.keys[ctx.where], kept.values[ctx.where] = key.mT, value.mT
        return token.clone()

    @staticmethod
    def backward(ctx: Any, token: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        keys, values = (gradient[ctx.where].mT.contiguous() for gradient in ctx.kept.gradients())
        return keys, values, token, None, None, None


class _Attend(torch.autograd.Function):
    """Within, s are slots, e a head's coordinates."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, token: Tensor, kept: _Kept, layer: int, slots: slice, hidden: Tensor | None
    ) -> Tensor:
        layers, rows, width = query.shape
        ctx.kept, ctx.where = kept, (slice(layer, layer + layers), slots, slice(None), slice(rows))
        keys, values = (_by_head(part[ctx.where], kept.heads) for part in (kept.keys, kept.values))  # "l s h e r"
        ctx.scale = math.sqrt(kept.heads / width)
        query = _by_head((query * ctx.scale).mT.contiguous()[:, None], kept.heads)
        scores = (keys * query).sum(3)
        if hidden is not None:
            scores.masked_fill_(hidden[:, :, None, None], -torch.inf)
        weights = scores.softmax(1)  # "l s h r"
        open_ = dropout.kept(weights, kept.probability) if kept.probability else None
        ctx.save_for_backward(query, weights, open_)
        mixed = (_times(weights, open_)[:, :, :, None] * values).sum(1)
        return mixed.flatten(1, 2).mT.contiguous()

    @staticmethod
    def backward(ctx: Any, mixed: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        query, weights, open_ = ctx.saved_tensors
        kept = ctx.kept
        keys, values, to_keys, to_values = (
            _by_head(part[ctx.where], kept.heads) for part in (kept.keys, kept.values, *kept.gradients())
        )
        mixed = _by_head(mixed.mT.contiguous()[:, None], kept.heads)
        to_values.addcmul_(_times(weights, open_)[:, :, :, None], mixed)
        to_weights = _times((values * mixed).sum(3), open_).mul_(weights)
        to_scores = to_weights.addcmul_(weights, to_weights.sum(1, keepdim=True), value=-1)[:, :, :, None]
        to_keys.addcmul_(to_scores, query)
        to_query = (to_scores * keys).sum(1).flatten(1, 2).mT * ctx.scale
        return to_query, torch.zeros_like(mixed[0, 0, 0, 0, 0]), None, None, None, None


def _by_head(x: Float[Tensor, "l s d r"], heads: int) -> Float[Tensor, "l s h e r"]:
    return x.unflatten(2, (heads, -1))


def _times(weights: Tensor, open_: Tensor | None) -> Tensor:
    return weights if open_ is None else weights * open_
