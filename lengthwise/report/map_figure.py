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
from lengthwise.base.score_rows import Row, Sizes, group_by, latest_rows, share_text, size_text
from lengthwise.report import rule_text
from lengthwise.report.style import ACROSS, INK, WIDTHS, Drawing, Width, fix_layout, new_figure, style
from lengthwise.runs.folder import RunFolder

TICKS = 9  # maximum number of sizes labelled per side
JUMP = 0.7  # width in cells of the gap where sizes jump


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
    panels = {name: cells for name, cells in panels.items() if any(one != other for one, other in cells)} or panels
    reach = f"trained to {' x '.join(map(str, tops))} (outlined)" if any(tops) else None  # None if unknown
    across = min(len(panels), ACROSS[width])
    down = math.ceil(len(panels) / across)
    side = min(3.0, (WIDTHS[width] - 1.35 - 0.3 * (across - 1)) / across)  # inches, beside labels and the colour bar
    figure = new_figure(width, 0.35 + down * (side + 0.8))
    figure.set_figwidth(1.35 + across * side + 0.3 * (across - 1))
    figure.set_layout_engine("compressed")
    grid = figure.subplots(down, across, squeeze=False).ravel()
    for number, (name, cells) in enumerate(panels.items()):
        axes = grid[number]
        mesh = _draw_map(axes, cells, sides, tops, side)
        axes.set_title(name, fontsize=7.5, pad=21)
        size = 6 if side > 1.2 else 5
        axes.annotate(_describe_cells(cells, sides), (0, 1), (0, 4), "axes fraction", "offset points", fontsize=size)
        what = "operand's digits" if {row["task"] for row in pairs} == {"addition"} else "size"
        axes.set_xlabel(f"first {what}" if number + across >= len(panels) else "")
        axes.set_ylabel(f"second {what}" if number % across == 0 else "")
    for axes in grid[len(panels) :]:
        axes.remove()
    bar = figure.colorbar(mesh, ax=figure.axes, label="exact match", ticks=np.linspace(0, 1, 6), aspect=25, shrink=0.8)
    bar.outline.set_visible(False)
    return fix_layout(figure, ": ".join(filter(None, [title, reach])), width)


def average_cells(rows: Iterable[Row]) -> dict[tuple[str, str], dict[Sizes, float]]:
    """Return mean exact match over weights, by stopping rule and problems, and by size."""
    kinds: dict[tuple[str, str], dict[Sizes, list[float]]] = {}
    for of_weights in group_by(rows, lambda row: row["weights"]).values():
        for row in latest_rows(of_weights):
            cells = kinds.setdefault((row["stopping"], row["problems"]), {})
            cells.setdefault(tuple(row["sizes"]), []).append(row["exact"])
    return {kind: {sizes: statistics.fmean(shares) for sizes, shares in cells.items()} for kind, cells in kinds.items()}


def _draw_map(
    axes: Axes, cells: dict[Sizes, float], sides: Sequence[Sequence[int]], tops: Sizes, inches: float
) -> QuadMesh:
    """Draw the cells: the first size along x, the second along y, in increasing order."""
    (first, left), (second, low) = [(side, _locate_cells(side)) for side in sides]
    # The edges of cells, and of the gaps between them.
    columns, rows = (sorted({*starts, *(start + 1 for start in starts)}) for starts in (left, low))
    values = np.full((len(rows) - 1, len(columns) - 1), math.nan)
    for (size, start), (other, bottom) in itertools.product(
        zip(first, left, strict=True), zip(second, low, strict=True)
    ):
        values[rows.index(bottom), columns.index(start)] = cells.get((size, other), math.nan)
    mesh = axes.pcolormesh(columns, rows, values, cmap="viridis", vmin=0, vmax=1, rasterized=True)
    axes.grid(visible=False)
    axes.set_aspect("equal")
    axes.set_facecolor("#ececec")  # the colour of cells that were not measured
    axes.spines[:].set_visible(False)
    axes.set_xticks(*_choose_ticks(first, left))
    axes.set_yticks(*_choose_ticks(second, low))
    _mark_jumps(axes, left, low)
    _write_cells(axes, cells, (first, second), (left, low), 72 * inches / max(*columns, *rows))
    ends = [
        [start + 1 for size, start in zip(*side, strict=True) if size <= top]
        for side, top in zip(((first, left), (second, low)), tops, strict=True)
    ]
    if all(ends):
        for colour, linewidth in (("white", 2.6), ("black", 1.2)):  # visible on light and dark cells
            box = Rectangle((0, 0), ends[0][-1], ends[1][-1], fill=False, edgecolor=colour, linewidth=linewidth)
            axes.add_patch(box)
            box.set_clip_on(False)
    return mesh


