"""Test whether a model's answers are deterministic and, with perturbed weights, whether they depend on all weights."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from lengthwise.base.rng import preserve_generators, stream
from lengthwise.base.types import Batch, Problems
from lengthwise.evaluation.answers import mask_answers, predict_by_rules
from lengthwise.evaluation.scores import mask_right_rows, validation_loss
from lengthwise.runners.cpu import choose_runner
from lengthwise.runs.run import Weights

Perturbation = Callable[[Tensor, Generator], Tensor]
DRAWS_PER_PERTURBATION = 3
REPETITIONS = 3  # number of times problems are answered, to test for determinism


def shuffle_values(tensor: Tensor, generator: Generator) -> Tensor:
    """Return a tensor of the same shape with the values in random order."""
    return tensor.flatten()[torch.randperm(tensor.numel(), generator=generator)].view_as(tensor)


def add_noise(tensor: Tensor, generator: Generator, scale: float = 1.0) -> Tensor:
    """Return the tensor plus normal noise. Its standard deviation is ``scale`` times the tensor's root mean square, or
    ``scale`` if the tensor is zero."""
    root_mean_square = float(tensor.square().mean().sqrt()) or 1.0
    return tensor + torch.randn(tensor.shape, generator=generator) * scale * root_mean_square


@contextmanager
def perturb_parameters(
    model: nn.Module, perturb: Perturbation, generator: Generator, only_parameter: str | None = None
) -> Iterator[None]:
    """Within a ``with`` block, perturb all parameters of a model, or only the one named ``only_parameter``."""
    chosen = {name: value for name, value in model.named_parameters() if only_parameter in (None, name)}
    original = {name: value.detach().clone() for name, value in chosen.items()}
    try:
        for value in chosen.values():
            value.data.copy_(perturb(value.detach().cpu(), generator))
        yield
    finally:
        for name, value in chosen.items():
            value.data.copy_(original[name])


class AnswerMetrics(NamedTuple):
    """Exact match and loss of a model on some problems."""

    exact: float
    loss: float  # mean −log p of the correct symbols, in nats


def measure_answers(weights: Weights, problems: Problems) -> AnswerMetrics:
    """Return exact match under the recipe's own stopping rule, and the loss."""
    recipe = weights.recipe
    batch = recipe.layout.write(problems, recipe.task)
    (predicted,) = predict_by_rules(weights.model, recipe, batch, [recipe.stopping])
    exact = float(mask_right_rows(recipe, batch, predicted).float().mean())
    return AnswerMetrics(exact, validation_loss(weights.model, recipe, problems))


def measure_perturbed_weights(weights: Weights, problems: Problems, seed: int) -> dict[str, AnswerMetrics]:
    """Return the metrics with "unchanged", "shuffled", "noisy" and "jittered" weights. Of several random draws, the
    best counts if the model should fail (shuffled, noisy), the worst if it should not (jittered)."""
    measured = {"unchanged": measure_answers(weights, problems)}
    jitter = partial(add_noise, scale=1e-6)  # far too small to affect a genuine answer
    for name, change, chosen in ("shuffled", shuffle_values, max), ("noisy", add_noise, max), ("jittered", jitter, min):
        draws = []
        for number in range(DRAWS_PER_PERTURBATION):
            with perturb_parameters(weights.model, change, stream(seed, "perturbed", name, number)):
                draws.append(measure_answers(weights, problems))
        measured[name] = chosen(draws, key=lambda outcome: (outcome.exact, -outcome.loss))
    return measured


def find_unused_parameters(weights: Weights, problems: Problems, seed: int) -> list[str]:
    """Return the names of parameters that do not affect any logit at the positions of the loss."""
    recipe, model = weights.recipe, weights.model
    batch = recipe.layout.write(problems, recipe.task)
    original_logits, unused = _compute_logits(weights, batch), []
    for number, (name, _) in enumerate(model.named_parameters()):
        with perturb_parameters(model, add_noise, stream(seed, "unused", number), only_parameter=name):
            changed_logits = _compute_logits(weights, batch)
        # Smaller changes, relative to the largest logit, are rounding.
        change = (changed_logits - original_logits).abs().max()
        if change <= 1e-6 * (1 + original_logits.abs().max()):  # False for NaN
            unused.append(name)
    return unused


@torch.no_grad()
def _compute_logits(weights: Weights, batch: Batch) -> Tensor:
    weights.model.eval()
    loops = weights.recipe.loops.planned(batch.rounds)
    return choose_runner(weights.model).last(batch.inputs, loops, batch.loss_mask).cpu().double()


def count_changed_answers(weights: Weights, problems: Problems) -> tuple[int, int]:
    """Return how many answers change if the problems are repeated, and how many if they are answered in reverse order,
    in two halves. Rounding may change some of the latter, whose number is 0 for rules that choose loops per batch."""
    recipe, rows = weights.recipe, len(problems)
    batch = recipe.layout.write(problems, recipe.task)
    first, *repeats = [_predict_answers(weights, batch, seed) for seed in range(REPETITIONS)]
    changed = torch.stack([(first != repeat).any(1) for repeat in repeats]).any(0)
    if recipe.stopping.together > 1:
        return int(changed.sum()), 0
    parts = [_predict_answers(weights, batch.take(part), REPETITIONS) for part in torch.arange(rows).flip(0).chunk(2)]
    # A half without the longest rows has fewer slots.
    reverse = torch.cat([F.pad(part, (0, first.shape[1] - part.shape[1])) for part in parts])
    return int(changed.sum()), int((first.flip(0) != reverse).any(1).sum())


def _predict_answers(weights: Weights, batch: Batch, seed: int) -> Tensor:
    """Return each row's answer: symbol ids plus 1, up to and including the first end symbol, then zeros."""
    recipe = weights.recipe
    with preserve_generators():
        torch.manual_seed(seed)
        random.seed(seed)
        (predicted,) = predict_by_rules(weights.model, recipe, batch, [recipe.stopping])
    end = recipe.layout.end_id(recipe.task)
    return (predicted.symbols + 1) * mask_answers(predicted.symbols, batch.answer_slots, end)
