"""Opponents: the same mathematics, written straightforwardly."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from lengthwise.models import Model
from lengthwise.types import Batch


def final_loss(model: Model, batch: Batch, loops: Tensor) -> Tensor:
    """Step-dependent supervision with every row run to the longest row's loops, and each row's state picked out."""
    context = model.embed(batch.inputs)
    state = model.start(context)
    states = []
    for _ in range(int(loops.max())):
        state = model.advance(state, context)
        states.append(state)
    chosen = torch.stack(states)[loops - 1, torch.arange(len(loops))]
    return F.cross_entropy(model.read(chosen, batch.asked), batch.targets[batch.asked])
