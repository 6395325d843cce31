"""What a recipe costs, before paying for it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch.utils.flop_counter import FlopCounterMode

from lengthwise.recipe.recipe import Recipe, Watch
from lengthwise.recipe.source import Fresh
from lengthwise.training.loop import Trainee, computing


@dataclass(frozen=True)
class Cost:
    """``operations`` are of the matrix products of one step, forward and backward, a multiplication and an addition
    counted as two; both they and ``seconds`` are means over the run's course."""

    parameters: int
    operations: float  # per step
    seconds: float  # of processor time per step, measured here on one thread
    steps: int

    @property
    def minutes(self) -> float:
        """The whole training."""
        return self.steps * self.seconds / 60


def operations(recipe: Recipe) -> float:
    """Those of one step, as in ``Cost``, on an eighth of the batch and scaled up."""
    return cost(recipe, rows=max(1, recipe.batch // 8)).operations


def operations_by_name(recipes: Iterable[Recipe]) -> dict[str, float]:
    """Operations of a step, for each recipe by its name; of several with one name, for the last."""
    return {name: operations(recipe) for name, recipe in {recipe.name: recipe for recipe in recipes}.items()}


def cost(recipe: Recipe, moments: int = 4, rows: int | None = None) -> Cost:
    """Run a few steps at evenly spaced moments of the training (curricula make later ones dearer) and average. With
    ``rows``, on smaller batches, and scaled up: quicker, and a little too high."""
    rows = min(rows or recipe.batch, recipe.batch)
    # New problems cost about what those of a fixed set do; to make the set takes longer than all these steps.
    small = replace(recipe, watch=Watch(), keep="last", batch=rows, source=Fresh())
    trainee = Trainee(small, torch.device("cpu"))
    operations, seconds = [], []
    with computing(1):
        trainee.advance()  # the first step pays for what is allocated once
        for moment in range(moments):
            trainee.step = int(recipe.steps * (moment + 0.5) / moments)
            with FlopCounterMode(display=False) as counter:
                trainee.advance()
            operations.append(counter.get_total_flops())
            start = time.process_time()
            trainee.advance()
            seconds.append(time.process_time() - start)
    parameters = sum(p.numel() for p in trainee.model.parameters())
    times = recipe.batch / rows / moments
    return Cost(parameters, sum(operations) * times, sum(seconds) * times, recipe.steps)
