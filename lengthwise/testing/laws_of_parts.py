"""Laws of all parts, of recipes, and of studies."""

from __future__ import annotations

import dataclasses
import json

import torch

from lengthwise.base import fields
from lengthwise.base.fields import Config
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.study import Study
from lengthwise.training.trainer import try_training


class Broken(AssertionError):
    """The error of a law that does not hold; its message describes the failing case on one line."""


def part_equals_its_json_copy(part: Config) -> None:
    """The part equals its copy that was written as JSON and read back."""
    if type(part).__name__.startswith("_"):
        raise Broken(f"{type(part).__name__} starts with _, so no recipe can contain it: rename it")
    again = fields.decode(type(part), json.loads(json.dumps(fields.encode(part))))
    if again != part:
        raise Broken(f"{fields.format_part(part)} comes back from JSON as {fields.format_part(again)}")


def part_is_frozen(part: Config) -> None:
    """The part is a frozen dataclass, so that a run's recipe cannot change."""
    if not type(part).__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise Broken(f"{type(part).__name__} is not frozen: write @dataclass(frozen=True)")
    hash(part)


def part_has_a_docstring(part: Config) -> None:
    """The class has a docstring, which ``list`` and ``show`` print."""
    about = type(part).__doc__ or ""
    if not about or about.startswith(f"{type(part).__name__}("):  # the default docstring of dataclasses
        raise Broken(f"{type(part).__name__} has no docstring")
    if not dataclasses.is_dataclass(part):
        raise Broken(f"{type(part).__name__} is not a dataclass")


def recipe_can_be_trained_and_measured(recipe: Recipe) -> None:
    """The recipe's first and last training steps, validation and longest problems run without errors."""
    try_training(recipe, torch.device("cpu"))


def watched_sizes_stay_near_training(recipe: Recipe) -> None:
    """The recipe watches only sizes up to 1.5 times its training length; longer sizes are kept for tests."""
    furthest = max(_list_watched(recipe), default=0)
    if furthest > 1.5 * recipe.lengths.top:
        raise Broken(f"watch.sizes contains {furthest}, more than 1.5 times the training length, {recipe.lengths.top}")


def panels_measure_unwatched_sizes(study: Study) -> None:
    """Each panel measures a size beyond those that its recipes watch or, if they watch none, beyond the training
    length."""
    for panel in study.panels:
        watched = max((max(_list_watched(recipe), default=recipe.lengths.top) for recipe in panel.recipes), default=0)
        measured = max((*panel.sizes, *panel.grid), default=0)
        if measured <= watched:
            watching = f"recipes watch or train on sizes up to {watched}"
            raise Broken(f"{panel.title}: {watching}, but the panel measures only up to {measured}")


def _list_watched(recipe: Recipe) -> tuple[int, ...]:
    return recipe.watch.sizes if recipe.watch.every else ()
