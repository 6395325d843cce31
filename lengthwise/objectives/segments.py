"""Deep supervision in segments: each segment ends with an optimizer step, and passes its state to the next segment
without gradients (Wang et al. 2025, section 2; Jolicoeur-Martineau 2025)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.ranges import Size
from lengthwise.base.types import Batch, Loss
from lengthwise.objectives import Objective, supervise
from lengthwise.runners import Runner
from lengthwise.runners.plain import detach


@dataclass(frozen=True)
class Segments(Objective):
    """``count`` segments of a row's loops each, with a loss and an optimizer step after each segment. Gradients go
    through one segment, so memory does not grow with ``count``, while the model learns to continue from states that
    many loops have computed.

    A subclass may define its own ``steps``; calling it returns their mean loss.
    """

    count: Size = 4  # segments, and optimizer steps, of each batch

    def steps(self, runner: Runner, batch: Batch, loops: Int[Tensor, " b"], generator: Generator) -> Iterator[Loss]:
        state, targets = None, batch.targets[batch.loss_mask]
        for _ in range(self.count):
            logits, state = runner.carry(batch.inputs, loops, batch.loss_mask, state)
            value, right = supervise(logits, targets)
            yield Loss(value, {"loss": value.detach(), "token_accuracy": right})
            state = detach(state)

    def __call__(self, runner: Runner, batch: Batch, loops: Int[Tensor, " b"], generator: Generator) -> Loss:
        return Loss.mean([*self.steps(runner, batch, loops, generator)])
