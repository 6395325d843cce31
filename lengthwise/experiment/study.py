"""Studies: sets of recipes, the problems they are measured on, and the figures to draw."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from lengthwise.base.results import Claim
from lengthwise.base.types import UsageError
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.stopping import After, Stopping


def parse_names(names: str, allowed: Iterable[str], option: str = "tasks") -> list[str]:
    """Return the names, separated by commas, in the value of an option such as ``--tasks``; ``all`` stands for all
    ``allowed`` names. Raises UsageError for a name that is not allowed or is repeated."""
    allowed = list(allowed)
    chosen = allowed if names == "all" else names.split(",")
    for name in chosen:
        if name not in allowed:
            raise UsageError(f"{option}: {name!r} is not one of: {', '.join(allowed)}")
    check_unique(chosen, option)
    return chosen


def check_unique(names: Sequence[str], option: str) -> None:
    """Raise UsageError if the value of an option repeats a name."""
    if len(set(names)) < len(names):
        raise UsageError(f"{option}: list each only once, not {','.join(names)}")


@dataclass(frozen=True)
class Panel:
    """One figure: recipes with equal training settings, and the problems they are measured on. Recipes and weights were
    chosen only on the sizes in the recipes' ``watch`` and ``chosen_on``."""

    title: str
    recipes: tuple[Recipe, ...]
    sizes: tuple[int, ...]  # sizes that are reported
    hard: bool = False  # also measure the harder set
    far_families: bool = False  # also measure families beyond twice the training length
    natural: bool = False  # also measure the task's own distribution, within and beyond the training range
    curve: tuple[int, ...] = ()  # further sizes, measured on fewer problems
    grid: tuple[int, ...] = ()  # for tasks of two axes: measure every pair of sizes up to these
    loops: tuple[int, ...] = ()  # further numbers of loops, for recipes with a fixed number
    further_rules: tuple[Stopping, ...] = ()  # applied at ``sizes``, to recipes whose loops grow with the problem
    claims: tuple[Claim, ...] = ()  # published results, shown beside ours
    highlight: str = ""  # name of the main recipe, which figures highlight
    name: str = ""  # name of the panel's folder of results; by default made of the title; a study's only panel has none

    def rules(self, recipe: Recipe) -> tuple[Stopping, ...]:
        """Return the stopping rules by which a recipe is measured, the recipe's own rule first."""
        if recipe.loops.adapts:
            return (recipe.stopping, *(rule for rule in self.further_rules if rule != recipe.stopping))
        planned = int(recipe.loops.planned(torch.ones(1, dtype=torch.long)))
        return (recipe.stopping, *(After(count) for count in self.loops if planned > 1))


@dataclass(frozen=True)
class Study:
    """One or more panels of recipes; if there are several, each has its own folder of results."""

    title: str
    panels: tuple[Panel, ...]
    note: str = ""
    samples: int = 1000  # default number of problems per size
    highlight: str = ""  # the main method of all panels, if they share their methods: one figure then shows all panels
    matrix: bool = False  # also draw architectures × tasks, beside published results

    def __post_init__(self) -> None:
        error = f"study {self.title!r}"
        if not self.panels:
            raise UsageError(f"{error}: it has no panels; give it one or more: lw.Panel(title, recipes, sizes)")
        for panel in self.panels:
            if not panel.recipes or not (panel.sizes or panel.grid):
                raise UsageError(f"{error}: panel {panel.title!r} has no {'sizes' if panel.recipes else 'recipes'}")
        if len(self.panels) > 1:
            names = [panel.name or "-".join(re.findall(r"\w+", panel.title.lower())) for panel in self.panels]
            named_panels = tuple(replace(panel, name=name) for panel, name in zip(self.panels, names, strict=True))
            object.__setattr__(self, "panels", named_panels)
            if wrong := [name for name in names if not re.fullmatch(r"\w[\w.-]*", name)]:
                raise UsageError(f"{error}: name={wrong[0]!r} is not a folder name; use letters, digits and dashes")
        for parts, field_name in ((self.panels, "title"), (self.panels, "name"), (self.recipes, "name")):
            names = [getattr(part, field_name).casefold() for part in parts]
            if shared := [name for name in names if names.count(name) > 1]:
                kind = "panels" if parts is self.panels else "recipes"
                raise UsageError(f"{error}: two {kind} have the same {field_name}, {shared[0]!r}; rename one")

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """The recipes of all panels."""
        return tuple(recipe for panel in self.panels for recipe in panel.recipes)

    @property
    def notes(self) -> str:
        """The study's note, and a sentence that lists the sizes on which its recipes were chosen."""
        by_sizes: dict[tuple[int, ...], list[str]] = {}
        for recipe in self.recipes:
            by_sizes.setdefault(tuple(dict.fromkeys(recipe.chosen_on.sizes)), []).append(recipe.name)
        groups = [
            f"{', '.join(names[:2])}{f' and {len(names) - 2} more' * (len(names) > 2)} on {', '.join(map(str, sizes))}"
            for sizes, names in by_sizes.items()
            if sizes
        ]
        chosen_on = f"Chosen: {'; '.join(groups)}; other sizes are only reported." if groups else ""
        return " ".join(filter(None, [self.note, chosen_on]))
