"""Step-dependent supervision: only the output after each row's own T(n) loops (Fan et al. 2025, section 4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Generator, Tensor

from lengthwise.base.types import Batch, Loss
from lengthwise.models import Model, settle
from lengthwise.objectives import Objective, by_length, supervise


@dataclass(frozen=True)
class Final(Objective):
    """The loss of each row's last loop. For a standard model, advanced once, this is the usual loss."""

    def __call__(self, model: Model, batch: Batch, loops: Int[Tensor, " b"], generator: Generator) -> Loss:
        groups = by_length(model, batch)
        if len(groups) == 1:
            value, right = _supervised(model, batch, loops)
        else:
            parts = [batch.take(rows).narrow() for rows in groups]
            found = [_supervised(model, part, loops[rows]) for part, rows in zip(parts, groups, strict=True)]
            loss_mask = [int(part.loss_mask.sum()) for part in parts]
            value, right = (_mean(column, loss_mask) for column in zip(*found, strict=True))
        return Loss(value, {"loss": value.detach(), "token_accuracy": right})


def _mean(values: Sequence[Float[Tensor, ""]], weights: Sequence[int]) -> Float[Tensor, ""]:
    parts = [value * (weight / sum(weights)) for value, weight in zip(values, weights, strict=True)]
    return sum(parts[1:], parts[0])


def _supervised(model: Model, batch: Batch, loops: Int[Tensor, " b"]) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    rows, state = settle(model, batch.inputs, loops, loss_mask=batch.loss_mask)
    return supervise(model, state, batch, rows)
