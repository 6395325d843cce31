"""A table of the fates of several looped weights, and their figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from lengthwise.base.formatting import as_grid, as_html
from lengthwise.base.score_rows import Row, share_text, size_text
from lengthwise.report.fates import RULE, Fate

if TYPE_CHECKING:
    from lengthwise.report.style import Drawing

LATER = (0, 1, 2, 5, 20)  # loops after T(n) in the table; then the last
HEADS = ("weights", "size", "T(n)", *(f"T+{k}" if k else "T" for k in LATER), "last", "moved", "over 2", "fate")


class Fates(list[Fate]):
    """Fates of several weights; prints as a table, in a notebook too."""

    def rows(self) -> list[Row]:
        """A row per weights and loop."""
        return [row for fate in self for row in fate.rows()]

    def plot(self, title: str | None = None) -> Drawing:
        """Exact match and movement against loops, counted from T(n); of up to three weights also a map and a path."""
        from lengthwise.report.fate_figure import fate_figure  # late: it imports matplotlib

        return fate_figure(self, title or "What more loops do")

    def table(self) -> list[list[str]]:
        """A line of cells for each of the weights, under ``HEADS``."""
        return [
            [fate.weights, size_text(fate.sizes), f"{fate.planned:.3g}",
             *(share_text(fate.at(k)) if k <= fate.after[-1] else "" for k in LATER),
             share_text(fate.at(fate.after[-1])),
             _power(fate.moved[-1]), _power(fate.moved_over_two[-1]), fate.verdict] for fate in self
        ]  # fmt: skip

    def _title(self) -> str:
        last = sorted({fate.after[-1] for fate in self})
        return f"Exact match at T(n), later, and last (T + {', '.join(map(str, last))}); {RULE}"

    def __str__(self) -> str:
        return f"{as_grid(list(HEADS), self.table())}\n{self._title()}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return as_html(self._title(), self.table(), HEADS)


def _power(movement: float | None) -> str:
    return "–" if movement is None else f"{movement:.0e}"


def values(fates: Sequence[Fate]) -> list[dict[str, Any]]:
    """Plain values of fates, for JSON."""
    return [vars(fate) | {"verdict": fate.verdict} for fate in fates]
