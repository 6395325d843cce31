"""Deep supervision: the output of every loop is supervised (as in the comparisons of Bansal et al. 2022)."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.types import Batch, Loss
from lengthwise.objectives import Objective, supervise
from lengthwise.runners import Runner


@dataclass(frozen=True)
class Every(Objective):
    """Σ_k r_k L_k / Σ_k r_k, with L_k the mean loss over the tokens of the r_k rows that run in loop k."""

    def __call__(self, runner: Runner, batch: Batch, loops: Int[Tensor, " b"], generator: Generator) -> Loss:
        total, right, weight = 0.0, 0.0, 0
        last = {}
        for _, rows, logits in runner.each(batch.inputs, loops, batch.loss_mask):
            loss, hits = supervise(logits, batch.targets[rows][batch.loss_mask[rows]])
            # Weighted by rows, so that loops that only few long rows reach do not dominate.
            total, right, weight = total + len(rows) * loss, right + len(rows) * hits, weight + len(rows)
            last = {"last_loss": loss.detach()}
        value = total / weight
        return Loss(value, {"loss": value.detach(), "token_accuracy": right / weight, **last})  # type: ignore[arg-type]
