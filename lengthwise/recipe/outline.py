"""What a report says of a recipe, as plain values."""

from __future__ import annotations

from dataclasses import replace

from lengthwise.base.results import RunOutline
from lengthwise.recipe.recipe import Recipe


def outline(recipe: Recipe) -> RunOutline:
    """The facts that only a recipe's classes can work out of its fields."""
    axes = tuple(recipe.task.axes)
    return RunOutline(
        id=recipe.id,
        seedless_id=replace(recipe, seed=0, data_seed=0).id,
        name=recipe.name,
        seed=recipe.seed,
        data_seed=recipe.data_seed,
        task=recipe.task.name,
        axes=axes,
        top=recipe.lengths.top,
        tops=recipe.lengths.tops(len(axes)),
        steps=recipe.steps,
        stopping=recipe.stopping.name,
        model=type(recipe.model).__name__,
        looked_at=recipe.looked_at,
    )
