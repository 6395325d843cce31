"""Progressive loss: the output is also supervised after a random number of loops (Bansal et al. 2022; McLeish et al.
2024, section 3.2)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.ranges import Fraction
from lengthwise.base.types import Batch, Loss
from lengthwise.objectives import Objective, supervise
from lengthwise.runners import Runner


@dataclass(frozen=True)
class Progressive(Objective):
    """(1 − weight) · L(after R loops) + weight · L(after r loops), with R the largest number of loops in the batch.

    By default r is uniform in 1 … R, with gradients through all r loops. ``truncated`` is the published form,
    r = n + k: first n loops without gradients, n uniform in 0 … R − 1, then k loops with gradients, k uniform in
    1 … min(R − n, max(⌊R/2⌋, 1)); the pass of R loops has gradients in its last max(⌊R/2⌋, 1) loops only. A row with
    fewer loops stops after its own number.
    """

    weight: Fraction = 0.5  # weight of the loss after fewer loops
    truncated: bool = False  # the published form: gradients through the last loops only

    def __call__(self, runner: Runner, batch: Batch, loops: Int[Tensor, " b"], generator: Generator) -> Loss:
        most_loops = int(loops.max())

        def draw_uniform(low: int, high: int) -> int:
            return int(torch.randint(low, high + 1, (), generator=generator))

        # The order of draws matters: the same generator must give the same loops in every version.
        half = max(most_loops // 2, 1)
        skipped = draw_uniform(0, most_loops - 1) if self.truncated else 0
        fewer = skipped + draw_uniform(1, min(most_loops - skipped, half) if self.truncated else most_loops)
        if self.truncated:
            tracked = (most_loops, half), (fewer, fewer - skipped)
            logits = [
                # Rows with fewer loops than ``depth`` keep their own number.
                runner.last(batch.inputs, loops.clamp(max=depth), batch.loss_mask, no_grad_loops=depth - last)
                for depth, last in tracked
            ]
        else:
            logits = runner.at_depths(batch.inputs, loops, (most_loops, fewer), batch.loss_mask)
        (of_full, right), (of_fewer, _) = (supervise(one, batch.targets[batch.loss_mask]) for one in logits)
        value = (1 - self.weight) * of_full + self.weight * of_fewer
        return Loss(value, {"loss": value.detach(), "full_loss": of_full.detach(), "token_accuracy": right})
