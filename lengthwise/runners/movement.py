"""The movement of a model's state per loop: ‖h_k − h_{k−p}‖ / ‖h_k‖ at every position, over p = 1 and p = 2 loops.

A state that does not move is a fixed point; a state that moves over one loop but not over two alternates.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.utils._pytree import tree_leaves

from lengthwise.base.types import UsageError
from lengthwise.models import State

PERIODS = 2  # movements are over one loop, and over two


def relative_movement(state: State, earlier: Sequence[State], mask: Bool[Tensor, "r t"]) -> Float[Tensor, "r t p"]:
    """Return the distance of ``state`` from each of ``earlier``, the latest first, relative to its norm.

    Movements over more loops than there are earlier states are infinite; at padding they are 0. Norms are over all
    numbers of a position, in all floating-point tensors of the state. A tensor without an axis of positions counts at
    each position; a tensor shared by all rows does not count.
    """
    zero, moved = torch.zeros(mask.shape, device=mask.device), []
    for before in earlier:
        both = zip(_tensors(state), _tensors(before), strict=True)
        pairs = [(new, old) for new, old in both if len(new) == len(mask)]
        change = sum((_sum_squares(new - old, mask) for new, old in pairs), zero)
        size = sum((_sum_squares(new, mask) for new, _ in pairs), zero)
        moved.append((change / size.clamp(min=1e-30)).sqrt())
    moved += [torch.full_like(zero, torch.inf)] * (PERIODS - len(moved))
    return torch.stack(moved, -1).masked_fill(~mask[..., None], 0.0)


def flatten_state(state: State, width: int) -> Float[Tensor, "r t d"]:
    """Return all numbers of each of ``width`` positions as one vector. Raises UsageError if no tensor of the state has
    an axis of positions."""
    parts = [part.flatten(2) for part in _tensors(state) if part.dim() > 2 and part.shape[1] == width]
    if not parts:
        raise UsageError("this model's state has no tensor with an axis of positions, which is needed here")
    return torch.cat(parts, -1)


def _tensors(state: State) -> list[Tensor]:
    """Return the floating-point tensors of nested tuples."""
    return [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _sum_squares(x: Tensor, mask: Bool[Tensor, "r t"]) -> Float[Tensor, "r _"]:
    """Return the sum of squares at each position, or of a row's whole state."""
    axis = 2 if x.shape[:2] == mask.shape else 1
    return x.reshape(*x.shape[:axis], -1).square().sum(-1).view(len(x), -1)
