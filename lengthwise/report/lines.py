"""What figures of lines share: how a line looks, and its name beside its end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation

from lengthwise.report.style import WIDTH

MARKS = 12  # markers on a line, about


@dataclass(frozen=True)
class Look:
    """How a line is drawn and called."""

    name: str
    colour: str
    marker: str
    dash: str | tuple[float, tuple[float, ...]] = "-"

    def line(self) -> dict[str, Any]:
        """Its properties, for matplotlib."""
        line = {"color": self.colour, "marker": self.marker, "linestyle": self.dash}
        return line | {"markeredgecolor": "white", "markeredgewidth": 0.5}


def up(share: float) -> float:
    """Where exact match stands on its axis, as a share of the axis's height."""
    return (share + 0.02) / 1.04


def name_lines(axes: Axes, looks: Sequence[Look], ends: Sequence[float]) -> None:
    """The legend: each line's name to the right of the axes, as near to its end as there is room. Ends are shares of
    the axes' height."""
    figure = cast(Figure, axes.figure)
    figure.draw_without_rendering()  # the axes' height is known once the layout is
    gap = 0.16 * figure.dpi / axes.get_window_extent().height
    order = sorted(range(len(ends)), key=lambda number: -ends[number])
    for number, height in zip(order, _apart([ends[number] for number in order], gap), strict=True):
        edge = ScaledTranslation(1, height, axes.transAxes)  # type: ignore[arg-type]
        beside = figure.dpi_scale_trans + edge  # inches to the right of it
        look, sample = looks[number], [0.12, 0.3, 0.48]
        axes.add_artist(Line2D(sample, [0] * 3, markevery=[1], transform=beside, clip_on=False, **look.line()))
        axes.text(0.56, 0, look.name, transform=beside, va="center_baseline", fontsize=7.5)


def width(names: Iterable[str]) -> float:
    """A figure's width in inches: wider than usual where long names would leave the axes too little."""
    return max(WIDTH, 3.9 + 0.068 * max(map(len, names)))


def _apart(wanted: Sequence[float], gap: float, top: float = 1.0) -> list[float]:
    """Heights from the top down, at least ``gap`` apart and as near to those wanted (in falling order) as one pass down
    and one up can make them; too many run over the top."""
    heights: list[float] = []
    for height in wanted:
        heights.append(min(height, heights[-1] - gap if heights else top))
    floor = 0.0
    for number in reversed(range(len(heights))):
        heights[number] = max(heights[number], floor)
        floor = heights[number] + gap
    return heights
