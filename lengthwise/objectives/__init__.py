"""Objectives: training losses, which differ in the loops after which they supervise the output."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor
from torch.nn import functional as F

from lengthwise.base.fields import Config
from lengthwise.base.ranges import Fraction, Offset, Size
from lengthwise.base.types import Batch, Loss, to_device
from lengthwise.runners import Runner
from lengthwise.runners.plain import detach


class Objective(Config):
    """Base class of training losses, computed from a batch and each row's number of loops. Subclasses are frozen
    dataclasses."""

    needs_end: ClassVar[bool] = False  # True if answers must end with an end symbol, so that they can be empty

    @abstractmethod
    def __call__(self, runner: Runner, batch: Batch, loops: Int[Tensor, " b"], generator: Generator) -> Loss:
        """Compute the loss. All arguments are on the CPU; logits, loss and logs are on the model's device, and the CPU
        does not wait for them."""

    def steps(self, runner: Runner, batch: Batch, loops: Int[Tensor, " b"], generator: Generator) -> Iterator[Loss]:
        """Yield a loss for each optimizer step on a batch: by default, a single loss. The caller takes a step before
        the next loss is computed."""
        yield self(runner, batch, loops, generator)

    @property
    def steps_per_batch(self) -> int:
        """The number of optimizer steps of each batch, for estimates of time."""
        return 1

    @property
    def takes_several_steps(self) -> bool:
        """True if a subclass defines ``steps``."""
        return type(self).steps is not Objective.steps


def compute_loss_and_accuracy(
    logits: Float[Tensor, "n v"], targets: Int[Tensor, " n"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return the mean cross-entropy in nats (differentiable), and the fraction of correct tokens. Targets are on the
    CPU."""
    targets = to_device(targets, logits.device)
    accuracy = (logits.detach().argmax(-1) == targets).to(logits.dtype).mean()
    return F.cross_entropy(logits, targets), accuracy


@dataclass(frozen=True)
class Final(Objective):
    """The loss after each row's last loop; for a standard model, which is advanced once, the usual loss.

    With label smoothing (Szegedy et al., 2016, section 7), solved problems keep a gradient; thus nearly exact values,
    such as an eigenvalue of −1, become more exact.
    """

    smoothing: Fraction = 0.0  # weight of the mean over all symbols, as in torch's cross_entropy

    def __call__(self, runner: Runner, batch: Batch, loops: Int[Tensor, " b"], generator: Generator) -> Loss:
        logits = runner.last(batch.inputs, loops, batch.loss_mask)
        value, right = compute_loss_and_accuracy(logits, batch.targets[batch.loss_mask])
        if self.smoothing:
            value = (1 - self.smoothing) * value - self.smoothing * logits.log_softmax(-1).mean()
        return Loss(value, {"loss": value.detach(), "token_accuracy": right})


