"""The likelihood of right answers under a model: perplexity and validation loss."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.base.types import Batch, Problems, to_device
from lengthwise.evaluation.scores import positions_at_once, split_batches
from lengthwise.experiment.layout import up_to_end
from lengthwise.experiment.recipe import Recipe
from lengthwise.models import Model
from lengthwise.runners.cpu import choose


@torch.no_grad()
def perplexity(model: Model, batch: Batch, loops: Int[Tensor, " b"], end: int | None) -> Float[Tensor, " b"]:
    """Return the perplexity of the right answers, exp(−mean log p) of their symbols including the ``end``, after
    ``loops`` loops (on the CPU); if the answer is fed in, of each symbol after the right ones before it."""
    counted = batch.loss_mask & up_to_end(batch.targets.where(batch.loss_mask, -1), end)
    logs = _likelihood(model, batch, loops, counted)
    means = torch.stack([row.mean() for row in logs.split(counted.sum(1).tolist())])
    return means.neg().exp().float()


@torch.no_grad()
def loss(model: Model, recipe: Recipe, problems: Problems) -> float:
    """Return the validation loss: the mean −log p, in nats, of the supervised symbols after the planned loops."""
    model.eval()
    total, count = 0.0, 0
    for _, batch in split_batches(recipe, problems, positions_at_once(model)):
        batch = batch.cut_unsupervised() if recipe.layout.causal else batch
        logs = _likelihood(model, batch, recipe.loops.planned(batch.rounds), batch.loss_mask)
        total, count = total - float(logs.sum()), count + len(logs)
    return total / count


def _likelihood(model: Model, batch: Batch, loops: Int[Tensor, " b"], mask: Bool[Tensor, "b t"]) -> Float[Tensor, " n"]:
    """Return the log probability, in nats, of each target in ``mask`` after each row's own loops, row by row."""
    logs = choose(model).last(batch.inputs, loops, mask).log_softmax(-1)
    targets = to_device(batch.targets[mask], logs.device)
    return logs.gather(1, targets[:, None])[:, 0].cpu()
