"""The cost of training and measuring a recipe."""

from __future__ import annotations

from typing import Any

from lengthwise.experiment.recipe import Recipe
from lengthwise.runners import cpu
from lengthwise.training.cost import MAX_STEP_SECONDS, cost, evaluation_seconds, known_cost

SOURCES = {  # of the estimates
    "measured": "steps were run here just now; within a factor of two beside like work",
    "stored": "steps were run on another machine when this version was made; --measure runs some here",
    "estimated": "from the sizes of model and rows, to within a few times",
}


def describe_cost(recipe: Recipe, *, measure: bool = False) -> dict[str, Any]:
    """Return a recipe's parameters, operations and minutes of training, the ``source`` of these, and its runner.
    They are stored or estimated; with ``measure``, some steps and evaluations are run."""
    price, evaluation = cost(recipe) if measure else known_cost(recipe), None
    if measure and price.source == "measured":
        evaluation = evaluation_seconds(recipe) / 60
    is_slow = price.seconds > MAX_STEP_SECONDS
    return {
        "parameters": price.parameters,
        "operations_per_step": price.operations,
        "seconds_per_step": price.seconds,
        "minutes": price.minutes,
        "source": price.source,
        "evaluation_minutes": evaluation,
        "runner": "not looked at: a step takes too long" if is_slow else cpu.describe_choice(recipe.build()),
    }
