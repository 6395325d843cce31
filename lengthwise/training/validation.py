"""Measurements during training, and the best weights so far."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

from torch import Tensor

from lengthwise.base.types import Problems
from lengthwise.evaluation import likelihood, scores
from lengthwise.evaluation.answers import answer
from lengthwise.experiment import data
from lengthwise.experiment.recipe import Recipe
from lengthwise.models import Model


class Validator:
    """Measures what a recipe's ``watch`` names. ``best`` are the weights with the highest merit, the first if equal:
    exact match or negative validation loss, as the recipe's ``keep`` says; empty if that is ``last``."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.best: dict[str, Any] = {"merit": -math.inf, "step": 0, "weights": {}}

    def measure(self, model: Model, step: int) -> dict[str, Any]:
        """Measure a model after a step; return a row of metrics, and keep its weights if they are the best."""
        recipe, watch = self.recipe, self.recipe.watch
        exact = {}
        # A size that the task lacks is replaced by its next smaller one; repeated sizes are dropped.
        for size in dict.fromkeys(map(recipe.task.part("validation").nearest_size, watch.sizes)):
            exact[str(size)] = scores.exact_match(model, recipe, recipe.sizes(size), watch.count, step=step)
        row: dict[str, Any] = {"step": step, "exact": exact}
        if watch.probes:
            row["perplexity"] = {probe: self._perplexity(model, probe) for probe in watch.probes}
        if watch.validation:
            row["validation_loss"] = finite(likelihood.loss(model, recipe, self.held_out))
        model.train()
        if recipe.keep != "last" and (merit := self._merit(row)) > self.best["merit"]:
            weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
            self.best = {"merit": merit, "step": step, "weights": weights}
        return row

    def weights_of(self, model: Model) -> dict[str, Tensor]:
        """Return the weights to save: the best or, if none were kept, the model's last ones."""
        return self.best["weights"] or model.state_dict()

    @cached_property
    def held_out(self) -> Problems:
        """The problems of the validation loss."""
        return data.validation_problems(self.recipe, self.recipe.watch.validation)

    def _merit(self, row: dict[str, Any]) -> float:
        if self.recipe.keep == "best":
            return sum(row["exact"].values()) / len(row["exact"])
        loss = row["validation_loss"]
        return -math.inf if loss is None else -loss  # NaN is the worst, 0 the best

    def _perplexity(self, model: Model, probe: str) -> float | None:
        recipe = self.recipe
        batch = recipe.layout.write(recipe.task.parse(probe), recipe.task)
        loops = answer(model, recipe, batch, recipe.stopping).loops
        return finite(float(likelihood.perplexity(model, batch, loops, recipe.layout.end(recipe.task))))


def finite(value: float) -> float | None:
    """Return the value, or None if JSON cannot hold it."""
    return value if math.isfinite(value) else None
