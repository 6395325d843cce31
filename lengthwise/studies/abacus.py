"""Abacus embeddings (McLeish et al. 2024): length generalization of sums, and what the embeddings contribute."""

from __future__ import annotations

from lengthwise.base.results import Claim
from lengthwise.base.types import UsageError
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.study import Panel, Study, choose_names
from lengthwise.recipes.abacus import (
    abacus_addition,
    abacus_addition_full,
    blog_abacus_addition,
    paper,
    positions,
    splits,
)
from lengthwise.recipes.abacus import tasks as other_tasks

SECOND_HAND = "paper, quoted second-hand"
LOOPS = (1, 2, 8, 16, 32)  # loops in the blog's maps
FAR, FARTHEST = (100, 100), 160  # the paper's map, and the end of its diagonal

CLAIMS = (
    Claim("Abacus, 16 × 1", 100, "0.929 over 21–100 digits", SECOND_HAND),
    Claim("Abacus, looped with injection", 100, "0.991 over 21–100 digits", SECOND_HAND),
    Claim("Abacus, 1 × 16, the reproduction", 40, "0.613 over the 40 × 40 map, 0.613 at 32 loops", "its text"),
    Claim("Abacus, at its best", 120, "reached from 20 digits", SECOND_HAND),
    Claim("Position coupling, trained to 30", 200, "above 0.95", "its paper"),
    Claim("Zhou et al. 2024, trained to 40", 100, "above 0.98, the best seed; large variance over seeds", "its paper"),
    Claim("AdderBoard, 62 parameters", 10, "0.99 or more, the smallest trained transformer", "its README, 2026-03"),
)


def abacus(tasks: str = "all", scale: str = "cpu") -> Study:
    """Abacus embeddings: the map of sums up to 40 × 40 digits; positions compared; layers and loops; other tasks."""
    panels = {
        "cpu": _cpu_panels(),
        "blog": (_map_panel((blog_abacus_addition(),), loops=LOOPS),),
        "paper": (_map_panel(tuple(paper().values()), loops=LOOPS, grid=FAR, sizes=(60, 100, FARTHEST)),),
    }
    if scale not in panels:
        raise UsageError(f"scale: {scale!r} is not one of: {', '.join(panels)}")
    by_name = {panel.name: panel for panel in panels[scale]}
    return Study(
        title="Abacus embeddings",
        panels=tuple(by_name[name] for name in choose_names(tasks, by_name)),
        samples=100,
    )


def _map_panel(
    recipes: tuple[Recipe, ...],
    loops: tuple[int, ...] = (),
    grid: tuple[int, int] = (40, 40),
    sizes: tuple[int, ...] = (60, 100),
) -> Panel:
    return Panel(
        title="Addition, trained on up to 20 digits",
        recipes=recipes,
        sizes=sizes,
        grid=grid,
        loops=loops,
        claims=CLAIMS,
        strong=recipes[0].name,
        name="addition",
    )


def _cpu_panels() -> tuple[Panel, ...]:
    return (
        _map_panel((abacus_addition(), abacus_addition_full())),
        Panel(
            "Positions, trained on up to 5 digits",
            tuple(positions().values()),
            tuple(range(1, 16)),
            strong="abacus-positions-abacus",
            name="positions",
        ),
        Panel(
            "Sixteen layers, split into layers and loops",
            tuple(splits().values()),
            (),
            grid=(12, 12),
            loops=LOOPS,
            strong="abacus-split-8x2",
            name="splits",
        ),
        *(
            Panel(
                f"{recipe.task.name.replace('-', ' ').capitalize()}, trained on up to {recipe.lengths.top}",
                (recipe,),
                (),
                grid=(2 * recipe.lengths.top,) * 2,
                name=recipe.task.name,
            )
            for recipe in other_tasks().values()
        ),
    )
