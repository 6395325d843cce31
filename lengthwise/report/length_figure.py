"""Exact match against length, a line per curve."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lengthwise.base.errors import UsageError
from lengthwise.report import WORST, Curve, Point, names
from lengthwise.report.lines import MARKS, Look, name_lines, up, width
from lengthwise.report.style import COLOURS, DASHED, DOTTED, FAINT, MARKERS, SHADE, settled, styled


@styled()
def length_figure(curves: Sequence[Curve], title: str | None = None) -> Figure:
    """Exact match against length, a line per curve, the training range shaded.

    Bands: the mean over seeds ± its standard error, and faintly the worst and the best seed; of a single seed the
    95 % interval. With two axes, the sizes at which both are equal, short of one that is kept short.
    UsageError where there is nothing to draw.
    """
    drawn = [(curve, points) for curve in curves if (points := curve.diagonal())]
    if not drawn:
        raise UsageError("no scores along a length to draw: evaluate a run first (pairs of sizes make a heat map)")
    looks = _looks([curve for curve, _ in drawn])
    figure = Figure((width(look.name for look in looks), max(2.9, 1.0 + 0.16 * len(drawn))), layout="constrained")
    axes = figure.add_subplot()
    _length_axes(axes, [curve for curve, _ in drawn], max(points[-1].length for _, points in drawn))
    for look, (_, points) in zip(looks, drawn, strict=True):
        _draw_curve(axes, look, points)
    name_lines(axes, looks, [up(points[-1].mean) for _, points in drawn])
    if title:
        axes.set_title(title, pad=15)
    return settled(figure)


def _looks(curves: Sequence[Curve]) -> list[Look]:
    """A colour and a marker for each recipe and rule; the worst family, or the harder problems, are its dashed twin."""
    folded = any(curve.problems == WORST for curve in curves)
    kinds = list(dict.fromkeys((curve.label, curve.stopping) for curve in curves))
    looks = []
    for curve, name in zip(curves, names(curves), strict=True):
        number = kinds.index((curve.label, curve.stopping))
        # The two cycles drift apart by one per turn, so that a second turn repeats no pair.
        marker = MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]
        dash = "-" if curve.problems == "uniform" else DOTTED if curve.problems == "hard" and folded else DASHED
        looks.append(Look(name, COLOURS[number % len(COLOURS)], marker, dash))
    return looks


def _length_axes(axes: Axes, curves: Sequence[Curve], longest: int) -> None:
    tops = sorted({curve.top for curve in curves if curve.top})
    right = 1.02 * max([longest, *tops])
    axes.set_xlim(0, right)
    axes.set_ylim(-0.02, 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10], integer=True))
    axes.set_yticks(np.linspace(0, 1, 6))
    axes.set_xlabel(_length_label(curves))
    axes.set_ylabel("exact match")
    if not tops:
        return
    for top in tops:
        axes.axvspan(0, top, color=SHADE, zorder=0.1, linewidth=0)
        axes.axvline(top, color=FAINT, linewidth=0.7, zorder=1.5)
    text = "trained to " + " and ".join(filter(None, [", ".join(map(str, tops[:-1])), str(tops[-1])]))
    # It ends where the training range ends, unless the range is too narrow to hold it.
    side, at = ("right", tops[-1]) if tops[-1] > 0.2 * right else ("left", 0)
    axes.annotate(
        text, (at, 1.02), (0, 3), ha=side, textcoords="offset points", fontsize=7, color=FAINT, annotation_clip=False
    )


def _length_label(curves: Sequence[Curve]) -> str:
    """What the sizes count, if all curves agree on it."""
    tasks = {row["task"] for curve in curves for rows in curve.rows_by_seed.values() for row in rows}
    axes = {curve.axes for curve in curves}
    if tasks == {"addition"}:
        return "digits per operand"
    if len(axes) > 1:
        return "length"
    short = {
        name: most
        for curve in curves
        for name, most in zip(curve.axes, curve.most or (curve.top,) * len(curve.axes), strict=True)
        if most < curve.top
    }
    free = " = ".join(name for name in next(iter(axes)) if name not in short)
    return ", ".join([free, *(f"{name} up to {most}" for name, most in short.items())])


def _draw_curve(axes: Axes, look: Look, points: Sequence[Point]) -> None:
    sizes = [point.length for point in points]
    means = [point.mean for point in points]
    band = {"color": look.colour, "linewidth": 0}
    axes.fill_between(sizes, [p.low for p in points], [p.high for p in points], alpha=0.15, zorder=2, **band)
    errors = [point.error or 0.0 for point in points]
    if any(errors):
        low = [max(0.0, mean - error) for mean, error in zip(means, errors, strict=True)]
        high = [min(1.0, mean + error) for mean, error in zip(means, errors, strict=True)]
        axes.fill_between(sizes, low, high, alpha=0.25, zorder=2, **band)
    axes.plot(sizes, means, markevery=math.ceil(len(sizes) / MARKS), zorder=3, clip_on=False, **look.line())
