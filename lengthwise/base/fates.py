"""The fates of looped weights: answers and states in loops after T(n)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from lengthwise.base.score_rows import Row, size_text

STILL = 5e-4  # mean relative movement below which a state counts as standing still
SLOW = 0.05  # and below which it creeps: neither still nor on its way
HOLDS = 0.99  # exact match from which an answer counts as right
RULE = (
    f"settles: the last loop moves the state by less than {STILL:g} of its length (mean over positions and problems), "
    f"right if exact match is then {HOLDS} or more; marginal: by less than {SLOW:g}; cycles: by more, but by less than "
    f"{STILL:g} over two loops; drifts: by more"
)


@dataclass(frozen=True)
class Fate:
    """The course of one set of weights, loop by loop; ``after`` counts loops from each problem's own T(n). ``seed`` is
    that of the problems, ``trained_seed`` that of the weights."""

    weights: str
    recipe: str
    trained_seed: int
    task: str
    sizes: tuple[int, ...]
    count: int
    seed: int
    planned: float  # T(n), mean over problems
    after: list[int]
    exact: list[float | None]
    moved: list[float | None]  # ‖h_k − h_{k−1}‖ / ‖h_k‖, mean over positions and problems
    moved_over_two: list[float | None]  # ‖h_k − h_{k−2}‖ / ‖h_k‖
    cosine: list[float | None]  # with the last state
    map: list[list[float | None]] = field(repr=False)  # loop × position, of one problem
    path: list[list[float]] = field(repr=False)  # loop × 2: that problem's states on two principal components
    map_planned: int = 0  # T(n) of that problem

    def exact_after(self, after: int) -> float:
        """Return exact match ``after`` loops beyond T(n)."""
        return self.exact[self.after.index(after)] or 0.0

    @property
    def verdict(self) -> str:
        """``settles right``, ``settles wrong``, ``cycles``, ``marginal`` or ``drifts``: see ``RULE``."""
        one, two = (math.inf if values[-1] is None else values[-1] for values in (self.moved, self.moved_over_two))
        if one < STILL:
            return "settles right" if self.exact_after(self.after[-1]) >= HOLDS else "settles wrong"
        if one < SLOW:
            return "marginal"
        return "cycles" if two < STILL else "drifts"

    def rows(self) -> list[Row]:
        """A row per loop."""
        about: Row = {
            "weights": self.weights, "recipe": self.recipe, "seed": self.trained_seed,
            "task": self.task, "size": size_text(self.sizes), "count": self.count,
        }  # fmt: skip
        names = ("after", "exact", "moved", "moved_over_two", "cosine")
        return [about | dict(zip(names, values, strict=True)) for values in zip(
            self.after, self.exact, self.moved, self.moved_over_two, self.cosine, strict=True)]  # fmt: skip


def by_recipe(fates: Iterable[Fate]) -> list[list[Fate]]:
    """Return the fates of each recipe's seeds together, in the order of the first."""
    groups: dict[tuple[str, str, tuple[int, ...]], list[Fate]] = {}
    for fate in fates:
        groups.setdefault((fate.recipe, fate.task, fate.sizes), []).append(fate)
    return list(groups.values())


def name_of_seeds(seeds: Sequence[Fate]) -> str:
    """Return the name of one set of weights, or the recipe of several."""
    return seeds[0].weights if len(seeds) == 1 else f"{seeds[0].recipe}, {len(seeds)} seeds"


def verdict_of_seeds(seeds: Sequence[Fate]) -> str:
    """Return the verdict of one, or how many seeds have which."""
    verdicts = Counter(fate.verdict for fate in seeds)
    return ", ".join(name if len(verdicts) == 1 else f"{name} {count}" for name, count in verdicts.most_common())
