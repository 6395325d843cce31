"""Abacus embeddings (McLeish et al., 2024): length generalization of sums, and what the embeddings contribute."""

from __future__ import annotations

from typing import Literal

from lengthwise.base.fields import validate_arguments
from lengthwise.base.results import Claim
from lengthwise.experiment.study import Panel, Study, parse_names
from lengthwise.recipes import abacus as abacus_recipes

SECOND_HAND_SOURCE = "paper, quoted second-hand"
MAP_LOOPS = (1, 2, 8, 16, 32)  # numbers of loops in the blog's maps

CLAIMS = (
    Claim("Abacus, 16 × 1", 100, "0.929 over 21–100 digits", SECOND_HAND_SOURCE),
    Claim("Abacus, looped with injection", 100, "0.991 over 21–100 digits", SECOND_HAND_SOURCE),
    Claim("Abacus, 1 × 16, the reproduction", 40, "0.613 over the 40 × 40 map, 0.613 at 32 loops", "its text"),
    Claim("Abacus, at its best", 120, "reached from 20 digits", SECOND_HAND_SOURCE),
    Claim("Position coupling, trained to 30", 200, "above 0.95", "its paper"),
    Claim("Zhou et al., 2024, trained to 40", 100, "above 0.98, the best seed; large variance over seeds", "its paper"),
    Claim("AdderBoard, 62 parameters", 10, "0.99 or more, the smallest trained transformer", "its README, 2026-03"),
)


@validate_arguments
def abacus(tasks: str = "all", scale: Literal["cpu", "blog", "paper"] = "cpu") -> Study:
    """Abacus embeddings: a map of sums of up to 40 × 40 digits, comparisons of positional encodings, of layers
    and loops, and other tasks."""
    recipes = abacus_recipes.abacus_addition(), abacus_recipes.abacus_addition_full()
    loops, grid, sizes = (), (40, 40), (60, 100)
    if scale == "blog":
        recipes, loops = (abacus_recipes.blog_abacus_addition(),), MAP_LOOPS
    elif scale == "paper":  # the paper's map, and the end of its diagonal
        recipes, loops = tuple(abacus_recipes.build_decoders().values()), MAP_LOOPS
        grid, sizes = (100, 100), (60, 100, 160)
    first = {"grid": grid, "loops": loops, "claims": CLAIMS, "highlight": recipes[0].name, "name": "addition"}
    panels = [Panel("Addition, trained on up to 20 digits", recipes, sizes, **first)]
    if scale == "cpu":
        compared = {"highlight": "abacus-positions-abacus", "name": "positions"}
        title = "Positions, trained on up to 5 digits"
        recipes = tuple(abacus_recipes.build_encoding_variants().values())
        panels.append(Panel(title, recipes, tuple(range(1, 16)), **compared))
        compared = {"loops": MAP_LOOPS, "highlight": "abacus-split-8x2", "name": "splits"}
        title = "Sixteen layers, split into layers and loops"
        panels.append(Panel(title, tuple(abacus_recipes.build_depth_splits().values()), (), grid=(12, 12), **compared))
        for recipe in abacus_recipes.build_other_tasks().values():
            name, top = recipe.task.name, recipe.lengths.top
            title = f"{name.replace('-', ' ').capitalize()}, trained on up to {top}"
            panels.append(Panel(title, (recipe,), (), grid=(2 * top, 2 * top), name=name))
    by_name = {panel.name: panel for panel in panels}
    return Study("Abacus embeddings", tuple(by_name[name] for name in parse_names(tasks, by_name)), samples=100)
