"""Groups of rows of about equal length: they need little padding, and their tensors fit in the processor's cache."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.base.types import Inputs
from lengthwise.runners.cpu.ragged import select_unique


def group_by_length(inputs: Inputs, positions: int) -> list[Int[Tensor, " r"]]:
    """Return row indices in groups of about ``positions`` padded positions, longest rows first. One group if the batch
    has fewer than twice as many."""
    rows, width = inputs.tokens.shape
    if rows * width < 2 * positions:
        return [torch.arange(rows)]
    # A stable sort, so that results do not depend on how ties are broken.
    order = inputs.padding_mask.sum(1).argsort(descending=True, stable=True)
    return list(order.split(max(1, positions // width)))


def restore_order(
    found: Float[Tensor, "n v"], rows: Int[Tensor, " b"], at: Bool[Tensor, "b t"]
) -> Float[Tensor, "n v"]:
    """Reorder results at the positions ``at``, row by row, from the order of ``rows`` to that of the batch."""
    number = (at.flatten().cumsum(0) - 1).view(at.shape)  # index of each result in the batch's order
    return select_unique(found, number[rows][at[rows]].argsort())
