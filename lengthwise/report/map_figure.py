"""Heat maps of exact match over two sizes."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import compress

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.patches import Rectangle

from lengthwise.base.errors import UsageError
from lengthwise.base.score_rows import Row, Sizes, format_share, format_size, group_by, select_reported_rows
from lengthwise.report import format_rule
from lengthwise.report.style import PANELS_PER_ROW, WIDTHS, Drawing, Width, fix_layout, new_figure, style
from lengthwise.runs.folder import RunFolder

MAX_TICKS = 9  # maximum number of sizes labelled per side


def label_scores(runs: Iterable[RunFolder]) -> list[Row]:
    """Return the scores of runs, labelled with the run's id instead of the folder name, which may repeat."""
    return [row | {"weights": run.outline.id} for run in runs for row in run.rows("scores")]


@style()
def draw_heat_map(rows: Iterable[Row], tops: Sizes, title: str | None = None, *, width: Width = "page") -> Drawing:
    """Draw exact match at pairs of sizes as a heat map, averaged over weights, with the training range outlined and a
    panel per stopping rule and set of problems. ``tops`` are the largest sizes trained on. If any pair has unequal
    sizes, only sizes that occur in such a pair are shown. Raises UsageError without pairs of sizes."""
    pairs = [row for row in rows if len(row["sizes"]) == 2]
    if not pairs:
        raise UsageError("there are no scores at pairs of sizes: evaluate a run of a task with two axes, e.g. on 20x40")
    kinds = average_cells(pairs)
    varies = [len(set(values)) > 1 for values in zip(*kinds, strict=True)]
    names = (", ".join(compress((format_rule(rule), problems), varies)) for rule, problems in kinds)
    panels = dict(zip(names, kinds.values(), strict=True))
    panels = {name: cells for name, cells in panels.items() if any(len({*sizes}) == 2 for sizes in cells)} or panels
    measured = {sizes for cells in panels.values() for sizes in cells}
    # Sizes measured only on the diagonal may be far apart; the length figure shows them.
    mapped = {sizes for sizes in measured if sizes[0] != sizes[1]} or measured
    sides = [sorted({sizes[axis] for sizes in mapped}) for axis in (0, 1)]
    across = min(len(panels), PANELS_PER_ROW[width])
    down = math.ceil(len(panels) / across)
    side = min(3.0, (WIDTHS[width] - 1.35 - 0.3 * (across - 1)) / across)  # inches, beside labels and the colour bar
    figure = new_figure(width, 0.35 + down * (side + 0.8))
    figure.set_figwidth(1.35 + across * side + 0.3 * (across - 1))
    figure.set_layout_engine("compressed")
    grid = figure.subplots(down, across, squeeze=False).ravel()
    size_name = "operand's digits" if {row["task"] for row in pairs} == {"addition"} else "size"
    for number, (axes, (name, measured_cells)) in enumerate(zip(grid, panels.items(), strict=False)):
        cells = {at: share for at, share in measured_cells.items() if at[0] in sides[0] and at[1] in sides[1]}
        mesh = _draw_map(axes, cells, sides, tops, side)
        axes.set_title(name, fontsize=7.5, pad=21)
        low = min(cells.values())
        worst = [sizes for sizes, share in cells.items() if share == low]
        where = f"at {format_size(worst[0])}" if len(worst) == 1 else f"in {len(worst)} of {len(cells)}"
        text = f"mean {format_share(statistics.fmean(cells.values()), 3)}\nworst {format_share(low)} {where}"
        axes.annotate(text, (0, 1), (0, 4), "axes fraction", "offset points", fontsize=6 if side > 1.2 else 5)
        axes.set_xlabel(f"first {size_name}" if number + across >= len(panels) else "")
        axes.set_ylabel(f"second {size_name}" if number % across == 0 else "")
    for axes in grid[len(panels) :]:
        axes.remove()
    bar = figure.colorbar(mesh, ax=figure.axes, label="exact match", ticks=np.linspace(0, 1, 6), aspect=25, shrink=0.8)
    bar.outline.set_visible(False)
    range_text = f"trained to {' x '.join(map(str, tops))} (outlined)" if any(tops) else None  # None if unknown
    return fix_layout(figure, ": ".join(filter(None, [title, range_text])), width)


def average_cells(rows: Iterable[Row]) -> dict[tuple[str, str], dict[Sizes, float]]:
    """Return exact match, averaged over weights, by stopping rule and set of problems, then by sizes."""
    kinds: dict[tuple[str, str], dict[Sizes, list[float]]] = {}
    for rows_of_weights in group_by(rows, lambda row: row["weights"]).values():
        for row in select_reported_rows(rows_of_weights):
            cells = kinds.setdefault((row["stopping"], row["problems"]), {})
            cells.setdefault(tuple(row["sizes"]), []).append(row["exact"])
    return {kind: {sizes: statistics.fmean(shares) for sizes, shares in cells.items()} for kind, cells in kinds.items()}


def _draw_map(
    axes: Axes, cells: dict[Sizes, float], sizes_per_axis: Sequence[Sequence[int]], tops: Sizes, inches_wide: float
) -> QuadMesh:
    """Draw a square map of width ``inches_wide``: the first size along x, the second along y, in increasing order."""
    firsts, seconds = sizes_per_axis
    values = np.full((len(seconds), len(firsts)), math.nan)
    for (first, second), score in cells.items():
        values[seconds.index(second), firsts.index(first)] = score
    mesh = axes.pcolormesh(values, cmap="viridis", vmin=0, vmax=1, rasterized=True)
    axes.grid(visible=False)
    axes.set_aspect("equal")
    axes.set_facecolor("#ececec")  # the colour of cells that were not measured
    axes.spines[:].set_visible(False)
    for side, set_ticks in ((firsts, axes.set_xticks), (seconds, axes.set_yticks)):
        step = math.ceil(len(side) / MAX_TICKS)
        set_ticks(np.arange(step - 0.5, len(side), step), list(map(str, side[step - 1 :: step])))
    if 72 * inches_wide / max(values.shape) >= 15:  # points per cell: there is room for values
        for (first, second), score in cells.items():
            place = firsts.index(first) + 0.5, seconds.index(second) + 0.5
            colour = "black" if score > 0.6 else "white"
            axes.annotate(format_share(score), place, ha="center", va="center_baseline", fontsize=6, color=colour)
    wide, high = (sum(size <= top for size in side) for side, top in zip(sizes_per_axis, tops, strict=True))
    if wide and high:
        for colour, linewidth in (("white", 2.6), ("black", 1.2)):  # visible on light and dark cells
            box = Rectangle((0, 0), wide, high, fill=False, edgecolor=colour, linewidth=linewidth, clip_on=False)
            axes.add_patch(box)
    return mesh
