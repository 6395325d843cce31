"""Step-dependent supervision that also trains a model to halt."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Generator, Tensor
from torch.nn import functional as F

from lengthwise.base.ranges import Change
from lengthwise.base.types import Batch, Loss, to_device
from lengthwise.objectives import Objective
from lengthwise.runners import Runner


@dataclass(frozen=True)
class Halting(Objective):
    """``Final``, except that rows that take fewer than T(n) + ``more`` loops must give the empty answer: the target of
    their first answer slot is the end symbol, and their other slots have no target.

    For ``AnyLoops``, which lets some rows stop early, and the stopping rule ``Halted``, which waits for an answer. It
    is a halting output (ACT, Graves 2016), but supervised, and without parameters of its own.

    The loss is (1 − e) · D + e · E, with e the fraction of early rows, E their mean cross-entropy, and D the mean
    cross-entropy of the tokens of all other rows.
    """

    more: Change = 0  # a row is not done before T(n) + this many loops
    needs_end = True

    def __call__(self, runner: Runner, batch: Batch, loops: Int[Tensor, " b"], generator: Generator) -> Loss:
        mask = batch.loss_mask
        early = loops < batch.rounds + self.more
        at = torch.where(early[:, None], mask & (mask.cumsum(1) == 1), mask)
        last = mask.shape[1] - 1 - mask.long().flip(1).argmax(1)  # an answer's last symbol is its end
        ends = batch.targets.gather(1, last[:, None])
        targets, done = torch.where(early[:, None], ends, batch.targets)[at], ~early[:, None].expand_as(at)[at]
        fraction = 1 - early.double().mean()
        weight = torch.where(done, fraction / done.sum().clamp(min=1), 1 / len(loops))
        logits = runner.last(batch.inputs, loops, at)
        targets, done, weight = (to_device(part, logits.device) for part in (targets, done, weight.to(logits.dtype)))
        value = (weight * F.cross_entropy(logits, targets, reduction="none")).sum()
        right = (logits.detach().argmax(-1) == targets) & done
        return Loss(value, {"loss": value.detach(), "token_accuracy": right.sum() / done.sum().clamp(min=1)})
