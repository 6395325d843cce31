"""Causal attention of very many, very small heads over short rows, for a CPU.

The published looped models have 64 heads of four numbers. The library's kernel multiplies matrices, head by head, and
spends its time on starting: these are too small. Here heads of all rows stand side by side as the lanes of one vector,
which is multiplied and added place by place. See bench/step.py for what it saves.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

# Of longer rows, fewer lanes or larger heads, matrix products are as quick or quicker (nn/small.py).
LONGEST, LEAST, LARGEST = 24, 1024, 4


def pays(projected: Float[Tensor, "b t 3 h e"]) -> bool:
    """Are heads so small, rows so short, and both so many that lanes are quicker?"""
    rows, places, _, heads, size = projected.shape
    return projected.device.type == "cpu" and size <= LARGEST and places <= LONGEST and rows * heads >= LEAST


def attend(projected: Float[Tensor, "b t 3 h e"]) -> Float[Tensor, "b t h e"]:
    """softmax(q kᵀ / √e) v, where no place sees a later one."""
    rows, _, _, heads, _ = projected.shape
    found = _Lanes.apply(*projected.permute(2, 4, 1, 0, 3).flatten(3))
    return found.unflatten(2, (rows, heads)).permute(2, 1, 3, 0)


class _Lanes(torch.autograd.Function):
    """The same of "e t l", for every lane by itself."""

    @staticmethod
    def forward(ctx: Any, query: Float[Tensor, "e t l"], key: Tensor, value: Tensor) -> Float[Tensor, "e t l"]:
        size, places, _ = query.shape
        query = query * size**-0.5
        future = query.new_full((places, places), -torch.inf).triu(1)[..., None]
        weights = _products(query, key, torch.addcmul(future, query[0, :, None], key[0])).softmax(1)
        found = weights[:, 0] * value[:, 0, None]
        for j in range(1, places):
            found[:, j:].addcmul_(weights[j:, j], value[:, j, None])
        ctx.save_for_backward(query, key, value, weights)
        return found

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Float[Tensor, "e t l"]) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value, weights = ctx.saved_tensors
        size, places, _ = query.shape
        scores = _products(gradient, value, gradient[0, :, None] * value[0]).mul_(weights)
        scores.addcmul_(weights, scores.sum(1, keepdim=True), value=-1)
        to_query, to_key, to_value = (torch.zeros_like(query) for _ in range(3))
        for j in range(places):
            to_query[:, j:].addcmul_(scores[j:, j], key[:, j, None])
            to_key[:, : j + 1].addcmul_(scores[j, : j + 1], query[:, j, None])
            to_value[:, : j + 1].addcmul_(weights[j, : j + 1], gradient[:, j, None])
        return to_query * size**-0.5, to_key, to_value


def _products(
    one: Float[Tensor, "e t l"], other: Float[Tensor, "e t l"], first: Float[Tensor, "t t l"]
) -> Float[Tensor, "t t l"]:
    """Of each place of one with each of the other, summed over e; ``first`` has those of the first numbers, and is
    written to."""
    for a, b in zip(one[1:], other[1:], strict=True):
        first.addcmul_(a[:, None], b)
    return first
