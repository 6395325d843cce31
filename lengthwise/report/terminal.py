"""Line plots made of characters, for live plots in a terminal: braille dots, two across and four down per cell."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from rich.text import Text

from lengthwise.base.errors import UsageError

Points = Sequence[tuple[float, float]]
Cell = tuple[int, int]  # row from the top, column from the left

MARKS = "●▲■◆○△□◇"
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")  # the terminal's own, which suit its background
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # the bit of each dot of a braille cell: left, right column
GUTTER = 4  # columns of the numbers on the left


def plot(
    series: Mapping[str, Points],
    *,
    width: int = 72,
    height: int = 14,
    top: float | None = None,
    x_label: str = "",
    y_label: str = "",
) -> Text:
    """Plot a line through the points of each named series, with a y axis from 0 to 1. The result has ``height`` lines
    of at most ``width`` columns.

    A dashed line marks ``top``, the largest size trained on; the axis then starts at 0, to show the training range in
    proportion. Values that are not finite leave a gap; values outside 0 to 1 are drawn at the edge. Raises UsageError
    if there is too little room.
    """
    legend = _format_legend(list(series), y_label, width, max(1, height // 4))
    rows, columns = height - len(legend) - 2, width - GUTTER - 1
    if rows < 2 or columns < 10:
        raise UsageError(f"a plot needs more room than {width} columns and {height} lines")
    ends = [x for points in series.values() for x, _ in points if math.isfinite(x)]
    ends += [0, top] if top is not None else [] if ends else [0, 1]
    low, high = min(ends), max(ends)
    canvas = Canvas(rows, columns, (low, high) if low < high else (low - 1, low + 1))
    for number, points in enumerate(series.values()):
        canvas.draw(number, points)
    rule = None if top is None else canvas.locate_dot(top, 0)[0] // 2
    ticks = {0: "1", rows - 1: "0"} | ({rows // 2: "0.5"} if rows % 2 else {})
    lines = [*legend]
    for row in range(rows):
        tick = ticks.get(row, "")
        lines.append(Text.assemble((f"{tick:>{GUTTER}}{'┤' if tick else '│'}", "dim"), canvas.line(row, rule)))
    axis = "└" + "".join("┴" if column == rule else "─" for column in range(columns))
    if x_label and len(x_label) < columns // 2:
        axis = f"{axis[: -len(x_label) - 1]} {x_label}"
    lines.append(Text(" " * GUTTER + axis, "dim"))
    first, last = f"{canvas.xs[0]:.6g}", f"{canvas.xs[1]:.6g}"
    labels = [(columns - len(last), last), (0, first)]
    if rule is not None:  # placed first, so that labels that would touch it are left out
        note = f"trained to {top:.6g}"
        labels.insert(0, (min(max(0, rule - len(note) // 2), columns - len(note)), note))
    below = [" "] * columns
    for start, text in labels:
        if start >= 0 and not "".join(below[max(0, start - 1) : start + len(text) + 1]).strip():
            below[start : start + len(text)] = text
    lines.append(Text(" " * (GUTTER + 1) + "".join(below), "dim"))
    return Text("\n", no_wrap=True, overflow="crop").join(lines)


class Canvas:
    """A grid of cells over a rectangle of values. Later series are drawn on top; marks are drawn above lines."""

    def __init__(self, rows: int, columns: int, xs: tuple[float, float], ys: tuple[float, float] = (0.0, 1.0)) -> None:
        self.rows, self.columns, self.xs, self.ys = rows, columns, xs, ys
        self.dots: dict[Cell, int] = {}  # bits of a braille character
        self.owner: dict[Cell, int] = {}  # the series whose colour a cell has
        self.marks: dict[Cell, list[int]] = {}  # the series that have a mark there

    def draw(self, number: int, points: Points) -> None:
        """Add a series: a line through its points, and marks on some of them, including the first and the last."""
        places = [self.locate_dot(x, y) if math.isfinite(x) and math.isfinite(y) else None for x, y in points]
        finite_places = [place for place in places if place]
        for start, end in [*pairwise(places), *zip(finite_places, finite_places, strict=True)]:
            if start and end:
                steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]))
                for x, y in np.linspace(start, end, steps + 1).round().astype(int).tolist():
                    cell = y // 4, x // 2
                    self.dots[cell] = self.dots.get(cell, 0) | DOTS[x % 2][y % 4]
                    self.owner[cell] = number
        min_gap = (
            6 if len(finite_places) > self.columns // 4 else 1
        )  # columns between marks, of which many would not fit
        last = -min_gap
        for x, y in finite_places:
            cell = y // 4, x // 2
            is_marked = abs(cell[1] - last) >= min_gap or (x, y) == finite_places[-1]
            if is_marked and number not in self.marks.get(cell, []):
                self.marks.setdefault(cell, []).append(number)
                last = cell[1]

    def locate_dot(self, x: float, y: float) -> tuple[int, int]:
        """Return the dot of a value, from the left and from the top."""
        across, up = np.interp(x, self.xs, (0, 1)), np.interp(y, self.ys, (0, 1))
        return round(across * (2 * self.columns - 1)), round((1 - up) * (4 * self.rows - 1))

    def line(self, row: int, rule: int | None = None) -> Text:
        """Return one line of the plot, with a dashed rule in column ``rule``."""
        line = Text()
        for column in range(self.columns):
            cell = row, column
            if series_here := self.marks.get(cell):
                # Where series coincide, alternate their marks along the line, so that all stay visible.
                turn = sum(
                    len(series_there) > 1 and other_column < column
                    for (_, other_column), series_there in self.marks.items()
                )
                line.append(*_mark_and_colour(series_here[turn % len(series_here)]))
            elif cell in self.dots:
                line.append(chr(0x2800 + self.dots[cell]), COLOURS[self.owner[cell] % len(COLOURS)])
            else:
                line.append("┊" if column == rule else " ", "dim")
        return line


def _mark_and_colour(number: int) -> tuple[str, str]:
    return MARKS[number % len(MARKS)], f"bold {COLOURS[number % len(COLOURS)]}"


def _format_legend(names: Sequence[str], y_label: str, width: int, lines: int) -> list[Text]:
    """Return the y axis's name and each series with its mark, on as few lines as possible and at most ``lines``."""
    entries = [Text(y_label, "italic")] if y_label else []
    entries += [Text.assemble(_mark_and_colour(i), " ", name) for i, name in enumerate(names)]
    legend = [Text()]
    for entry in entries:
        if legend[-1] and legend[-1].cell_len + 3 + entry.cell_len > width:
            if len(legend) == lines:
                legend[-1].truncate(width - 2)
                legend[-1].append(" …")
                break
            legend.append(Text())
        legend[-1].append("   " if legend[-1] else "").append_text(entry)
    for line in legend:
        line.truncate(width, overflow="ellipsis")
    return legend
