"""The movement of a model's state per loop: ‖h_k − h_{k−p}‖ / ‖h_k‖ at every position, over p = 1 and p = 2 loops.

A state that does not move is a fixed point; one that moves over one loop but not over two alternates.
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


def relative_movement(now: State, earlier: Sequence[State], real: Bool[Tensor, "r t"]) -> Float[Tensor, "r t p"]:
    """Return the distance of ``now`` from each of the ``earlier`` states, the latest first, relative to its norm.

    Movements over more loops than there are earlier states are infinite; those at padding are 0. Norms are over all
    numbers of a position, in all floating-point tensors of the state. A tensor without an axis of positions counts at
    each position; one shared by all rows does not count.
    """
    zero, moved = torch.zeros(real.shape, device=real.device), []
    for before in earlier:
        pairs = [(new, old) for new, old in zip(_tensors(now), _tensors(before), strict=True) if len(new) == len(real)]
        change = sum((_sum_squares(new - old, real) for new, old in pairs), zero)
        size = sum((_sum_squares(new, real) for new, _ in pairs), zero)
        moved.append((change / size.clamp(min=1e-30)).sqrt())
    moved += [torch.full_like(zero, torch.inf)] * (PERIODS - len(moved))
    return torch.stack(moved, -1).masked_fill(~real[..., None], 0.0)


def flat_state(state: State, width: int) -> Float[Tensor, "r t d"]:
    """Return all numbers of each of ``width`` positions, side by side. Raises UsageError if a state has no numbers by
    position."""
    parts = [part.flatten(2) for part in _tensors(state) if part.dim() > 2 and part.shape[1] == width]
    if not parts:
        raise UsageError("this model's state has no tensor by position")
    return torch.cat(parts, -1)


def _tensors(state: State) -> list[Tensor]:
    """Return the floating-point tensors of nested tuples."""
    return [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor) and leaf.is_floating_point()]


def _sum_squares(x: Tensor, real: Bool[Tensor, "r t"]) -> Float[Tensor, "r _"]:
    """Return the sum of squares at each position, or of a row's whole state."""
    axis = 2 if x.shape[:2] == real.shape else 1
    return x.reshape(*x.shape[:axis], -1).square().sum(-1).view(len(x), -1)
