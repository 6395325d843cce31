"""Limits on the recipes and sizes that a sweep compares to choose a recipe."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lengthwise.base.errors import UsageError
from lengthwise.base.results import AnySize
from lengthwise.experiment.recipe import Recipe

SHORT = 1.3  # times the training length: the largest size at which recipes may be compared to choose one


def change_recipe(recipe: Recipe, point: Mapping[str, str]) -> Recipe:
    """Return the recipe with a sweep point's changes. Raises UsageError if they change the task or the training length,
    since recipes are compared at one size."""
    found = recipe.change(f"{path}={value}" for path, value in point.items())
    if (found.task, found.lengths.top) != (recipe.task, recipe.lengths.top):
        changed = ", ".join(f"{path}={value}" for path, value in point.items())
        raise UsageError(f"{changed}: keep the task and the training length, {recipe.lengths.top}, to compare recipes")
    return found


def largest_size_for_choosing(recipe: Recipe) -> int:
    """Return the largest size at which recipes may be compared to choose one, slightly beyond the training lengths."""
    top = recipe.lengths.top
    return max(top + 1, int(SHORT * top))


def check_sizes(recipe: Recipe, sizes: Iterable[AnySize]) -> None:
    """Raise UsageError for a size too large to choose a recipe by, since a size used for choosing no longer tests
    it."""
    most = largest_size_for_choosing(recipe)
    for size in sizes:
        if max(recipe.sizes(size)) > most:
            raise UsageError(
                f"a recipe is chosen near its training lengths, up to {most} here: {size} is a test; "
                "measure it afterwards, with `lengthwise evaluate`"
            )
