"""Runs pooled by recipe: the mean over seeds, and how the mean of each recipe differs from that of the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lengthwise.base.errors import UsageError
from lengthwise.base.formatting import PrintedTable
from lengthwise.base.results import welch_interval
from lengthwise.base.score_rows import Row, Sizes, share_text, size_text
from lengthwise.report import TRAINED, WORST, curves, warnings_by_recipe
from lengthwise.report.scored import save_figure, to_data_frame
from lengthwise.runs.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lengthwise.report.style import Width

SHOWN = ("uniform", WORST)
ONE_SEED = "one seed"
MOST = 8  # maximum number of size columns of a pooled comparison
_ESCAPES = str.maketrans(
    {mark: f"\\{mark}" for mark in "&%$#_{}"}
    | {"–": "--", "−": "$-$", "…": r"\dots{}", ">": "$>$", "<": "$<$", "\\": r"\textbackslash{}"}
)


@dataclass(frozen=True)
class Difference:
    """The difference of two recipes' mean exact match at one size, and Welch's 95 % interval over seeds. ``low`` and
    ``high`` are None if a recipe has fewer than two seeds, or if no seed differs from another; ``note`` says which."""

    mean: float
    low: float | None = None
    high: float | None = None
    note: str = ""

    def __str__(self) -> str:
        ends = [f"{end:+.2f}" for end in (self.low, self.high) if end is not None]
        return f"{self.mean:+.3f} ({' … '.join(ends) or self.note})".replace("-", "−")


class PooledComparison(PrintedTable):
    """Mean exact match of several recipes over their seeds, on uniform problems and on the worst family.

    A band spans the worst to the best seed, or the 95 % interval of a single seed. Each recipe's means are compared
    with those of the first (see ``Difference``). Raises UsageError without scores, or for runs of different tasks.
    """

    title_above = False

    def __init__(self, runs: Sequence[RunFolder]) -> None:
        if len(tasks := dict.fromkeys(run.outline.task for run in runs)) > 1:
            raise UsageError(f"compare: {' and '.join(tasks)} are different tasks")
        self.runs = list(runs)
        self.curves = [one for one in curves(runs) if one.problems in SHOWN and one.stopping == one.own_rule]
        if not self.curves:
            raise UsageError("compare: no uniform problems were measured; lw.evaluate(run, …, save=True) measures them")

    @property
    def sizes(self) -> list[Sizes]:
        """The sizes at which every recipe was measured on uniform problems; all measured sizes if they share none."""
        measured = [{point.sizes for point in curve.points()} for curve in self.curves if curve.problems == "uniform"]
        return sorted(set.intersection(*measured) or set().union(*measured)) if measured else []

    @cached_property
    def differences(self) -> dict[tuple[str, str], dict[Sizes, Difference]]:
        """The differences between each further recipe and the first on the same problems, by recipe and problems."""
        first = self.curves[0].label
        base = {curve.problems: curve for curve in self.curves if curve.label == first}
        found: dict[tuple[str, str], dict[Sizes, Difference]] = {}
        for curve in self.curves:
            if curve.label == first or curve.problems not in base:
                continue
            points = {point.sizes: point for point in base[curve.problems].points()}
            shared = found[curve.label, curve.problems] = {}
            for one, other in ((points[point.sizes], point) for point in curve.points() if point.sizes in points):
                mean = other.mean - one.mean
                if one.error is None or other.error is None:
                    shared[other.sizes] = Difference(mean, note=ONE_SEED)
                elif one.error == other.error == 0:
                    shared[other.sizes] = Difference(mean, note="no spread")
                else:
                    low, high = welch_interval(mean, (one.error, other.error), (one.seeds, other.seeds))
                    shared[other.sizes] = Difference(mean, max(-1.0, low), min(1.0, high))
        return found

    def rows(self) -> list[Row]:
        """Return a row per recipe, set of problems and size: the mean over seeds, its band, and the number of seeds;
        ``difference`` is the mean minus that of the first recipe, with the ends of its 95 % interval over seeds, or a
        note on why there is no interval."""
        rows = []
        for curve in self.curves:
            differences = self.differences.get((curve.label, curve.problems), {})
            for point in curve.points():
                one = differences.get(point.sizes)
                rows.append({
                    "recipe": curve.label, "problems": curve.problems, "size": size_text(point.sizes),
                    "exact": point.mean, "low": point.low, "high": point.high, "seeds": point.seeds,
                    "count": point.count, "difference": one and one.mean, "difference_low": one and one.low,
                    "difference_high": one and one.high, "difference_note": one.note if one else "",
                })  # fmt: skip
        return rows

    def frame(self) -> Any:
        """Return the rows as a pandas DataFrame. Raises UsageError if pandas is not installed."""
        return to_data_frame(self.rows())

    def plot(self, title: str | None = None, *, width: Width = "page") -> Figure:
        """Draw exact match against length, a line per recipe and set of problems, with bands."""
        from lengthwise.report.length_figure import score_figure  # late: matplotlib is slow to import

        return score_figure(self.runs, title, width=width)

    def savefig(self, path: str | Path, title: str | None = None, *, width: Width = "page") -> Path:
        """Save the figure in the format of the file's extension, .png, .svg or .pdf; return its path."""
        return save_figure(lambda: self.plot(title, width=width), path)

    def to_latex(self, caption: str = "") -> str:
        """Return a LaTeX table (package booktabs): a row per recipe and set of problems, a column per size."""
        heads, rows = self.table()
        head, *lines = [
            " & ".join(cell.replace(TRAINED, "").translate(_ESCAPES) for cell in cells) + r" \\"
            for cells in (heads, *rows)
        ]
        begin = rf"\begin{{tabular}}{{lll{'r' * (len(heads) - 3)}}}"
        lines = [begin, r"\toprule", head, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}"]
        return "\n".join([*lines, f"% {caption or self.title()}"]) + "\n"

    def table(self) -> tuple[list[str], list[list[str]]]:
        sizes = self.sizes if len(self.sizes) <= MOST else [*self.sizes[: MOST - 1], self.sizes[-1]]
        tops = {curve.tops for curve in self.curves}
        marked = [size_text(size) + TRAINED * all(max(size) <= max(top) for top in tops) for size in sizes]
        rows, warnings = [], warnings_by_recipe(self.curves)
        for curve in self.curves:
            points = {point.sizes: point for point in curve.points()}
            seeds = str(max(point.seeds for point in points.values()))
            name = ", ".join(filter(None, [curve.label, warnings[curve.label]]))
            found = [points.get(size) for size in sizes]
            cells = [f"{share_text(p.mean, 3)} ({share_text(p.low)}–{share_text(p.high)})" if p else "–" for p in found]
            rows.append([name, curve.problems, seeds, *cells])
        for (label, problems), differences in self.differences.items():
            if _have_intervals(differences):
                cells = [str(differences.get(size, "–")) for size in sizes]
                rows.append([f"{label} − {self.curves[0].label}", problems, "", *cells])
        return ["exact match", "problems", "seeds", *marked], rows

    def title(self) -> str:
        """Return a note on means, bands, differences and the training range."""
        trained = " and ".join(sorted({size_text(curve.tops) for curve in self.curves}))
        parts = ["Mean over seeds; in brackets the worst and the best seed, for a single seed the 95 % interval."]
        if any(map(_have_intervals, self.differences.values())):
            parts += ["Differences of means: in brackets Welch's 95 % interval over seeds, not over problems."]
        single = list(dict.fromkeys(curve.label for curve in self.curves if len(curve.rows_by_seed) == 1))
        if single and self.differences:
            parts += [f"One seed, so no interval over seeds: {', '.join(single)}."]
        return " ".join([*parts, f"Trained on up to {trained}."])


def _have_intervals(differences: Mapping[Sizes, Difference]) -> bool:
    """Return whether both recipes have two or more seeds at any size."""
    return any(one.note != ONE_SEED for one in differences.values())
