"""What becomes of looped weights when their loops go on, and a table of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lengthwise.base.formatting import Grid
from lengthwise.base.score_rows import Row, share_text, size_text

if TYPE_CHECKING:
    from lengthwise.report.style import Drawing

STILL = 5e-4  # mean relative movement below which a state counts as standing still
SLOW = 0.05  # and below which it creeps: neither still nor on its way
HOLDS = 0.99  # exact match from which an answer counts as right
RULE = (
    f"settles: the last loop moves the state by less than {STILL:g} of its length (mean over positions and problems), "
    f"right if exact match is then {HOLDS} or more; marginal: by less than {SLOW:g}; cycles: by more, but by less than "
    f"{STILL:g} over two loops; drifts: by more"
)
LATER = (0, 1, 2, 5, 20)  # loops after T(n) in the table; then the last
HEADS = ("weights", "size", "T(n)", *(f"T+{k}" if k else "T" for k in LATER), "last", "moved", "over 2", "fate")


@dataclass(frozen=True)
class Fate:
    """What one set of weights does after each loop; ``after`` counts loops from each problem's own T(n)."""

    weights: str
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

    def at(self, after: int) -> float:
        """Exact match so many loops after T(n)."""
        return self.exact[self.after.index(after)] or 0.0

    @property
    def verdict(self) -> str:
        """``settles right``, ``settles wrong``, ``cycles``, ``marginal`` or ``drifts``: see ``RULE``."""
        one, two = (math.inf if values[-1] is None else values[-1] for values in (self.moved, self.moved_over_two))
        if one < STILL:
            return "settles right" if self.at(self.after[-1]) >= HOLDS else "settles wrong"
        if one < SLOW:
            return "marginal"
        return "cycles" if two < STILL else "drifts"

    def rows(self) -> list[Row]:
        """A row per loop."""
        about = {"weights": self.weights, "task": self.task, "size": size_text(self.sizes), "count": self.count}
        names = ("after", "exact", "moved", "moved_over_two", "cosine")
        return [about | dict(zip(names, values, strict=True)) for values in zip(
            self.after, self.exact, self.moved, self.moved_over_two, self.cosine, strict=True)]  # fmt: skip


class Fates(Grid, list[Fate]):
    """Fates of several weights."""

    title_above = False

    def rows(self) -> list[Row]:
        """Return a row per weights and loop."""
        return [row for fate in self for row in fate.rows()]

    def plot(self, title: str | None = None) -> Drawing:
        """Draw exact match and movement against loops, counted from T(n); of up to three weights also a map and a
        path."""
        from lengthwise.report.fate_figure import fate_figure  # late: it imports matplotlib

        return fate_figure(self, title or "What more loops do")

    def table(self) -> tuple[Sequence[str], list[list[str]]]:
        """Return ``HEADS``, and a line of cells for each of the weights."""
        return HEADS, [
            [fate.weights, size_text(fate.sizes), f"{fate.planned:.3g}",
             *(share_text(fate.at(k)) if k <= fate.after[-1] else "" for k in LATER),
             share_text(fate.at(fate.after[-1])),
             *("–" if values[-1] is None else f"{values[-1]:.0e}" for values in (fate.moved, fate.moved_over_two)),
             fate.verdict] for fate in self
        ]  # fmt: skip

    def title(self) -> str:
        """Return which loops the columns are of, and how fates are told apart."""
        last = sorted({fate.after[-1] for fate in self})
        return f"Exact match at T(n), later, and last (T + {', '.join(map(str, last))}); {RULE}"


def values(fates: Sequence[Fate]) -> list[dict[str, Any]]:
    """Plain values of fates, for JSON."""
    return [vars(fate) | {"verdict": fate.verdict} for fate in fates]
