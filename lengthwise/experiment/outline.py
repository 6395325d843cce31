"""The facts of a recipe that a report shows, as plain values."""

from __future__ import annotations

from lengthwise.base.results import RunOutline
from lengthwise.experiment.recipe import Recipe


def outline(recipe: Recipe) -> RunOutline:
    """Collect the facts that follow from a recipe's classes, so that a report needs no torch."""
    axes = tuple(recipe.task.axes)
    return RunOutline(
        id=recipe.id,
        seedless_id=recipe.seedless_id,
        name=recipe.name,
        seed=recipe.seed,
        data_seed=recipe.data_seed,
        task=recipe.task.name,
        axes=axes,
        top=recipe.lengths.top,
        tops=recipe.tops,
        steps=recipe.steps,
        stopping=recipe.stopping.name,
        model=type(recipe.model).__name__,
        looked_at=recipe.looked_at,
    )
