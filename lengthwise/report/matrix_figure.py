"""Figure of architectures × tasks: each cell shows uniform problems and the worst family, at three sizes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from lengthwise.base.csv_files import write_csv
from lengthwise.base.results import MATRIX_TIMES
from lengthwise.base.score_rows import Row, share_text
from lengthwise.report.style import FORMATS, INK, Drawing, Width, add_heading, drawing, fix_layout, save, style

HEIGHT = 0.42  # inches per row of cells
CAPTION = "in each cell, above: uniform problems, below: the worst family; hatched: not fitted"


def publish_matrix(
    rows: Sequence[Row], folder: Path, *, title: str = "", width: Width = "page", formats: Sequence[str] = FORMATS
) -> list[Path]:
    """Write ``matrix.csv`` and the figure ``matrix``; return the paths written."""
    files = save(matrix_figure(rows, title, width=width), folder / "matrix", formats)
    return [write_csv(folder / "matrix.csv", rows), *files]


@style()
def matrix_figure(rows: Sequence[Row], title: str = "", *, width: Width = "page") -> Drawing:
    """Draw rows of ``matrix_rows``; darker cells have higher exact match."""
    architectures = list(dict.fromkeys(row["architecture"] for row in rows))
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure = drawing(width, 1.1 + HEIGHT * len(architectures))
    axes = figure.subplots()
    for row in rows:
        place = tasks.index(row["task"]), architectures.index(row["architecture"])
        _draw(axes, place, row)
    for x in range(len(tasks)):
        for y in range(len(architectures)):
            axes.add_patch(Rectangle((x, y), 1, 1, fill=False, edgecolor="white", linewidth=2.5))
    axes.set(xlim=(0, len(tasks)), ylim=(len(architectures), 0))
    axes.set_xticks([x + 0.5 for x in range(len(tasks))], [task.replace(", ", "\n") for task in tasks], fontsize=6.5)
    axes.set_yticks([y + 0.5 for y in range(len(architectures))], architectures, fontsize=7)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    sizes = [sorted({max(row["sizes"]) for row in rows if row["times"] == times}) for times in MATRIX_TIMES]
    shown = " · ".join("–".join(map(str, dict.fromkeys((found[0], found[-1])))) for found in sizes if found)
    axes.set_xlabel(f"{CAPTION}; sizes {shown}", fontsize=6.5)
    add_heading(figure, title or "Exact match", width)
    return fix_layout(figure)


def _draw(axes: Axes, place: tuple[int, int], row: Row) -> None:
    """Draw one size of a cell: a column with uniform problems above and the worst family below."""
    wide = 1 / len(MATRIX_TIMES)
    left = place[0] + MATRIX_TIMES.index(row["times"]) * wide
    for number, name in enumerate(("uniform", "worst")):
        share = row[name]
        if share is None:
            continue
        corner = left, place[1] + number / 2
        colour = matplotlib.colormaps["Blues"](0.08 + 0.72 * share)
        hatch = None if row["fitted"] else "/////"
        axes.add_patch(Rectangle(corner, wide, 0.5, facecolor=colour, edgecolor="white", linewidth=0.4, hatch=hatch))
        axes.text(
            left + wide / 2,
            corner[1] + 0.26,
            share_text(share).removeprefix("0"),
            ha="center",
            va="center",
            fontsize=5,
            color="white" if share > 0.6 and row["fitted"] else INK,
        )
