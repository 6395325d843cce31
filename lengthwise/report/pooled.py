"""Comparisons of recipes by their means over seeds, in the Python API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lengthwise.base.errors import UsageError
from lengthwise.base.formatting import PrintedTable
from lengthwise.base.results import welch_interval
from lengthwise.base.score_rows import Row, Sizes, format_share, format_size, is_within_training_sizes
from lengthwise.report import TRAINED_MARK, WORST_FAMILY, collect_warnings_by_recipe, curves
from lengthwise.report.comparisons import save_figure, to_data_frame
from lengthwise.runs.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lengthwise.report.style import Width

ONE_SEED_NOTE = "one seed"
MAX_SIZE_COLUMNS = 8  # maximum number of size columns of a pooled comparison
_LATEX_ESCAPES = str.maketrans(
    {mark: f"\\{mark}" for mark in "&%$#_{}"}
    | {"–": "--", "−": "$-$", "…": r"\dots{}", ">": "$>$", "<": "$<$", "\\": r"\textbackslash{}"}
)


@dataclass(frozen=True)
class Difference:
    """The difference of two recipes' mean exact match at one size, and Welch's 95 % interval over seeds. Without an
    interval, ``note`` states the reason: a recipe has only one seed, or all seeds of each recipe score the same."""

    mean: float
    low: float | None = None
    high: float | None = None
    note: str = ""

    def __str__(self) -> str:
        ends = [f"{end:+.2f}" for end in (self.low, self.high) if end is not None]
        return f"{self.mean:+.3f} ({' … '.join(ends) or self.note})".replace("-", "−")


class PooledComparison(PrintedTable):
    """A comparison of recipes by mean exact match over their seeds, on uniform problems and on the worst family, with
    bands from the worst to the best seed, or the 95 % interval of a single seed. Each recipe's means are compared with
    those of the first (see ``Difference``). Raises UsageError without scores, or for runs of different tasks."""

    title_above = False

    def __init__(self, runs: Sequence[RunFolder]) -> None:
        if len(tasks := dict.fromkeys(run.outline.task for run in runs)) > 1:
            raise UsageError(f"compare: {' and '.join(tasks)} are different tasks; compare scores of one task")
        self.runs = list(runs)
        own = [curve for curve in curves(runs) if curve.stopping == curve.own_rule]
        self.curves = [curve for curve in own if curve.problems in ("uniform", WORST_FAMILY)]
        if not self.curves:
            raise UsageError("compare: no uniform problems were measured; lw.evaluate(run, …, save=True) measures them")

    @property
    def sizes(self) -> list[Sizes]:
        """The sizes that all recipes share on uniform problems; all measured sizes if none is shared."""
        measured = [{point.sizes for point in curve.points} for curve in self.curves if curve.problems == "uniform"]
        return sorted(set.intersection(*measured) or set().union(*measured)) if measured else []

    @cached_property
    def _partial_sizes(self) -> list[Sizes]:
        """The sizes at which a curve is the mean of fewer seeds than at others."""
        partial = [point.sizes for curve in self.curves for point in curve.points if not curve.has_all_seeds(point)]
        return [size for size in self.sizes if size in partial]

    def _choose_columns(self) -> list[Sizes]:
        """Return the sizes that a table shows, the smallest and the largest of them; if there are too many, those that
        all seeds were measured at come first."""
        complete = [size for size in self.sizes if size not in self._partial_sizes]
        sizes = complete if len(self.sizes) > MAX_SIZE_COLUMNS and complete else self.sizes
        return [*sizes[: MAX_SIZE_COLUMNS - 1], *sizes[MAX_SIZE_COLUMNS - 1 :][-1:]]

    @cached_property
    def differences(self) -> dict[tuple[str, str], dict[Sizes, Difference]]:
        """The differences of all later recipes from the first, by recipe and set of problems, then by size."""
        first = self.curves[0].label
        first_curves = {curve.problems: curve for curve in self.curves if curve.label == first}
        differences: dict[tuple[str, str], dict[Sizes, Difference]] = {}
        for curve in self.curves:
            if curve.label == first or curve.problems not in first_curves:
                continue
            points = {point.sizes: point for point in first_curves[curve.problems].points}
            changes = differences[curve.label, curve.problems] = {}
            for base, point in ((points[point.sizes], point) for point in curve.points if point.sizes in points):
                mean = point.mean - base.mean
                if base.standard_error is None or point.standard_error is None:
                    changes[point.sizes] = Difference(mean, note=ONE_SEED_NOTE)
                elif base.standard_error == point.standard_error == 0:
                    changes[point.sizes] = Difference(mean, note="no spread")
                else:
                    errors, seeds = (base.standard_error, point.standard_error), (base.seed_count, point.seed_count)
                    low, high = welch_interval(mean, errors, seeds)
                    changes[point.sizes] = Difference(mean, max(-1.0, low), min(1.0, high))
        return differences

    def rows(self) -> list[Row]:
        """Return a row per recipe, set of problems and size: the mean over seeds, its band, and the number of seeds.
        ``difference`` is the mean minus the first recipe's; ``difference_low`` and ``difference_high`` are the ends of
        its 95 % interval over seeds, and ``difference_note`` states why there is no interval."""
        rows = []
        for curve in self.curves:
            differences = self.differences.get((curve.label, curve.problems), {})
            for point in curve.points:
                change = differences.get(point.sizes)
                rows.append({
                    "recipe": curve.label, "problems": curve.problems, "size": format_size(point.sizes),
                    "exact": point.mean, "low": point.low, "high": point.high, "seeds": point.seed_count,
                    "count": point.problem_count, "difference": change and change.mean,
                    "difference_low": change and change.low, "difference_high": change and change.high,
                    "difference_note": change.note if change else "",
                })  # fmt: skip
        return rows

    def frame(self) -> Any:
        """Return the rows as a pandas DataFrame. Raises UsageError if pandas is not installed."""
        return to_data_frame(self.rows())

    def plot(self, title: str | None = None, *, width: Width = "page") -> Figure:
        """Draw exact match against length, with a line and a band per recipe and set of problems."""
        from lengthwise.report.length_figure import draw_score_figure  # late: matplotlib is slow to import

        return draw_score_figure(self.runs, title, width=width)

    def savefig(self, path: str | Path, title: str | None = None, *, width: Width = "page") -> Path:
        """Save the figure in the format of the file's extension, .png, .svg or .pdf; return its path."""
        return save_figure(lambda: self.plot(title, width=width), path)

    def to_latex(self, caption: str = "") -> str:
        """Return a LaTeX table (package booktabs): a row per recipe and set of problems, a column per size."""
        heads, rows = self.table()
        head, *lines = [
            " & ".join(cell.replace(TRAINED_MARK, "").translate(_LATEX_ESCAPES) for cell in cells) + r" \\"
            for cells in (heads, *rows)
        ]
        begin = rf"\begin{{tabular}}{{lll{'r' * (len(heads) - 3)}}}"
        lines = [begin, r"\toprule", head, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}"]
        return "\n".join([*lines, f"% {' '.join((caption or self.title()).split())}"]) + "\n"

    def table(self) -> tuple[list[str], list[list[str]]]:
        sizes = self._choose_columns()
        tops = {curve.tops for curve in self.curves}
        marked = [format_size(s) + TRAINED_MARK * all(is_within_training_sizes(s, t) for t in tops) for s in sizes]
        rows, warnings = [], collect_warnings_by_recipe(self.curves)
        for curve in self.curves:
            points = {point.sizes: point for point in curve.points}
            row = [points.get(size) for size in sizes]
            counts = sorted({point.seed_count for point in row if point})  # some sizes may have fewer seeds
            seeds = "–".join(map(str, dict.fromkeys(counts[:1] + counts[-1:])))
            cells = [
                f"{format_share(p.mean, 3)} ({format_share(p.low)}–{format_share(p.high)})" if p else "–" for p in row
            ]
            rows.append([", ".join(filter(None, [curve.label, warnings[curve.label]])), curve.problems, seeds, *cells])
        for (label, problems), differences in self.differences.items():
            if _have_intervals(differences):
                cells = [str(differences.get(size, "–")) for size in sizes]
                rows.append([f"{label} − {self.curves[0].label}", problems, "", *cells])
        return ["exact match", "problems", "seeds", *marked], rows

    def title(self) -> str:
        """Return a note on means, bands, differences, the training range and sizes that are not shown."""
        trained = " and ".join(sorted({format_size(curve.tops) for curve in self.curves}))
        parts = ["Mean over seeds; in brackets the worst and the best seed, for a single seed the 95 % interval."]
        if any(map(_have_intervals, self.differences.values())):
            parts += ["Differences of means: in brackets Welch's 95 % interval over seeds, not over problems."]
        single = list(dict.fromkeys(curve.label for curve in self.curves if len(curve.rows_by_seed) == 1))
        parts += [f"One seed, so no interval over seeds: {', '.join(single)}."] * bool(single and self.differences)
        shown = self._choose_columns()
        if partial := [format_size(size) for size in self._partial_sizes if size in shown]:
            parts += [f"Fewer seeds at {', '.join(partial)}."]
        left_out = [f"{len(shown)} of {len(self.sizes)} sizes are shown."] * (len(shown) < len(self.sizes))
        return " ".join([*parts, f"Trained on up to {trained}.", *left_out])


def _have_intervals(differences: Mapping[Sizes, Difference]) -> bool:
    """Return whether, at any size, both recipes have two or more seeds."""
    return any(difference.note != ONE_SEED_NOTE for difference in differences.values())
