"""Accuracy and validation loss against the number of parameters, and how long the problems of training are."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, Formatter, LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from lengthwise.base.errors import UsageError
from lengthwise.folder import RunFolder
from lengthwise.report import Claim, Row, latest
from lengthwise.report.style import COLOURS, DASHED, FAINT, INK, MARKERS, settled, styled


def parameter_rows(runs: Iterable[RunFolder]) -> list[Row]:
    """A row per run that has watched its validation loss: parameters, time, the lowest loss, and exact match on the
    task's own distribution, where it was trained and beyond (None where it was not measured)."""
    found = []
    for run in runs:
        watched = (row.get("validation_loss") for row in run.rows("metrics"))
        losses = [loss for loss in watched if loss is not None]
        if not losses or not (about := run.about()):
            continue
        top = run.outline.top
        natural = [row for row in latest(run.rows("scores")) if row["problems"] == "natural"]
        found.append(
            {
                "recipe": run.outline.name,
                "seed": run.outline.seed,
                "model": run.outline.model,
                "parameters": about["parameters"],
                "validation_loss": min(losses),
                "within": _of_the_longest(row for row in natural if max(row["sizes"]) <= top),
                "beyond": _of_the_longest(row for row in natural if max(row["sizes"]) > top),
                "cpu_s": about["cpu_s"],
                "wall_s": about["wall_s"],
            }
        )
    return found


def _of_the_longest(rows: Iterable[Row]) -> float | None:
    """Exact match of the row that reaches furthest: its problems are of all lengths up to there."""
    longest = max(rows, key=lambda row: max(row["sizes"]), default=None)
    return None if longest is None else longest["exact"]


@styled()
def parameter_figure(rows: Sequence[Row], claims: Sequence[Claim] = ()) -> Figure:
    """Exact match, and validation loss, against parameters on a log axis: a line per kind of model through the means
    over seeds, a mark per seed; what lies beyond the training range is dashed. Claims are dotted lines. UsageError
    without rows."""
    if not rows:
        raise UsageError("there is nothing to draw: no run has watched its validation loss")
    figure = Figure((6.4, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2)
    for number, (model, group) in enumerate(_grouped(rows, "model").items()):
        look = {"color": COLOURS[number % len(COLOURS)], "marker": MARKERS[number % len(MARKERS)]}
        _line(left, group, "within", look | {"label": model})
        _line(left, group, "beyond", look | {"linestyle": DASHED, "markerfacecolor": "white"})
        _line(right, group, "validation_loss", look)
    for claim in claims:
        if claim.exact is not None:
            left.axhline(claim.exact, color=INK, linestyle=":", linewidth=1.0, label=claim.who)
    left.set_ylim(-0.02, 1.02)
    left.set_ylabel("exact match (dashed: beyond training)")
    right.set_yscale("log")
    right.set_ylabel("validation loss (nats)")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_xlabel("parameters")
        _few_ticks(axes.xaxis, [row["parameters"] for row in rows], EngFormatter(sep=""))
    _few_ticks(right.yaxis, [row["validation_loss"] for row in rows], StrMethodFormatter("{x:g}"))
    figure.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=7.5)
    return settled(figure)


def _few_ticks(axis: Axis, values: Sequence[float], formatter: Formatter) -> None:
    """Of a log axis that may span less than a decade, where matplotlib would write one number over the other."""
    wide = max(values) >= 10 * min(values)
    axis.set_major_locator(LogLocator(subs=(1.0, 3.0)) if wide else MaxNLocator(4))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(formatter)


def _line(axes: Axes, group: Sequence[Row], measure: str, look: Mapping[str, Any]) -> None:
    sizes = _grouped([row for row in group if row[measure] is not None], "parameters")
    if not sizes:
        return
    counts = sorted(sizes)
    means = [statistics.fmean(row[measure] for row in sizes[count]) for count in counts]
    axes.plot(counts, means, zorder=3, clip_on=False, **look)
    each = [(count, row[measure]) for count in counts for row in sizes[count]]
    plain = {name: value for name, value in look.items() if name not in ("label", "linestyle")}
    axes.plot(*zip(*each, strict=True), linestyle="none", alpha=0.5, zorder=2, clip_on=False, **plain)


def _grouped(rows: Sequence[Row], name: str) -> dict[Any, list[Row]]:
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[name], []).append(row)
    return groups


@styled()
def distribution_figure(counts: Mapping[int, int], title: str) -> Figure:
    """How many problems there are of each length. UsageError without any."""
    if not counts:
        raise UsageError("there is nothing to draw: no problems were counted")
    figure = Figure((5.5, 2.4), layout="constrained")
    axes = figure.add_subplot()
    axes.bar(list(counts), list(counts.values()), color=FAINT, width=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    axes.set_xlabel("length")
    axes.set_ylabel("problems")
    axes.set_title(title)
    return settled(figure)
