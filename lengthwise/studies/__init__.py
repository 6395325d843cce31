"""Studies: functions that return several recipes, what they are measured on, and the pictures to make of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch

from lengthwise.base.types import UsageError
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.stopping import After, Stopping
from lengthwise.report import Claim


def choose_names(names: str, known: Iterable[str], option: str = "tasks") -> list[str]:
    """Those that ``--tasks``, or another option, names, with commas, or ``all``. UsageError where one is not known."""
    known = list(known)
    named = known if names == "all" else names.split(",")
    for name in named:
        if name not in known:
            raise UsageError(f"{option}: {name!r} is not one of: {', '.join(known)}")
    check_once(named, option)
    return named


def check_once(named: Sequence[str], option: str) -> None:
    """UsageError where one is named twice."""
    if len(set(named)) < len(named):
        raise UsageError(f"{option}: each is named once, not {','.join(named)}")


@dataclass(frozen=True)
class Panel:
    """One picture: recipes that are trained on the same footing, and what they are measured on afterwards. None of the
    sizes chose anything beyond what the recipes' ``watch`` and ``chosen_on`` name."""

    title: str
    recipes: tuple[Recipe, ...]
    sizes: tuple[int, ...]  # reported
    hard: bool = False  # is the harder set measured too?
    far_families: bool = False  # are families measured beyond twice the training length too?
    natural: bool = False  # is the task's own distribution measured too: in training's range, and from there on?
    curve: tuple[int, ...] = ()  # further sizes, measured on fewer problems
    grid: tuple[int, ...] = ()  # a task of two axes: every pair of sizes up to these
    loops: tuple[int, ...] = ()  # further numbers of loops, for recipes that take the same whatever the problem
    also: tuple[Stopping, ...] = ()  # further rules at ``sizes``, for recipes whose loops grow with the problem
    claims: tuple[Claim, ...] = ()  # what has been published, to stand beside ours
    strong: str = ""  # the recipe that its figures are about; they draw it stronger
    name: str = ""  # of its folder of results; by default the title's words, and none for a study's only panel

    def rules(self, recipe: Recipe) -> tuple[Stopping, ...]:
        """The stopping rules by which a recipe is measured; its own comes first."""
        if recipe.loops.adapts:
            return (recipe.stopping, *(rule for rule in self.also if rule != recipe.stopping))
        planned = int(recipe.loops.planned(torch.ones(1, dtype=torch.long)))
        return (recipe.stopping, *(After(count) for count in self.loops if planned > 1))


def _folder_name(panel: Panel) -> str:
    """The name of a panel's folder. UsageError where it can be none."""
    name = panel.name or "-".join(re.findall(r"\w+", panel.title.lower()))
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise UsageError(f"panel {panel.title!r}: name={name!r} is no name of a folder; use letters, digits and dashes")
    return name


@dataclass(frozen=True)
class Study:
    """One or several panels; of several, each has a folder of its own. UsageError where two share a title or a name,
    which would write into one folder."""

    title: str
    panels: tuple[Panel, ...]
    note: str = ""
    samples: int = 1000  # problems per size, unless another number is asked for
    strong: str = ""  # the method that its panels are about, where they share their methods: then one figure shows all
    matrix: bool = False  # draw architectures × tasks too, beside those published before

    def __post_init__(self) -> None:
        if len(self.panels) > 1:
            object.__setattr__(self, "panels", tuple(replace(panel, name=_folder_name(panel)) for panel in self.panels))
        for what in ("title", "name"):
            found = [getattr(panel, what).casefold() for panel in self.panels]
            if twice := [text for text in found if found.count(text) > 1]:
                raise UsageError(f"study {self.title!r}: two panels have the {what} {twice[0]!r}; give each its own")

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        """Those of all panels."""
        return tuple(recipe for panel in self.panels for recipe in panel.recipes)

    @property
    def notes(self) -> str:
        """Its note, and the sizes that were looked at while its recipes were chosen: all others are only reported."""
        by_sizes: dict[tuple[int, ...], list[str]] = {}
        for recipe in self.recipes:
            by_sizes.setdefault(tuple(dict.fromkeys(recipe.chosen_on.sizes)), []).append(recipe.name)
        looked_at = [
            f"{', '.join(names[:2])}{f' and {len(names) - 2} more' * (len(names) > 2)} on {', '.join(map(str, sizes))}"
            for sizes, names in by_sizes.items()
            if sizes
        ]
        chosen_on = f"Chosen: {'; '.join(looked_at)}; other sizes are only reported." if looked_at else ""
        return " ".join(filter(None, [self.note, chosen_on]))
