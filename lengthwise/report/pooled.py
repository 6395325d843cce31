"""Comparison of recipes over their seeds: one table and one figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lengthwise.base.errors import UsageError
from lengthwise.base.files import path_of
from lengthwise.base.formatting import as_grid, as_html
from lengthwise.base.score_rows import Row, Sizes, share_text, size_text
from lengthwise.report import TRAINED, WORST, Point, curves, fits_of, lost, not_fitted
from lengthwise.runs.folder import RunFolder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHOWN = ("uniform", WORST)
MOST = 8  # maximum number of size columns
_ESCAPES = str.maketrans(
    {mark: f"\\{mark}" for mark in "&%$#_{}"} | {"–": "--", ">": "$>$", "<": "$<$", "\\": r"\textbackslash{}"}
)


class PooledComparison:
    """Mean exact match of several recipes over their seeds, on uniform problems and on the worst family.

    A band spans the worst to the best seed, or the 95 % interval of a single seed. Raises UsageError without scores, or
    for runs of different tasks.
    """

    def __init__(self, runs: Sequence[RunFolder]) -> None:
        if len(tasks := dict.fromkeys(run.outline.task for run in runs)) > 1:
            raise UsageError(f"compare: {' and '.join(tasks)} are different tasks")
        self.runs = list(runs)
        own = {rule for run in runs for rule in [run.outline.stopping]}
        self.curves = [one for one in curves(runs) if one.problems in SHOWN and one.stopping in own]
        if not self.curves:
            raise UsageError("compare: no uniform problems were measured; lw.evaluate(run, …, save=True) measures them")

    @property
    def sizes(self) -> list[Sizes]:
        """The sizes at which every recipe was measured on uniform problems; all measured sizes if they share none."""
        measured = [{point.sizes for point in curve.points()} for curve in self.curves if curve.problems == "uniform"]
        shared = set.intersection(*measured) if measured else set()
        return sorted(shared or set().union(*measured))

    def rows(self) -> list[Row]:
        """Return a row per recipe, set of problems and size: the mean over seeds, its band, and the number of seeds."""
        return [
            {"recipe": curve.label, "problems": curve.problems, "size": size_text(point.sizes), "exact": point.mean,
             "low": point.low, "high": point.high, "seeds": point.seeds, "count": point.count}
            for curve in self.curves for point in curve.points()
        ]  # fmt: skip

    def frame(self) -> Any:
        """Return the rows as a pandas DataFrame. Raises UsageError if pandas is not installed."""
        from lengthwise.report.scored import frame_of

        return frame_of(self.rows())

    def plot(self, title: str | None = None, *, width: str = "page") -> Figure:
        """Draw exact match against length, a line per recipe and set of problems, with bands."""
        from lengthwise.report.length_figure import score_figure  # late: matplotlib is slow to import

        return score_figure(self.runs, title, width=width)  # type: ignore[arg-type]

    def savefig(self, path: str | Path, title: str | None = None, *, width: str = "page") -> Path:
        """Save the figure in the format of the file's extension, .png, .svg or .pdf; return its path."""
        from lengthwise.report.style import KNOWN_FORMATS, save

        target = path_of(path)
        kind = target.suffix.lstrip(".").lower()
        if kind not in KNOWN_FORMATS:
            raise UsageError(f"{target}: a figure's file ends in .{', .'.join(KNOWN_FORMATS)}")
        save(self.plot(title, width=width), target.with_suffix(""), [kind])
        return target

    def to_latex(self, caption: str = "") -> str:
        """Return a LaTeX table (package booktabs): a row per recipe and set of problems, a column per size."""
        heads, rows = self._table()
        columns = "lll" + "r" * (len(heads) - 3)
        lines = [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", _line(heads), r"\midrule"]
        lines += [*map(_line, rows), r"\bottomrule", r"\end{tabular}"]
        note = caption or f"{self._note()}"
        return "\n".join([*lines, f"% {note}"]) + "\n"

    def _table(self) -> tuple[list[str], list[list[str]]]:
        sizes = self.sizes if len(self.sizes) <= MOST else [*self.sizes[: MOST - 1], self.sizes[-1]]
        tops = {curve.tops for curve in self.curves}
        marked = [size_text(size) + TRAINED * all(max(size) <= max(top) for top in tops) for size in sizes]
        rows, fits = [], fits_of(self.curves)
        for curve in self.curves:
            points = {point.sizes: point for point in curve.points()}
            seeds = str(max((point.seeds for point in points.values()), default=0))
            name = [curve.label, not_fitted(fits.get(curve.label), curve.top), lost(curve.diverged)]
            cells = (_cell(points.get(size)) for size in sizes)
            rows.append([", ".join(filter(None, name)), curve.problems, seeds, *cells])
        return ["exact match", "problems", "seeds", *marked], rows

    def _note(self) -> str:
        trained = " and ".join(sorted({size_text(curve.tops) for curve in self.curves}))
        return (
            "Mean over seeds; in brackets the worst and the best seed, of one seed the 95 % interval. Trained on up "
            f"to {trained}."
        )

    def __str__(self) -> str:
        return f"{as_grid(*self._table())}\n{self._note()}"

    __repr__ = __str__

    def _repr_html_(self) -> str:
        heads, rows = self._table()
        return as_html(self._note(), rows, heads)


def _cell(point: Point | None) -> str:
    if point is None:
        return "–"
    return f"{share_text(point.mean, 3)} ({share_text(point.low)}–{share_text(point.high)})"


def _line(cells: Sequence[str]) -> str:
    return " & ".join(cell.replace(TRAINED, "").translate(_ESCAPES) for cell in cells) + r" \\"
