"""Heat maps of exact match over two sizes."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import compress

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.patches import Rectangle

from lengthwise.base.errors import UsageError
from lengthwise.base.score_rows import Row, Sizes, group_by, select_reported_rows, share_text, size_text
from lengthwise.report import rule_text
from lengthwise.report.style import INK, PANELS_PER_ROW, WIDTHS, Drawing, Width, fix_layout, new_figure, style
from lengthwise.runs.folder import RunFolder

TICKS = 9  # maximum number of sizes labelled per side


def label_scores(runs: Iterable[RunFolder]) -> list[Row]:
    """Return the scores of runs, labelled with the run's id instead of the folder name, which may repeat."""
    return [row | {"weights": run.outline.id} for run in runs for row in run.rows("scores")]


@style()
def heat_map(rows: Iterable[Row], tops: Sizes, title: str | None = None, *, width: Width = "page") -> Drawing:
    """Draw exact match for every pair of sizes, the training range outlined; a panel per stopping rule and set of
    problems.

    Scores of several weights are averaged. A gap marks where sizes jump. Sizes measured only on the diagonal are not
    drawn but given as text; a panel with no other sizes is left out. Rows of a single size are ignored. Raises
    UsageError without rows of two sizes.
    """
    pairs = [row for row in rows if len(row["sizes"]) == 2]
    if not pairs:
        raise UsageError("no scores of two sizes to map: evaluate a run of a task with two axes, for example on 20x40")
    kinds = average_cells(pairs)
    varies = [len(set(values)) > 1 for values in zip(*kinds, strict=True)]
    panels = {
        ", ".join(compress((rule_text(rule), problems), varies)): cells for (rule, problems), cells in kinds.items()
    }
    measured = {sizes for cells in panels.values() for sizes in cells}
    unequal = {sizes for sizes in measured if sizes[0] != sizes[1]}
    sides = [sorted({sizes[axis] for sizes in unequal or measured}) for axis in (0, 1)]
    panels = {
        name: cells
        for name, cells in panels.items()
        if any(first_size != second_size for first_size, second_size in cells)
    } or panels
    range_text = f"trained to {' x '.join(map(str, tops))} (outlined)" if any(tops) else None  # None if unknown
    across = min(len(panels), PANELS_PER_ROW[width])
    down = math.ceil(len(panels) / across)
    side = min(3.0, (WIDTHS[width] - 1.35 - 0.3 * (across - 1)) / across)  # inches, beside labels and the colour bar
    figure = new_figure(width, 0.35 + down * (side + 0.8))
    figure.set_figwidth(1.35 + across * side + 0.3 * (across - 1))
    figure.set_layout_engine("compressed")
    grid = figure.subplots(down, across, squeeze=False).ravel()
    size_name = "operand's digits" if {row["task"] for row in pairs} == {"addition"} else "size"
    for number, (name, cells) in enumerate(panels.items()):
        axes, drawn = (
            grid[number],
            {pair: cells[pair] for pair in cells if pair[0] in sides[0] and pair[1] in sides[1]},
        )
        mesh = _draw_map(axes, drawn, sides, tops, side)
        axes.set_title(name, fontsize=7.5, pad=21)
        # The mean and the worst of the cells drawn, and up to two cells that are not drawn.
        low = min(drawn.values())
        worst = [sizes for sizes, share in drawn.items() if share == low]
        worst_text = f"at {size_text(worst[0])}" if len(worst) == 1 else f"in {len(worst)} of {len(drawn)}"
        undrawn = [f"{share_text(cells[sizes])} at {size_text(sizes)}" for sizes in sorted(cells.keys() - drawn.keys())]
        # More of them are drawn as a line in the length figure.
        beyond = f", beyond: {', '.join(undrawn)}" if 0 < len(undrawn) <= 2 else ""
        text = f"mean {share_text(statistics.fmean(drawn.values()), 3)}{beyond}\nworst {share_text(low)} {worst_text}"
        axes.annotate(text, (0, 1), (0, 4), "axes fraction", "offset points", fontsize=6 if side > 1.2 else 5)
        axes.set_xlabel(f"first {size_name}" if number + across >= len(panels) else "")
        axes.set_ylabel(f"second {size_name}" if number % across == 0 else "")
    for axes in grid[len(panels) :]:
        axes.remove()
    bar = figure.colorbar(mesh, ax=figure.axes, label="exact match", ticks=np.linspace(0, 1, 6), aspect=25, shrink=0.8)
    bar.outline.set_visible(False)
    return fix_layout(figure, ": ".join(filter(None, [title, range_text])), width)