def _locate_cells(sizes: Sequence[int]) -> list[float]:
    """Return where the cell of each size begins, in units of cells; there is a gap where sizes jump by more than the
    smallest step."""
    steps = [two - one for one, two in itertools.pairwise(sizes)]
    gaps = [JUMP * (step > min(steps)) for step in steps]
    return [number + sum(gaps[:number]) for number in range(len(sizes))]


def _mark_jumps(axes: Axes, x_starts: Sequence[float], y_starts: Sequence[float]) -> None:
    """Draw a white gap across the map where sizes jump, and two strokes on the axis."""
    for starts, span, along in ((x_starts, axes.axvspan, 0), (y_starts, axes.axhspan, 1)):
        for one, two in itertools.pairwise(starts):
            if two - one > 1:
                span(one + 1, two, color="white", linewidth=0)
                middle = (one + 1 + two) / 2
                at = (middle, 0) if along == 0 else (0, middle)
                place = {"xycoords": axes.get_xaxis_transform() if along == 0 else axes.get_yaxis_transform()}
                axes.annotate("//", at, ha="center", va="center", fontsize=6, color=INK, annotation_clip=False, **place)


def _write_cells(
    axes: Axes,
    cells: dict[Sizes, float],
    sides: Sequence[Sequence[int]],
    starts: Sequence[Sequence[float]],
    points: float,
) -> None:
    """Write each cell's value, if a cell of ``points`` points is large enough."""
    if points < 9.5:
        return
    for size, share in _cells_on_map(cells, sides).items():
        if points >= 15:
            text = share_text(share)
        else:  # there is no room for ">.99"
            text = f"{share:.0f}" if share in (0, 1) else f"{min(max(share, 0.01), 0.99):.2f}"[1:]
        x, y = (starts[axis][sides[axis].index(size[axis])] + 0.5 for axis in (0, 1))
        look = {"fontsize": 6.0 if points >= 15 else 4.6, "color": "black" if share > 0.6 else "white"}
        axes.annotate(text, (x, y), ha="center", va="center_baseline", **look)


def _choose_ticks(sizes: Sequence[int], starts: Sequence[float]) -> tuple[list[float], list[str]]:
    """Return the positions and texts of the ticks along a side: all sizes if they are few, otherwise round ones."""
    written = list(sizes)
    for step in (2, 5, 10, 20, 50, 100, 200, 500):
        if len(written) <= TICKS:
            break
        # If no size is round, as with odd sizes only, take every step-th size.
        written = [size for size in sizes if size % step == 0] or sizes[::step]
    apart: list[int] = []  # drop labels that would overlap, keeping the larger size
    for index in sorted(map(sizes.index, written), reverse=True):
        if not apart or apart[-1] - index >= len(sizes) / (2 * TICKS):
            apart.append(index)
    apart.reverse()
    return [starts[index] + 0.5 for index in apart], [str(sizes[index]) for index in apart]


def _cells_on_map(cells: dict[Sizes, float], sides: Sequence[Sequence[int]]) -> dict[Sizes, float]:
    """Return the cells whose sizes are on both sides of the map."""
    return {sizes: share for sizes, share in cells.items() if sizes[0] in sides[0] and sizes[1] in sides[1]}


def _describe_cells(cells: dict[Sizes, float], sides: Sequence[Sequence[int]]) -> str:
    """Describe the mean and the worst of the cells drawn, and up to two cells that are not drawn."""
    drawn = _cells_on_map(cells, sides)
    worst = min(drawn.values())
    worst_sizes = [sizes for sizes, share in drawn.items() if share == worst]
    where = f"at {size_text(worst_sizes[0])}" if len(worst_sizes) == 1 else f"in {len(worst_sizes)} of {len(drawn)}"
    lines = [f"mean {share_text(statistics.fmean(drawn.values()), 3)}", f"worst {share_text(worst)} {where}"]
    rest = [f"{share_text(cells[sizes])} at {size_text(sizes)}" for sizes in sorted(cells.keys() - drawn.keys())]
    if 0 < len(rest) <= 2:  # more of them are drawn as a line in the length figure
        lines[0] += f", beyond: {', '.join(rest)}"
    return "\n".join(lines)
