"""The recipes and sizes between which a sweep may choose."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lengthwise.base.errors import UsageError
from lengthwise.base.results import AnySize
from lengthwise.experiment.recipe import Recipe

SHORT = 1.3  # times the training length: the largest size at which recipes may be compared to choose one


def change_recipe(recipe: Recipe, point: Mapping[str, str]) -> Recipe:
    """Return the recipe at a point of the sweep. Raises UsageError if it has another task or training length, since
    recipes are compared at one size."""
    found = recipe.change(f"{path}={value}" for path, value in point.items())
    if (found.task, found.lengths.top) != (recipe.task, recipe.lengths.top):
        changed = ", ".join(f"{path}={value}" for path, value in point.items())
        raise UsageError(f"{changed}: keep the task and the training length, {recipe.lengths.top}, to compare recipes")
    return found


def largest_choice(recipe: Recipe) -> int:
    """Return the largest size at which a recipe may be chosen: a short step beyond its training lengths."""
    top = recipe.lengths.top
    return max(top + 1, int(SHORT * top))


def check_sizes(recipe: Recipe, sizes: Iterable[AnySize]) -> None:
    """Raise UsageError for a size too large to choose on: a size used to choose a recipe no longer tests it."""
    most = largest_choice(recipe)
    for size in sizes:
        if max(recipe.sizes(size)) > most:
            raise UsageError(
                f"a recipe is chosen near its training lengths, up to {most} here: {size} is a test; "
                "measure it afterwards, with `lengthwise evaluate`"
            )