def average_cells(rows: Iterable[Row]) -> dict[tuple[str, str], dict[Sizes, float]]:
    """Return mean exact match over weights: by (stopping rule, set of problems), then by size."""
    kinds: dict[tuple[str, str], dict[Sizes, list[float]]] = {}
    for rows_of_weights in group_by(rows, lambda row: row["weights"]).values():
        for row in select_reported_rows(rows_of_weights):
            cells = kinds.setdefault((row["stopping"], row["problems"]), {})
            cells.setdefault(tuple(row["sizes"]), []).append(row["exact"])
    return {kind: {sizes: statistics.fmean(shares) for sizes, shares in cells.items()} for kind, cells in kinds.items()}


def _draw_map(
    axes: Axes, cells: dict[Sizes, float], sides: Sequence[Sequence[int]], tops: Sizes, inches: float
) -> QuadMesh:
    """Draw the cells, whose sides have ``inches``: the first size along x, the second along y, in increasing order."""
    starts: list[dict[int, float]] = []  # where the cells of each size begin, in units of cells
    for side in sides:
        steps = [two - one for one, two in itertools.pairwise(side)]
        gaps = [0.7 * (step > min(steps)) for step in steps]  # a gap where sizes jump
        starts.append({first_size: number + sum(gaps[:number]) for number, first_size in enumerate(side)})
    left, low = starts
    # The edges of cells, and of the gaps between them.
    columns, rows = (sorted({*side.values(), *(start + 1 for start in side.values())}) for side in starts)
    values = np.full((len(rows) - 1, len(columns) - 1), math.nan)
    for (first_size, second_size), share in cells.items():
        values[rows.index(low[second_size]), columns.index(left[first_size])] = share
    mesh = axes.pcolormesh(columns, rows, values, cmap="viridis", vmin=0, vmax=1, rasterized=True)
    axes.grid(visible=False)
    axes.set_aspect("equal")
    axes.set_facecolor("#ececec")  # the colour of cells that were not measured
    axes.spines[:].set_visible(False)
    axes.set_xticks(*_choose_ticks(left))
    axes.set_yticks(*_choose_ticks(low))
    # Where sizes jump, a white gap across the map and two strokes on the axis.
    for along, span, transform in (
        (0, axes.axvspan, axes.get_xaxis_transform()),
        (1, axes.axhspan, axes.get_yaxis_transform()),
    ):
        for one, two in itertools.pairwise(starts[along].values()):
            if two - one > 1:
                span(one + 1, two, color="white", linewidth=0)
                middle = (one + 1 + two) / 2
                look = {"fontsize": 6, "color": INK, "annotation_clip": False, "xycoords": transform}
                axes.annotate("//", (0, middle) if along else (middle, 0), ha="center", va="center", **look)
    points = 72 * inches / max(*columns, *rows)  # a cell's width; only large cells have room for their values
    for (first_size, second_size), share in cells.items() if points >= 9.5 else ():
        if points >= 15:
            text = share_text(share)
        else:  # there is no room for ">.99"
            text = f"{share:.0f}" if share in (0, 1) else f"{min(max(share, 0.01), 0.99):.2f}"[1:]
        look = {"fontsize": 6.0 if points >= 15 else 4.6, "color": "black" if share > 0.6 else "white"}
        axes.annotate(text, (left[first_size] + 0.5, low[second_size] + 0.5), ha="center", va="center_baseline", **look)
    ends = [
        [at + 1 for first_size, at in side.items() if first_size <= top] for side, top in zip(starts, tops, strict=True)
    ]
    if all(ends):
        for colour, linewidth in (("white", 2.6), ("black", 1.2)):  # visible on light and dark cells
            box = Rectangle((0, 0), ends[0][-1], ends[1][-1], fill=False, edgecolor=colour, linewidth=linewidth)
            axes.add_patch(box)
            box.set_clip_on(False)
    return mesh


def _choose_ticks(starts: dict[int, float]) -> tuple[list[float], list[str]]:
    """Return the positions and texts of the ticks along a side: all sizes if they are few, otherwise round ones."""
    sizes = list(starts)
    written = sizes
    for step in (2, 5, 10, 20, 50, 100, 200, 500):
        if len(written) <= TICKS:
            break
        # If no size is round, as with odd sizes only, take every step-th size.
        written = [size for size in sizes if size % step == 0] or sizes[::step]
    spaced: list[int] = []  # drop labels that would overlap, keeping the larger size
    for index in sorted(map(sizes.index, written), reverse=True):
        if not spaced or spaced[-1] - index >= len(sizes) / (2 * TICKS):
            spaced.append(index)
    labelled = [sizes[index] for index in reversed(spaced)]
    return [starts[size] + 0.5 for size in labelled], list(map(str, labelled))
