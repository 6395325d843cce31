"""Measurements during training, and the selection of the best weights."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

from lengthwise.base.types import Problems
from lengthwise.evaluation import scores
from lengthwise.evaluation.answers import predict
from lengthwise.experiment import data
from lengthwise.experiment.recipe import Recipe
from lengthwise.models import Model


class Validator:
    """Measures what the recipe's ``watch`` specifies. ``best`` holds the weights with the highest merit (the earliest
    of equal ones), or none if the recipe's ``keep`` is ``last``. Merit is mean exact match if ``keep`` is ``best``, and
    negative validation loss if ``keep`` is ``lowest-loss``."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.best: dict[str, Any] = {"merit": -math.inf, "step": 0, "weights": {}}

    def measure(self, model: Model, step: int) -> dict[str, Any]:
        """Measure a model after a step; return a row of metrics, and keep its weights if they are the best."""
        recipe, watch = self.recipe, self.recipe.watch
        exact = {}
        # A size that the task lacks is replaced by its next smaller one; repeated sizes are dropped.
        for size in dict.fromkeys(map(recipe.task.select_part("validation").round_to_valid_size, watch.sizes)):
            exact[str(size)] = scores.measure_exact_match(model, recipe, recipe.sizes(size), watch.count, step=step)
        row: dict[str, Any] = {"step": step, "exact": exact}
        if watch.probes:
            row["perplexity"] = {}
        for probe in watch.probes:
            batch = recipe.layout.write(recipe.task.parse(probe), recipe.task)
            loops = predict(model, recipe, batch, recipe.stopping).loops
            value = float(scores.perplexity(model, batch, loops, recipe.layout.end_id(recipe.task)))
            row["perplexity"][probe] = finite_or_none(value)
        if watch.validation:
            row["validation_loss"] = finite_or_none(scores.validation_loss(model, recipe, self.validation_problems))
        model.train()
        if recipe.keep != "last" and (merit := self._compute_merit(row)) > self.best["merit"]:
            weights = {name: value.detach().clone() for name, value in model.state_dict().items()}
            self.best = {"merit": merit, "step": step, "weights": weights}
        return row

    @cached_property
    def validation_problems(self) -> Problems:
        """The problems on which the validation loss is measured."""
        return data.draw_validation_problems(self.recipe, self.recipe.watch.validation)

    def _compute_merit(self, row: dict[str, Any]) -> float:
        if self.recipe.keep == "best":
            return sum(row["exact"].values()) / len(row["exact"])
        loss = row["validation_loss"]
        return -math.inf if loss is None else -loss  # NaN is the worst, 0 the best


def finite_or_none(value: float) -> float | None:
    """Return the value, or None if it is infinite or NaN, which JSON cannot hold."""
    return value if math.isfinite(value) else None
