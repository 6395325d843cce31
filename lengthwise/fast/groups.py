"""Rows in groups of about equal length, and back in their order."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.base.types import Inputs
from lengthwise.fast.ragged import picked


def by_length(inputs: Inputs, together: int) -> list[Int[Tensor, " r"]]:
    """The rows in groups of about so many positions, longest first: little padding is then computed, and what a group
    takes fits the processor's cache. One group where the batch is not large."""
    rows, width = inputs.tokens.shape
    if rows * width < 2 * together:
        return [torch.arange(rows)]
    order = inputs.padding_mask.sum(1).argsort(descending=True, stable=True)
    return list(order.split(max(1, together // width)))


def in_order(found: Float[Tensor, "n v"], rows: Int[Tensor, " b"], at: Bool[Tensor, "b t"]) -> Float[Tensor, "n v"]:
    """What was found at these positions, row by row: from the order of ``rows`` to the order of the batch."""
    number = (at.flatten().cumsum(0) - 1).view(at.shape)  # of each position in the batch's order
    return picked(found, number[rows][at[rows]].argsort())
