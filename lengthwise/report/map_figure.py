"""Exact match over two sizes, as a heat map."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from itertools import compress

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle

from lengthwise.base.errors import UsageError
from lengthwise.report import Row, Sizes, latest, size_text
from lengthwise.report.style import settled, styled

WRITTEN = 10  # sizes per side up to which a heat map's cells hold their numbers


@styled()
def heat_map(rows: Iterable[Row], top: int, title: str | None = None) -> Figure:
    """Exact match for every pair of sizes, the training square outlined; a panel per stopping rule and set of problems.

    Where the rows come from several weights, their mean. Rows of a single size are left out; UsageError if no others
    are there.
    """
    pairs = [row for row in rows if len(row["sizes"]) == 2]
    if not pairs:
        raise UsageError("no scores of two sizes to map: evaluate a run of a task with two axes, on 20x40 for instance")
    panels = _panels(pairs)
    sides = [sorted({row["sizes"][axis] for row in pairs}) for axis in (0, 1)]
    figure, grid = _panel_grid(len(panels))
    for axes, (name, cells) in zip(grid, panels.items(), strict=True):
        image = _draw_map(axes, cells, sides, top)
        axes.set_title(f"{name}\n{_summary(cells)}".strip(), fontsize=7, fontweight="normal", linespacing=1.4)
    figure.supxlabel(_side_label(pairs, "first"), fontsize=8)
    figure.supylabel(_side_label(pairs, "second"), fontsize=8)
    bar = figure.colorbar(image, ax=grid, label="exact match", shrink=0.8, aspect=30, ticks=np.linspace(0, 1, 6))
    bar.outline.set_visible(False)
    trained = f"trained to {top} x {top} (outlined)"
    figure.suptitle(f"{title}: {trained}" if title else trained, fontsize=9, fontweight="bold")
    return settled(figure)


def _panels(rows: Sequence[Row]) -> dict[str, dict[Sizes, float]]:
    """Mean exact match per size over weights, by what tells the stopping rules and sets of problems apart."""
    by_weights: dict[str, list[Row]] = {}
    for row in rows:
        by_weights.setdefault(row["weights"], []).append(row)
    kinds: dict[tuple[str, str], dict[Sizes, list[float]]] = {}
    for row in (row for one in by_weights.values() for row in latest(one)):
        cells = kinds.setdefault((row["stopping"], row["problems"]), {})
        cells.setdefault(tuple(row["sizes"]), []).append(row["exact"])
    varies = [len(set(values)) > 1 for values in zip(*kinds, strict=True)]
    return {
        ", ".join(compress(kind, varies)): {sizes: statistics.fmean(shares) for sizes, shares in cells.items()}
        for kind, cells in kinds.items()
    }


def _panel_grid(count: int) -> tuple[Figure, list[Axes]]:
    across = min(count, 3)
    down = math.ceil(count / across)
    size = (4.4, 4.1) if count == 1 else (0.9 + 2.3 * across, 0.7 + 2.4 * down)
    figure = Figure(size, layout="compressed")  # cells are square
    grid = figure.subplots(down, across, squeeze=False, sharex=True, sharey=True).ravel().tolist()
    for axes in grid[count:]:
        axes.set_axis_off()
    return figure, grid[:count]


def _draw_map(axes: Axes, cells: dict[Sizes, float], sides: Sequence[Sequence[int]], top: int) -> AxesImage:
    """The first size runs to the right, the second upwards, in the order of those measured."""
    first, second = sides
    values = np.array([[cells.get((i, j), math.nan) for i in first] for j in second])
    image = axes.imshow(values, cmap="viridis", vmin=0, vmax=1, origin="lower", interpolation="nearest")
    axes.grid(visible=False)
    axes.set_facecolor("#ececec")  # shows where nothing was measured
    axes.spines[:].set_visible(False)
    axes.set_xticks(*_size_ticks(first))
    axes.set_yticks(*_size_ticks(second))
    if max(values.shape) <= WRITTEN:
        for (j, i), share in np.ndenumerate(values):
            if not math.isnan(share):
                ink = "black" if share > 0.6 else "white"
                axes.text(i, j, f"{share:.2f}", ha="center", va="center", fontsize=6, color=ink)
    trained = [sum(size <= top for size in side) for side in sides]
    for colour, linewidth in (("white", 2.6), ("black", 1.2)):  # seen on light cells and on dark ones
        outline = Rectangle((-0.5, -0.5), *trained, fill=False, edgecolor=colour, linewidth=linewidth, clip_on=False)
        axes.add_patch(outline)
    return image


def _size_ticks(sizes: Sequence[int], most: int = 9) -> tuple[list[int], list[str]]:
    """Where to write sizes along a side, and what: all if they are few, else round ones."""
    written = list(sizes)
    for step in (2, 5, 10, 20, 50, 100, 200, 500):
        if len(written) <= most:
            break
        written = [size for size in sizes if size % step == 0]
    apart: list[int] = []  # sizes far beyond the others stand side by side with them: the largest is written
    for index in sorted(map(sizes.index, written), reverse=True):
        if not apart or apart[-1] - index >= len(sizes) / (2 * most):
            apart.append(index)
    apart.reverse()
    return apart, [str(sizes[index]) for index in apart]


def _summary(cells: dict[Sizes, float]) -> str:
    """Mean, best and worst cell, in two lines."""
    best, worst = max(cells.values()), min(cells.values())

    def where(share: float) -> str:
        there = [sizes for sizes, value in cells.items() if value == share]
        return f"at {size_text(there[0])}" if len(there) == 1 else f"in {len(there)} of {len(cells)} cells"

    mean = f"mean {statistics.fmean(cells.values()):.3f}"
    return f"{mean} · best {best:.2f} {where(best)}\nworst {worst:.2f} {where(worst)}"


def _side_label(rows: Sequence[Row], axis: str) -> str:
    return f"digits of the {axis} operand" if {row["task"] for row in rows} == {"addition"} else f"{axis} size"
