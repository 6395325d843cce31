"""Objectives: which loops' outputs are held to the answer. They know models and batches, never optimizers."""

from __future__ import annotations

from abc import ABC, abstractmethod

from jaxtyping import Float, Int
from torch import Generator, Tensor
from torch.nn import functional as F

from lengthwise.base.types import Batch, Loss
from lengthwise.models import Model, State


class Objective(ABC):
    """A batch and each row's loops → a loss. Subclasses are frozen dataclasses."""

    @abstractmethod
    def __call__(self, model: Model, batch: Batch, loops: Int[Tensor, " b"], generator: Generator) -> Loss:
        """``loops`` and ``generator`` live on the CPU. Logs stay on the device: nothing here waits for it."""


def by_length(model: Model, batch: Batch) -> list[Int[Tensor, " r"] | slice]:
    """The batch's rows in groups of about equal length, longest first: little padding is then computed, and what a
    group takes fits the processor's cache. One group where the batch is not large, and on a GPU, which wants large
    kernels."""
    rows, width = batch.targets.shape
    if batch.targets.device.type != "cpu" or rows * width < 2 * model.together:
        return [slice(None)]
    order = batch.inputs.padding_mask.sum(1).argsort(descending=True, stable=True)
    return list(order.split(max(1, model.together // width)))


def supervise(
    model: Model, state: State, batch: Batch, rows: Int[Tensor, " r"]
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Cross-entropy in nats (differentiable), and share of tokens right, averaged over these rows' asked places.
    Only there is the state read out. The state's rows are the batch's ``rows``, in this order."""
    at = batch.loss_mask[rows]
    targets = batch.targets[rows][at]
    logits = model.read(state, at)
    right = (logits.detach().argmax(-1) == targets).to(logits.dtype).mean()
    return F.cross_entropy(logits, targets), right
