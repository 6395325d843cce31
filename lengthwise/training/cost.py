"""Estimates the cost of training a recipe from a few of its steps."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch.utils.flop_counter import FlopCounterMode

from lengthwise.base.progress import Progress
from lengthwise.evaluation.follow import work
from lengthwise.evaluation.scores import default_sizes, exact_match
from lengthwise.recipe.demand import SPEED, of_training, parameters
from lengthwise.recipe.recipe import Recipe, Watch
from lengthwise.recipe.source import Fresh
from lengthwise.training.computing import computing
from lengthwise.training.trainee import Trainee

PATIENCE = 60.0  # seconds of one step


@dataclass(frozen=True)
class Cost:
    """The cost of a training run. Means over the run for one step, forward and backward."""

    parameters: int
    operations: float  # floating-point operations in matrix products, per step; a multiply–add counts as two
    seconds: float  # processor time per step, measured on one thread of this machine
    steps: int
    measured: bool = True  # or estimated, where a step takes too long

    @property
    def minutes(self) -> float:
        """Minutes of processor time for the full training."""
        return self.steps * self.seconds / 60


def evaluation_seconds(recipe: Recipe, samples: int = 1000) -> float:
    """Processor seconds of evaluating a trained model at the default lengths, on so many problems each: what a few
    problems of the training length take, scaled up."""
    sizes, few = default_sizes(recipe), min(samples, 16)
    top = recipe.sizes(recipe.lengths.top)
    with computing(1):
        start = time.process_time()
        exact_match(recipe.build().eval(), recipe, top, few)
        seconds = time.process_time() - start
    return seconds * samples / few * sum(work(recipe, size) for size in sizes) / work(recipe, top)


def operations(recipe: Recipe) -> float:
    """``Cost.operations`` of a recipe, measured on an eighth of its batch and scaled up."""
    return cost(recipe, rows=max(1, recipe.batch // 8), timed=False).operations


def operations_by_name(recipes: Iterable[Recipe], progress: Progress | None = None) -> dict[str, float]:
    """``operations`` of each recipe, by name; the last one counts if several share a name."""
    named = {recipe.name: recipe for recipe in recipes}
    line, found = (progress or Progress(quiet=True)).line("operations of a step", len(named)), {}
    for number, (name, recipe) in enumerate(named.items()):
        line.show(number, name)
        found[name] = operations(recipe)
    line.show(len(named))
    return found


def cost(recipe: Recipe, moments: int = 4, rows: int | None = None, *, timed: bool = True) -> Cost:
    """Run a few steps at ``moments`` evenly spaced points of the training, since curricula make later steps dearer, and
    average. With ``rows``, batches are smaller and results scaled up: faster, and slightly too high. Where a step takes
    longer than ``PATIENCE``, nothing is run. ``seconds`` are 0 unless ``timed``."""
    rows = min(rows or recipe.batch, recipe.batch)
    seconds_per_step = of_training(recipe).seconds / recipe.steps
    if seconds_per_step * rows / recipe.batch > PATIENCE:
        return Cost(parameters(recipe), seconds_per_step * SPEED, seconds_per_step, recipe.steps, measured=False)
    # A fixed set's problems cost about as much as new ones, but drawing the set takes longer than all these steps.
    small = replace(recipe, watch=Watch(), keep="last", batch=rows, source=Fresh())
    trainee = Trainee(small, torch.device("cpu"))
    operations, seconds = [], []
    with computing(1):
        if timed:
            trainee.advance()  # the first step includes one-time allocations
        for moment in range(moments):
            trainee.step = int(recipe.steps * (moment + 0.5) / moments)
            with FlopCounterMode(display=False) as counter:
                trainee.advance()
            operations.append(counter.get_total_flops())
            if timed:
                start = time.process_time()
                trainee.advance()
                seconds.append(time.process_time() - start)
    times = recipe.batch / rows / moments
    return Cost(
        sum(p.numel() for p in trainee.model.parameters()), sum(operations) * times, sum(seconds) * times, recipe.steps
    )
