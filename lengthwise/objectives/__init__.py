"""Objectives: which loops' outputs are held to the answer. They know runners and batches, never optimizers."""

from __future__ import annotations

from abc import ABC, abstractmethod

from jaxtyping import Float, Int
from torch import Generator, Tensor
from torch.nn import functional as F

from lengthwise.base.types import Batch, Loss
from lengthwise.depth import Runner


class Objective(ABC):
    """A batch and each row's loops → a loss. Subclasses are frozen dataclasses."""

    @abstractmethod
    def __call__(self, runner: Runner, batch: Batch, loops: Int[Tensor, " b"], generator: Generator) -> Loss:
        """``loops`` and ``generator`` live on the CPU. Logs stay on the device: nothing here waits for it."""


def supervise(logits: Float[Tensor, "n v"], targets: Int[Tensor, " n"]) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Cross-entropy in nats (differentiable), and the share of tokens that are right."""
    right = (logits.detach().argmax(-1) == targets).to(logits.dtype).mean()
    return F.cross_entropy(logits, targets), right
