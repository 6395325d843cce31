"""Studies: functions that return several recipes and the picture to make of them."""

from __future__ import annotations

from dataclasses import dataclass

from lengthwise.recipe import Recipe


@dataclass(frozen=True)
class Study:
    """Recipes that are trained on the same footing, and what they are measured on afterwards."""

    title: str
    recipes: tuple[Recipe, ...]
    sizes: tuple[int, ...]  # reported; none of them chose anything beyond what the recipes' `watch` names
    hard_sizes: tuple[int, ...] = ()  # sizes at which the harder set is measured too
    note: str = ""
