"""The likelihood that a model gives to right answers: perplexity and validation loss."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.base.types import Batch, Problems, to_device
from lengthwise.evaluation.scores import in_parts
from lengthwise.experiment.layout import up_to_end
from lengthwise.experiment.recipe import Recipe
from lengthwise.models import Model
from lengthwise.runners.cpu import choose


@torch.no_grad()
def perplexity(model: Model, batch: Batch, loops: Int[Tensor, " b"], end: int | None) -> Float[Tensor, " b"]:
    """Perplexity of the right answers: exp(−mean log p) of their symbols, the ``end`` included, after so many loops; in
    a layout that feeds the answer in, each symbol given the right ones before it. ``loops`` is on the CPU."""
    asked = batch.loss_mask & up_to_end(batch.targets.where(batch.loss_mask, -1), end)
    logs = _likelihood(model, batch, loops, asked)
    means = torch.stack([row.mean() for row in logs.split(asked.sum(1).tolist())])
    return means.neg().exp().float()


@torch.no_grad()
def loss(model: Model, recipe: Recipe, problems: Problems) -> float:
    """Validation loss: the mean −log p of what is supervised of the right answers, ends included, after the planned
    loops, in nats."""
    model.eval()
    total, count = 0.0, 0
    for _, batch in in_parts(recipe, problems):
        batch = batch.trimmed() if recipe.layout.causal else batch
        logs = _likelihood(model, batch, recipe.loops.planned(batch.rounds), batch.loss_mask)
        total, count = total - float(logs.sum()), count + len(logs)
    return total / count


def _likelihood(
    model: Model, batch: Batch, loops: Int[Tensor, " b"], asked: Bool[Tensor, "b t"]
) -> Float[Tensor, " n"]:
    """The log probability, in nats, of each target that is asked for after each row's own loops, row by row."""
    logs = choose(model).last(batch.inputs, loops, asked).log_softmax(-1)
    targets = to_device(batch.targets[asked], logs.device)
    return logs.gather(1, targets[:, None])[:, 0].cpu()
