"""ReTran's attention to earlier positions, position by position, over preallocated keys and values.

With a Python list, autograd would stack all keys at every step and add up one gradient per pair of steps: quadratic
copies. Here each key and value is written once, and its gradient is accumulated in place. Results equal those of
``models.retran`` up to rounding.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from lengthwise.runners.cpu.elementwise import dropout_factors


class Recall:
    """The keys and values of ReTran's layers, in slots. Rows may end, the last rows first.

    ``store`` and ``attend`` are differentiable. Gradients are accumulated in a tensor outside autograd. A token fixes
    the order: each ``store`` takes the previous ``store``'s token, and each ``attend`` takes the latest token, so the
    backward pass of a ``store`` runs after those of all ``attend`` calls that read its slot.
    """

    def __init__(self, shape: tuple[int, int, int, int], heads: int, *, probability: float, like: Tensor) -> None:
        """Create empty slots of ``shape`` (layers, slots, width, rows); rows are last, so that small heads are fast
        too."""
        self.state = _SharedState(like.new_zeros(shape), like.new_zeros(shape), heads, probability)
        self.token = like.new_zeros(()).requires_grad_(torch.is_grad_enabled())

    def store(self, key: Float[Tensor, "l r d"], value: Float[Tensor, "l r d"], layer: int, slot: int) -> None:
        """Write keys and values of l layers, from ``layer`` on, to a slot of the first r rows."""
        self.token = _Store.apply(key, value, self.token, self.state, layer, slot)

    def attend(
        self, query: Float[Tensor, "l r d"], layer: int, slots: slice, mask: Bool[Tensor, "l s"] | None
    ) -> Float[Tensor, "l r d"]:
        """Compute attention of each row's query over ``slots``, in l layers from ``layer`` on; ``mask`` is True
        for slots that a layer does not see. A head's coordinates are contiguous."""
        return _AttendSlots.apply(query, self.token, self.state, layer, slots, mask)


class _SharedState:
    """The state shared by all steps. It must not hold the token, whose graph refers to the state: such a cycle would
    never be freed."""

    def __init__(self, keys: Tensor, values: Tensor, heads: int, probability: float) -> None:
        self.keys, self.values, self.heads, self.probability = keys, values, heads, probability
        self._gradients: tuple[Tensor, Tensor] | None = None
        self._pass = -1

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Return the gradients of all keys and values, as accumulated so far in this backward pass."""
        # A retained graph may be run backward again: each backward pass needs new zeros.
        if self._pass != (now := torch._C._current_graph_task_id()) or self._gradients is None:
            self._gradients, self._pass = (torch.zeros_like(self.keys), torch.zeros_like(self.values)), now
        return self._gradients


class _Store(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, key: Tensor, value: Tensor, token: Tensor, state: _SharedState, layer: int, slot: int
    ) -> Tensor:
        layers, rows, _ = key.shape
        ctx.state, ctx.where = state, (slice(layer, layer + layers), slot, slice(None), slice(rows))
        state.keys[ctx.where], state.values[ctx.where] = key.mT, value.mT
        return token.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, token: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        keys, values = (gradient[ctx.where].mT.contiguous() for gradient in ctx.state.gradients())
        return keys, values, token, None, None, None


class _AttendSlots(torch.autograd.Function):
    """The softmax attention of ``Recall.attend``. In shapes, s counts slots, e the coordinates of a head."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, token: Tensor, state: _SharedState, layer: int, slots: slice, mask: Tensor | None
    ) -> Tensor:
        layers, rows, width = query.shape
        ctx.state, ctx.where = state, (slice(layer, layer + layers), slots, slice(None), slice(rows))
        keys, values = (_split_heads(part[ctx.where], state.heads) for part in (state.keys, state.values))
        ctx.scale = math.sqrt(state.heads / width)
        query = _split_heads((query * ctx.scale).mT.contiguous()[:, None], state.heads)
        scores = (keys * query).sum(3)
        if mask is not None:
            scores.masked_fill_(mask[:, :, None, None], -torch.inf)
        weights = scores.softmax(1)  # "l s h r"
        dropout_mask = dropout_factors(weights, state.probability) if state.probability else None
        ctx.save_for_backward(query, weights, dropout_mask)
        mixed = (_apply_dropout(weights, dropout_mask)[:, :, :, None] * values).sum(1)
        return mixed.flatten(1, 2).mT.contiguous()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, to_mixed: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        query, weights, dropout_mask = ctx.saved_tensors
        state = ctx.state
        keys, values, to_keys, to_values = (
            _split_heads(part[ctx.where], state.heads) for part in (state.keys, state.values, *state.gradients())
        )
        to_mixed = _split_heads(to_mixed.mT.contiguous()[:, None], state.heads)
        to_values.addcmul_(_apply_dropout(weights, dropout_mask)[:, :, :, None], to_mixed)
        to_weights = _apply_dropout((values * to_mixed).sum(3), dropout_mask).mul_(weights)
        to_scores = to_weights.addcmul_(weights, to_weights.sum(1, keepdim=True), value=-1)[:, :, :, None]
        to_keys.addcmul_(to_scores, query)
        to_query = (to_scores * keys).sum(1).flatten(1, 2).mT * ctx.scale
        return to_query, torch.zeros_like(to_mixed[0, 0, 0, 0, 0]), None, None, None, None


def _split_heads(x: Float[Tensor, "l s d r"], heads: int) -> Float[Tensor, "l s h e r"]:
    return x.unflatten(2, (heads, -1))


def _apply_dropout(weights: Tensor, dropout_mask: Tensor | None) -> Tensor:
    return weights if dropout_mask is None else weights * dropout_mask
