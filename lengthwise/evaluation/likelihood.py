"""The likelihood of right answers under a model: perplexity and validation loss."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.base.types import Batch, Problems, to_device
from lengthwise.evaluation.scores import positions_at_once, split_batches
from lengthwise.experiment.layout import mask_through_end
from lengthwise.experiment.recipe import Recipe
from lengthwise.models import Model
from lengthwise.runners.cpu import choose_runner


@torch.no_grad()
def perplexity(model: Model, batch: Batch, loops: Int[Tensor, " b"], end_id: int | None) -> Float[Tensor, " b"]:
    """Return, on the CPU, the perplexity exp(−mean log p) of the right answers' symbols, end symbol included, after
    ``loops`` loops. If the answer is an input, each symbol is predicted from the right symbols before it."""
    counted = batch.loss_mask & mask_through_end(batch.targets.where(batch.loss_mask, -1), end_id)
    log_probabilities = _log_probs(model, batch, loops, counted)
    means = torch.stack([row.mean() for row in log_probabilities.split(counted.sum(1).tolist())])
    return means.neg().exp().float()


@torch.no_grad()
def validation_loss(model: Model, recipe: Recipe, problems: Problems) -> float:
    """Return the validation loss: the mean −log p, in nats, of the supervised symbols after the planned loops."""
    model.eval()
    total, count = 0.0, 0
    for _, batch in split_batches(recipe, problems, positions_at_once(model)):
        batch = batch.cut_unsupervised() if recipe.layout.causal else batch
        logs = _log_probs(model, batch, recipe.loops.planned(batch.rounds), batch.loss_mask)
        total, count = total - float(logs.sum()), count + len(logs)
    return total / count


def _log_probs(model: Model, batch: Batch, loops: Int[Tensor, " b"], mask: Bool[Tensor, "b t"]) -> Float[Tensor, " n"]:
    """Return the log probability, in nats, of each target in ``mask`` after each row's own loops, row by row."""
    log_probabilities = choose_runner(model).last(batch.inputs, loops, mask).log_softmax(-1)
    targets = to_device(batch.targets[mask], log_probabilities.device)
    return log_probabilities.gather(1, targets[:, None])[:, 0].cpu()