@dataclass(frozen=True)
class Every(Objective):
    """Σ_k r_k L_k / Σ_k r_k, with L_k the mean loss over the tokens of the r_k rows that run in loop k."""

    def __call__(self, runner: Runner, batch: Batch, loops: Int[Tensor, " b"], generator: Generator) -> Loss:
        total, right, weight = 0.0, 0.0, 0
        last = {}
        for _, rows, logits in runner.each(batch.inputs, loops, batch.loss_mask):
            loss, accuracy = compute_loss_and_accuracy(logits, batch.targets[rows][batch.loss_mask[rows]])
            # Weighted by rows, so that loops reached by only a few long rows do not dominate.
            total, right, weight = total + len(rows) * loss, right + len(rows) * accuracy, weight + len(rows)
            last = {"last_loss": loss.detach()}
        value = total / weight
        return Loss(value, {"loss": value.detach(), "token_accuracy": right / weight, **last})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Progressive(Objective):
    """(1 − weight) · L(after R loops) + weight · L(after r loops), with R the largest number of loops in the batch.

    By default r is uniform in 1 … R, with gradients through all r loops. ``truncated`` is the published form,
    r = n + k: first n loops without gradients, n uniform in 0 … R − 1, then k loops with gradients, k uniform in
    1 … min(R − n, max(⌊R/2⌋, 1)); the pass of R loops has gradients in its last max(⌊R/2⌋, 1) loops only. A row with
    fewer loops stops after its own number of loops.
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
        targets = batch.targets[batch.loss_mask]
        (full_loss, right), (fewer_loss, _) = (compute_loss_and_accuracy(part, targets) for part in logits)
        value = (1 - self.weight) * full_loss + self.weight * fewer_loss
        return Loss(value, {"loss": value.detach(), "full_loss": full_loss.detach(), "token_accuracy": right})


@dataclass(frozen=True)
class Segments(Objective):
    """Runs ``count`` segments, in each of which a row takes its number of loops, with a loss and an optimizer step
    after each segment. Gradients go through one segment only, so memory does not grow with ``count``. The model learns
    to continue from states that many loops have computed.

    A subclass may define its own ``steps``. Calling the objective returns the mean of the losses of ``steps``.
    """

    count: Size = 4  # segments, and optimizer steps, of each batch

    @property
    def steps_per_batch(self) -> int:
        return self.count

    def steps(self, runner: Runner, batch: Batch, loops: Int[Tensor, " b"], generator: Generator) -> Iterator[Loss]:
        state, targets = None, batch.targets[batch.loss_mask]
        for _ in range(self.count):
            logits, state = runner.carry(batch.inputs, loops, batch.loss_mask, state)
            value, right = compute_loss_and_accuracy(logits, targets)
            yield Loss(value, {"loss": value.detach(), "token_accuracy": right})
            state = detach(state)

    def __call__(self, runner: Runner, batch: Batch, loops: Int[Tensor, " b"], generator: Generator) -> Loss:
        return Loss.mean([*self.steps(runner, batch, loops, generator)])


@dataclass(frozen=True)
class Halting(Objective, former_names={"more": "offset"}):
    """``Final``, except that rows that take fewer than T(n) + ``offset`` loops must give the empty answer: the target
    of their first answer slot is the end symbol, and their other slots have no target.

    Use it with ``AnyLoops``, which lets some rows stop early, and the stopping rule ``Halted``, which waits for an
    answer. The end symbol is then a halting output (ACT, Graves 2016), but supervised and without further parameters.

    The loss is (1 − e) · D + e · E, with e the fraction of early rows, E their mean cross-entropy, and D the mean
    cross-entropy of the tokens of all other rows.
    """

    offset: Offset = 0  # a row is not done before T(n) + this many loops
    needs_end = True

    def __call__(self, runner: Runner, batch: Batch, loops: Int[Tensor, " b"], generator: Generator) -> Loss:
        mask = batch.loss_mask
        early = loops < batch.rounds + self.offset
        positions = torch.where(early[:, None], mask & (mask.cumsum(1) == 1), mask)
        last = mask.shape[1] - 1 - mask.long().flip(1).argmax(1)  # an answer's last symbol is its end
        ends = batch.targets.gather(1, last[:, None])
        targets, done = (
            torch.where(early[:, None], ends, batch.targets)[positions],
            ~early[:, None].expand_as(positions)[positions],
        )
        fraction = 1 - early.double().mean()
        weight = torch.where(done, fraction / done.sum().clamp(min=1), 1 / len(loops))
        logits = runner.last(batch.inputs, loops, positions)
        targets, done, weight = (to_device(part, logits.device) for part in (targets, done, weight.to(logits.dtype)))
        value = (weight * F.cross_entropy(logits, targets, reduction="none")).sum()
        right = (logits.detach().argmax(-1) == targets) & done
        return Loss(value, {"loss": value.detach(), "token_accuracy": right.sum() / done.sum().clamp(min=1)})
