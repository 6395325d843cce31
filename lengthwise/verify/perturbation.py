"""What happens to answers when weights are changed: whether a model computes with its weights, with all of them, and
always the same."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from lengthwise.base.rng import preserve_generators, stream
from lengthwise.base.types import Batch, Problems
from lengthwise.evaluation.answers import answer_mask, answers
from lengthwise.evaluation.likelihood import loss
from lengthwise.evaluation.scores import right
from lengthwise.experiment.recipe import Recipe
from lengthwise.models import Model
from lengthwise.run import Weights
from lengthwise.runners.cpu import choose

Perturbation = Callable[[Tensor, Generator], Tensor]
MOVED = 1e-6  # a smaller change of a logit, relative to the largest one, is rounding
TINY = 1e-6  # of a tensor's spread: a change that no honest answer depends on
DRAWS = 3  # of each change
TIMES = 3  # that problems are answered, to see whether answers stay


def shuffled(tensor: Tensor, draw: Generator) -> Tensor:
    """Shuffle the numbers."""
    return tensor.flatten()[torch.randperm(tensor.numel(), generator=draw)].view_as(tensor)


def noisy(tensor: Tensor, draw: Generator) -> Tensor:
    """Each number with noise as large as the tensor's spread."""
    return tensor + torch.randn(tensor.shape, generator=draw) * _spread(tensor)


def jittered(tensor: Tensor, draw: Generator) -> Tensor:
    """Each number with noise far below what an answer may depend on."""
    return tensor + torch.randn(tensor.shape, generator=draw) * TINY * _spread(tensor)


def _spread(tensor: Tensor) -> float:
    """The root mean square; of a tensor of zeros 1."""
    return float(tensor.square().mean().sqrt()) or 1.0


@contextmanager
def change_parameters(
    model: nn.Module, change: Perturbation, draw: Generator, only: str | None = None
) -> Iterator[None]:
    """A context in which all parameters of a model, or ``only`` the one of this name, are changed."""
    chosen = {name: value for name, value in model.named_parameters() if only in (None, name)}
    before = {name: value.detach().clone() for name, value in chosen.items()}
    try:
        for value in chosen.values():
            value.data.copy_(change(value.detach().cpu(), draw))
        yield
    finally:
        for name, value in chosen.items():
            value.data.copy_(before[name])


class Answered(NamedTuple):
    """How a model does on some problems."""

    exact: float  # exact match
    loss: float  # mean −log p of the right symbols, in nats


def measure_answers(weights: Weights, problems: Problems) -> Answered:
    """Exact match by the recipe's own stopping rule, and the loss."""
    recipe = weights.recipe
    batch = recipe.layout.write(problems, recipe.task)
    (predicted,) = answers(weights.model, recipe, batch, [recipe.stopping])
    exact = float(right(recipe, batch, predicted).float().mean())
    return Answered(exact, loss(weights.model, recipe, problems))


def measure_perturbed(weights: Weights, problems: Problems, seed: int) -> dict[str, Answered]:
    """How it does as it is, and with its weights ``shuffled``, ``noisy`` and ``jittered``. Of several draws the one
    that does most as the weights themselves: the best of what should fail, the worst of what should not."""
    found = {"as it is": measure_answers(weights, problems)}
    for change, chosen in ((shuffled, max), (noisy, max), (jittered, min)):
        draws = []
        for number in range(DRAWS):
            with change_parameters(weights.model, change, stream(seed, "perturbed", change.__name__, number)):
                draws.append(measure_answers(weights, problems))
        found[change.__name__] = chosen(draws, key=lambda one: (one.exact, -one.loss))
    return found


def chance(problems: Problems) -> float:
    """Exact match of whoever always says the most frequent answer."""
    answer = torch.cat([problems.answer_length[:, None], problems.answer], 1)
    return float(answer.unique(dim=0, return_counts=True)[1].max()) / len(problems)


def find_unused_parameters(weights: Weights, problems: Problems, seed: int) -> list[str]:
    """The names of parameters on which no logit depends at the positions that the loss looks at."""
    recipe, model = weights.recipe, weights.model
    batch = recipe.layout.write(problems, recipe.task)
    before, found = _logits(model, recipe, batch), []
    for number, (name, _) in enumerate(model.named_parameters()):
        with change_parameters(model, noisy, stream(seed, "unused", number), only=name):
            after = _logits(model, recipe, batch)
        if not ((after - before).abs() > MOVED * (1 + before.abs().max())).any() and bool(after.isfinite().all()):
            found.append(name)
    return found


@torch.no_grad()
def _logits(model: Model, recipe: Recipe, batch: Batch) -> Tensor:
    model.eval()
    return choose(model).last(batch.inputs, recipe.loops.planned(batch.rounds), batch.loss_mask).cpu().double()


def unsteady(weights: Weights, problems: Problems) -> tuple[int, int]:
    """Count the problems whose answer differs when they are answered again; and when they stand in reverse order, in
    halves. In the second rounding may tip what is nearly undecided, and rules that choose for several rows may."""
    recipe, rows = weights.recipe, len(problems)
    batch = recipe.layout.write(problems, recipe.task)
    first, *others = [_predict(weights, batch, seed) for seed in range(TIMES)]
    again = torch.stack([_differ(first, other) for other in others]).any(0)
    if recipe.stopping.together > 1:
        return int(again.sum()), 0
    order = torch.arange(rows).flip(0)
    parts = [_predict(weights, batch.take(part), TIMES) for part in order.chunk(2)]
    parts = [F.pad(part, (0, first.shape[1] - part.shape[1])) for part in parts]  # a half may lack the longest rows
    return int(again.sum()), int(_differ(first.flip(0), torch.cat(parts)).sum())


def _predict(weights: Weights, batch: Batch, seed: int) -> Tensor:
    """Each row's symbols up to its first end, "b a", zeros after it."""
    recipe = weights.recipe
    with preserve_generators():
        torch.manual_seed(seed)
        random.seed(seed)
        (predicted,) = answers(weights.model, recipe, batch, [recipe.stopping])
    end = recipe.layout.end(recipe.task)
    return (predicted.symbols + 1) * answer_mask(predicted.symbols, batch.answer_slots, end)


def _differ(one: Tensor, two: Tensor) -> Bool[Tensor, " b"]:
    return (one != two).any(1)
