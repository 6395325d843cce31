"""Step-dependent supervision that also teaches a model to be undecided before an answer can be known."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.ranges import Change
from lengthwise.base.types import Batch, Loss, sent
from lengthwise.depth import Runner
from lengthwise.objectives import Objective


@dataclass(frozen=True)
class Undecided(Objective):
    """``Final``, but for rows that take fewer than T(n) + ``more`` loops: their target is the uniform distribution over
    symbols.

    So confidence tells whether an answer is done (with ``AnyLoops``, which lets some rows stop early). With the right
    answer as their target, a model would learn to guess, and would be confident wherever the training problems give the
    answer away early, as rows of one symbol do.
    """

    more: Change = 0  # loops beyond T(n) before which a row cannot be done

    def __call__(self, runner: Runner, batch: Batch, loops: Int[Tensor, " b"], generator: Generator) -> Loss:
        at = batch.loss_mask
        logits = runner.last(batch.inputs, loops, at)
        logs = logits.log_softmax(-1)
        early = (loops < batch.rounds + self.more)[:, None].expand_as(at)[at]
        targets, early = (sent(part, logits.device) for part in (batch.targets[at], early))
        value = -torch.where(early, logs.mean(-1), logs.gather(1, targets[:, None])[:, 0]).mean()
        hits = (logits.detach().argmax(-1) == targets) & ~early
        accuracy = hits.sum() / (~early).sum().clamp(min=1)
        return Loss(value, {"loss": value.detach(), "token_accuracy": accuracy})
