"""Step-dependent supervision: only the output after each row's own T(n) loops (Fan et al. 2025, section 4)."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.models import Model, settle
from lengthwise.objectives import Objective, supervise
from lengthwise.types import Batch, Loss


@dataclass(frozen=True)
class Final(Objective):
    """The loss of each row's last loop. For a standard model, advanced once, this is the usual loss."""

    def __call__(self, model: Model, batch: Batch, loops: Int[Tensor, " b"], generator: Generator) -> Loss:
        rows, state = settle(model, batch.inputs, loops)
        value, right = supervise(model, state, batch, rows)
        return Loss(value, {"loss": value.detach(), "token_accuracy": right})
