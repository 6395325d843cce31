"""Laws of recipes and studies; see ``testing/laws.py``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from lengthwise.base.fields import Config
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.study import Study
from lengthwise.testing.laws import Findings, Law, check_classes, check_laws, list_laws
from lengthwise.testing.laws_of_parts import Broken
from lengthwise.training.trainer import rehearse

NEAR = 1.5  # sizes used to choose weights are at most this multiple of the training length


def it_trains_and_is_measured(recipe: Recipe) -> None:
    """The recipe's first and last training steps, validation and longest problems run without errors."""
    rehearse(recipe, torch.device("cpu"))


def watched_sizes_stay_near_training(recipe: Recipe) -> None:
    """The recipe watches sizes up to 1.5 times its training length only, so that longer sizes test generalization."""
    furthest = max(_watched_sizes(recipe), default=0)
    if furthest > NEAR * recipe.lengths.top:
        raise Broken(f"it trains to {recipe.lengths.top}, and watch.sizes names {furthest}")


def it_measures_unwatched_sizes(study: Study) -> None:
    """Each panel measures a size beyond those that its recipes watch or, without watched sizes, train on."""
    for panel in study.panels:
        chosen = max((max(_watched_sizes(recipe), default=recipe.lengths.top) for recipe in panel.recipes), default=0)
        if max((*panel.sizes, *panel.grid), default=0) <= chosen:
            raise Broken(f"{panel.title}: chosen up to {chosen}, measured up to {max(panel.sizes, default=0)}")


def recipe_names_are_unique(study: Study) -> None:
    """No two recipes of a study share a name."""
    names = [recipe.name for recipe in study.recipes]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise Broken(f"two recipes are called {twice[0]!r}")


def _watched_sizes(recipe: Recipe) -> tuple[int, ...]:
    return recipe.watch.sizes if recipe.watch.every else ()


def check_recipes(recipes: Mapping[str, Callable[[], Recipe]]) -> Findings:
    """Check recipes, given by name, against their laws."""

    def can_be_built(name: str) -> None:
        """The recipe can be created."""
        recipes[name]()

    def it_is_called_by_its_name(name: str) -> None:
        """The recipe's function, or its key in a family, has the recipe's name."""
        if (other := recipes[name]().name) != name:
            raise Broken(f"it is called {name}, and its name is {other}")

    return _check_built(recipes, Recipe, [can_be_built, it_is_called_by_its_name])


def check_studies(studies: Mapping[str, Callable[[], Study]]) -> Findings:
    """Check studies against their laws."""

    def can_be_built(name: str) -> None:
        """The study's function works without arguments."""
        studies[name]()

    return _check_built(studies, Study, [can_be_built])


def _check_built(functions: Mapping[str, Callable[[], Any]], kind: type, name_laws: Sequence[Law]) -> Findings:
    """Call each function whose name keeps the ``name_laws``, and check its result against the laws of its kind."""
    findings = Findings()
    for name, build in functions.items():
        for law in name_laws:
            findings += check_laws(name, name, [law])
            if not findings[-1].holds:
                break
        else:
            findings += check_laws(build(), name, list_laws(kind, sys.modules[__name__]))
    return findings


def check_all(
    kinds: Iterable[type[Config]],
    recipes: Mapping[str, Callable[[], Recipe]],
    studies: Mapping[str, Callable[[], Study]],
) -> Findings:
    """Check all parts, recipes and studies of a module."""
    return Findings([*check_classes(kinds), *check_recipes(recipes), *check_studies(studies)])
