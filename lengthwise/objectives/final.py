"""Step-dependent supervision: a loss on the output after each row's T(n) loops (Fan et al. 2025, section 4)."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.types import Batch, Loss
from lengthwise.objectives import Objective, supervise
from lengthwise.runners import Runner


@dataclass(frozen=True)
class Final(Objective):
    """The loss after each row's last loop; for a standard model, which is advanced once, the usual loss."""

    def __call__(self, runner: Runner, batch: Batch, loops: Int[Tensor, " b"], generator: Generator) -> Loss:
        logits = runner.last(batch.inputs, loops, batch.loss_mask)
        value, right = supervise(logits, batch.targets[batch.loss_mask])
        return Loss(value, {"loss": value.detach(), "token_accuracy": right})
