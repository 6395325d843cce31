"""Objectives: training losses, which differ in the loops after which the output is supervised."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Generator, Tensor
from torch.nn import functional as F

from lengthwise.base.fields import Config
from lengthwise.base.types import Batch, Loss, to_device
from lengthwise.runners import Runner


class Objective(Config):
    """Base class of training losses, given a batch and each row's loops. Subclasses are frozen dataclasses."""

    needs_end: ClassVar[bool] = False  # True if answers must end with a symbol of their own, and so can be empty

    @abstractmethod
    def __call__(self, runner: Runner, batch: Batch, loops: Int[Tensor, " b"], generator: Generator) -> Loss:
        """Compute the loss. All arguments are on the CPU; logits, loss and logs are on the model's device, and the CPU
        does not wait for them."""

    def steps(self, runner: Runner, batch: Batch, loops: Int[Tensor, " b"], generator: Generator) -> Iterator[Loss]:
        """Yield a loss for each optimizer step on a batch: by default, a single loss. The caller takes a step before
        the next loss is computed."""
        yield self(runner, batch, loops, generator)

    @property
    def takes_several_steps(self) -> bool:
        """True if a subclass defines ``steps``."""
        return type(self).steps is not Objective.steps


def supervise(logits: Float[Tensor, "n v"], targets: Int[Tensor, " n"]) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Return the mean cross-entropy in nats (differentiable), and the fraction of correct tokens. Targets are on the
    CPU. If the logits come from stacked models (``runners.stacked``), both were computed for all models at once."""
    known = getattr(logits, "supervision", None)
    if known is not None and (found := known(targets)) is not None:
        return found  # type: ignore[no-any-return]
    targets = to_device(targets, logits.device)
    accuracy = (logits.detach().argmax(-1) == targets).to(logits.dtype).mean()
    return F.cross_entropy(logits, targets), accuracy
