"""Figure of exact match against length, a line per curve."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from lengthwise.base.errors import UsageError
from lengthwise.base.results import InquiryOutline, RunOutline
from lengthwise.base.score_rows import size_text
from lengthwise.report import WORST, Curve, Point, all_curves, curves
from lengthwise.report.lines import MARKS, Look, legend, name_lines
from lengthwise.report.map_figure import cells_of, heat_map
from lengthwise.report.plots import plots
from lengthwise.report.style import (
    ACROSS,
    COLOURS,
    FAINT,
    SHADE,
    Drawing,
    Width,
    add_heading,
    drawing,
    fix_layout,
    style,
    wrap_title,
)
from lengthwise.runs.folder import InquiryFolder, RunFolder


def score_figure(
    runs: Sequence[RunFolder],
    title: str | None = None,
    *,
    asked: Sequence[InquiryFolder] = (),
    strong: str | None = None,
    width: Width = "page",
) -> Drawing:
    """Draw the scores of runs and of the language models in ``asked``: exact match against length, with uniform
    problems and the worst family as separate lines. If no sizes lie on a line, draw a heat map of a single recipe
    instead. ``title`` is by default the task; ``strong`` is the recipe to highlight; ``width`` is that of a "column" or
    a "page" of a paper. Raises UsageError without scores, or for several recipes whose sizes lie on no line."""
    title = title or usual_title([one.outline for one in [*runs, *asked]])
    lines, rows = all_curves(runs, asked) if asked else curves(runs), cells_of(runs)
    if rows and not any(curve.diagonal() for curve in lines):
        if len({curve.label for curve in lines}) > 1:
            raise UsageError(
                "no two sizes lie on one line, and a heat map shows a single recipe: draw each recipe separately"
            )
        return heat_map(rows, runs[0].outline.tops, title, width=width)
    return length_figure(worth_drawing(lines), title, strong=strong, width=width)


def usual_title(outlines: Sequence[RunOutline | InquiryOutline]) -> str:
    """Return the default title: the tasks, and the training length if it is the same for all."""
    tasks = ", ".join(dict.fromkeys(one.task.replace("-", " ").capitalize() for one in outlines))
    tops = {size_text(one.tops) for one in outlines if isinstance(one, RunOutline) and one.top}
    return f"{tasks}, trained on up to {min(tops)}" if len(tops) == 1 else tasks


def worth_drawing(found: Sequence[Curve]) -> list[Curve]:
    """Return the curves to plot. Rules tried at a single size and natural problems, which mix sizes, are left to
    tables. The harder set is left out if families were measured, since it is one of them."""
    left_out = {"natural", *(["hard"] if any(curve.problems == WORST for curve in found) else [])}
    lines = [curve for curve in found if curve.problems not in left_out]
    return [curve for curve in lines if len(curve.points()) > 1] or lines or list(found)


@style()
def length_figure(
    curves: Sequence[Curve], title: str | None = None, *, strong: str | None = None, width: Width = "page"
) -> Drawing:
    """Draw exact match against length, a line per curve, the training range shaded; ``strong`` is the recipe to
    highlight.

    A band spans the worst to the best seed, or the 95 % interval of a single seed; the axis label says which. With two
    axes, sizes are those equal on both; an axis with a smaller training limit stays at it. Many curves are split over
    several panels (see ``plots``). Raises UsageError if no curve has such sizes.
    """
    curves = [curve for curve in curves if curve.diagonal()]
    if not curves:
        raise UsageError("no scores along a length to draw: evaluate a run first (pairs of sizes make a heat map)")
    parts, heading = plots(curves, strong)
    figure, grid = panel_grid(len(parts), len(curves), width)
    longest = max(curve.diagonal()[-1].length for curve in curves)
    for axes, part in zip(grid, parts, strict=True):
        length_axes(axes, part.curves, longest)
        for look, curve in zip(part.looks, part.curves, strict=True):
            draw_curve(axes, look, curve.diagonal(), banded=len(part.curves) <= len(COLOURS))
        explain_bands(axes, part.curves)
    if len(parts) == 1:
        ends = [(curve.diagonal()[-1].length, curve.diagonal()[-1].mean) for curve in curves]
        name_lines(grid[0], parts[0].looks, ends, width, heading)
        if title:
            grid[0].set_title(wrap_title(title, width), pad=15)
        return fix_layout(figure)
    for axes, part in zip(grid, parts, strict=True):
        axes.set_title(part.title, pad=11, fontsize=8, fontweight="bold" if part.strong else "normal")
    together = dict.fromkeys(look for part in parts for look in part.looks)
    legend(figure, list(together), columns=2 if width == "column" else 5)
    if title:
        add_heading(figure, title, width)
    return fix_layout(figure)


def panel_grid(count: int, lines: int, width: Width, *, sharex: bool = True) -> tuple[Drawing, list[Axes]]:
    """Return a figure with ``count`` panels, which share their length axis if ``sharex``."""
    across = min(count, ACROSS[width])
    down = math.ceil(count / across)
    height = (2.9 if width == "page" else 2.4) if count == 1 else 0.8 + 1.7 * down
    if count == 1:  # room for all names, at the right or below
        height = max(height, 0.8 + 0.17 * lines) if width == "page" else height + 0.17 * lines
    figure = drawing(width, height)
    grid = figure.subplots(down, across, squeeze=False, sharex=sharex, sharey=True)
    for axes in grid.ravel()[count:]:
        axes.set_axis_off()
    for number in range(count, down * across):  # panels above an empty place show axis labels
        grid.ravel()[number - across].xaxis.set_tick_params(labelbottom=True)
    return figure, grid.ravel().tolist()[:count]


def length_axes(axes: Axes, curves: Sequence[Curve], longest: int) -> None:
    """Set up axes of exact match against length, up to ``longest``, with the training range shaded."""
    tops = sorted({curve.top for curve in curves if curve.top})
    right = 1.02 * max([longest, *tops])
    axes.set_xlim(0, right)
    axes.set_ylim(-0.02, 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10], integer=True))
    axes.set_yticks(np.linspace(0, 1, 6))
    place = axes.get_subplotspec()
    if place is None or place.is_last_row():
        axes.set_xlabel(_length_label(curves))
    if place is None or place.is_first_col():
        axes.set_ylabel("exact match")
    if not tops:
        return
    for top in tops:
        axes.axvspan(0, top, color=SHADE, zorder=0.1, linewidth=0)
        axes.axvline(top, color=FAINT, linewidth=0.7, zorder=1.5)
    text = "trained to " + " and ".join(filter(None, [", ".join(map(str, tops[:-1])), str(tops[-1])]))
    # Align the text with the end of the training range, unless the range is too narrow for it.
    side, at = ("right", tops[-1]) if tops[-1] > 0.2 * right else ("left", 0)
    axes.annotate(
        text, (at, 1.02), (0, 3), ha=side, textcoords="offset points", fontsize=7, color=FAINT, annotation_clip=False
    )


def explain_bands(axes: Axes, curves: Sequence[Curve]) -> None:
    """Add a description of the bands to the label of the length axis, if any bands were drawn."""
    if not axes.collections or not axes.get_xlabel():
        return
    several = {point.seeds > 1 for curve in curves for point in curve.diagonal()}
    bands = ["worst to best seed"] * (True in several) + ["95 % interval of a single seed"] * (False in several)
    explained = ",\nor ".join(bands)
    axes.set_xlabel(f"{axes.get_xlabel()}\nbands: {explained}")


def _length_label(curves: Sequence[Curve]) -> str:
    """Return the label of the length axis: what sizes count, if all curves agree."""
    tasks = {row["task"] for curve in curves for rows in curve.rows_by_seed.values() for row in rows}
    axes = {curve.axes for curve in curves}
    if tasks == {"addition"}:
        return "digits per operand"
    if len(axes) > 1:
        return "length"
    short = {
        name: most for curve in curves for name, most in zip(curve.axes, curve.tops, strict=True) if most < curve.top
    }
    free = " = ".join(name for name in next(iter(axes)) if name not in short)
    return ", ".join([free, *(f"{name} up to {most}" for name, most in short.items())])


def draw_curve(axes: Axes, look: Look, points: Sequence[Point], *, banded: bool) -> None:
    """Draw a curve; with ``banded`` its band too, which is left out where there are many."""
    sizes = [point.length for point in points]
    means = [point.mean for point in points]
    layer = 2.9 if look.strong else 3.0  # drawn below the others, so that its wide line does not hide them
    axes.plot(sizes, means, markevery=math.ceil(len(sizes) / MARKS), zorder=layer, clip_on=False, **look.line())
    if not (banded or look.strong):
        return
    low, high = [point.low for point in points], [point.high for point in points]
    axes.fill_between(sizes, low, high, alpha=0.18, color=look.colour, linewidth=0, zorder=2)
