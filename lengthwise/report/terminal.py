"""Line plots made of characters, for live plots in a terminal: braille dots, two across and four down per cell."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise

from rich.text import Text

from lengthwise.base.errors import UsageError

Number = int | float
Points = Sequence[tuple[Number, Number]]
Cell = tuple[int, int]  # row from the top, column from the left

MARKS = "●▲■◆○△□◇"
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")  # the terminal's own, which suit its background
DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # the bit of each dot of a braille cell: left, right column
MARK_EVERY = 6  # columns between marks of a series with too many points to mark each


def plot(
    series: Mapping[str, Points],
    *,
    width: int = 72,
    height: int = 14,
    top: Number | None = None,
    x_label: str = "",
    y_label: str = "",
    x_range: tuple[Number, Number] | None = None,
    y_range: tuple[Number, Number] = (0.0, 1.0),
) -> Text:
    """Plot lines through the points of each named series; always ``height`` lines of at most ``width`` columns.

    A dashed line marks ``top``, the largest size trained on. Values that are not finite leave a gap; values beyond a
    range are drawn at its edge. Without ``x_range``, the points set it; with ``top``, it starts at 0, to show the
    training range in proportion. Raises UsageError if there is too little room.
    """
    ticks = [f"{value:.4g}" for value in (y_range[1], sum(y_range) / 2, y_range[0])]
    gutter = max(map(len, ticks)) + 1
    legend = _legend_lines(list(series), y_label, width, max(1, height // 4))
    rows, columns = height - len(legend) - 2, width - gutter - 1
    if rows < 2 or columns < 10:
        raise UsageError(f"a plot needs more room than {width} columns and {height} lines")
    canvas = Canvas(rows, columns, x_range or _x_extent(series.values(), top), y_range)
    for number, points in enumerate(series.values()):
        canvas.draw(number, points)
    rule = canvas.column(top) if top is not None and canvas.xs[0] <= top <= canvas.xs[1] else None
    lines = [*legend]
    for row in range(rows):
        tick = {0: ticks[0], (rows - 1) // 2: ticks[1] if rows % 2 else "", rows - 1: ticks[2]}.get(row, "")
        edge = f"{tick:>{gutter}}{'┤' if tick else '│'}"
        lines.append(Text.assemble((edge, "dim"), canvas.line(row, rule)))
    axis = "└" + "".join("┴" if column == rule else "─" for column in range(columns))
    if x_label and len(x_label) < columns // 2:
        axis = f"{axis[: -len(x_label) - 1]} {x_label}"
    lines.append(Text(" " * gutter + axis, "dim"))
    lines.append(Text(" " * (gutter + 1) + _tick_line(columns, canvas.xs, rule, top), "dim"))
    return Text("\n", no_wrap=True, overflow="crop").join(lines)


class Canvas:
    """A grid of cells over a rectangle of values. Later series are drawn on top; marks are drawn above lines."""

    def __init__(
        self, rows: int, columns: int, xs: tuple[Number, Number], ys: tuple[Number, Number] = (0.0, 1.0)
    ) -> None:
        if not (xs[0] < xs[1] and ys[0] < ys[1]):
            raise UsageError(f"a plot's ranges must go from low to high, not {xs} and {ys}")
        self.rows, self.columns, self.xs, self.ys = rows, columns, xs, ys
        self.dots: dict[Cell, int] = {}  # bits of a braille character
        self.owner: dict[Cell, int] = {}  # the series whose colour a cell has
        self.marks: dict[Cell, list[int]] = {}  # the series that have a mark there

    def draw(self, number: int, points: Points) -> None:
        """Add a series: a line through its points, and marks on some of them, including the first and the last."""
        dots = [self.dot(x, y) for x, y in points]
        for before, after in pairwise(dots):
            if before and after:
                self._fill_dots(number, _line_dots(before, after))
        self._fill_dots(number, filter(None, dots))
        self._place_mark(number, [(dot[1] // 4, dot[0] // 2) for dot in dots if dot])

    def dot(self, x: Number, y: Number) -> tuple[int, int] | None:
        """Return the dot of a value, from the left and from the top; None unless both are finite."""
        if not (math.isfinite(x) and math.isfinite(y)):
            return None
        across, up = _clamped_fraction(x, self.xs), _clamped_fraction(y, self.ys)
        return round(across * (2 * self.columns - 1)), round((1 - up) * (4 * self.rows - 1))

    def column(self, x: Number) -> int:
        """Return the column of cells that contains a value."""
        return round(_clamped_fraction(x, self.xs) * (2 * self.columns - 1)) // 2

    def line(self, row: int, rule: int | None = None) -> Text:
        """Return one line of the plot, with a dashed rule in column ``rule``."""
        line = Text()
        for column in range(self.columns):
            line.append(*self._to_character((row, column), column == rule))
        return line

    def _fill_dots(self, number: int, dots: Iterable[tuple[int, int]]) -> None:
        for x, y in dots:
            cell = y // 4, x // 2
            self.dots[cell] = self.dots.get(cell, 0) | DOTS[x % 2][y % 4]
            self.owner[cell] = number

    def _place_mark(self, number: int, cells: Sequence[Cell]) -> None:
        apart = MARK_EVERY if len(cells) > self.columns // 4 else 1
        last = -apart
        for index, cell in enumerate(cells):
            due = abs(cell[1] - last) >= apart or index == len(cells) - 1
            if due and number not in self.marks.get(cell, []):
                self.marks.setdefault(cell, []).append(number)
                last = cell[1]

    def _to_character(self, cell: Cell, ruled: bool) -> tuple[str, str]:
        if rivals := self.marks.get(cell):
            # Where series coincide, alternate their marks along the line, so that all stay visible.
            turn = sum(len(others) > 1 and column < cell[1] for (_, column), others in self.marks.items())
            number = rivals[turn % len(rivals)]
            return _series_style(number)
        if cell in self.dots:
            return chr(0x2800 + self.dots[cell]), COLOURS[self.owner[cell] % len(COLOURS)]
        return ("┊", "dim") if ruled else (" ", "")


def _series_style(number: int) -> tuple[str, str]:
    """Return the mark and the style of a series, by its number."""
    return MARKS[number % len(MARKS)], f"bold {COLOURS[number % len(COLOURS)]}"


def _line_dots(start: tuple[int, int], end: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the dots of a straight line, one per step along its longer side."""
    across, down = end[0] - start[0], end[1] - start[1]
    steps = max(abs(across), abs(down), 1)
    for step in range(steps + 1):
        yield start[0] + round(across * step / steps), start[1] + round(down * step / steps)


def _clamped_fraction(value: Number, limits: tuple[Number, Number]) -> float:
    """Return where a value lies between the limits, from 0 to 1, clamped."""
    return min(1.0, max(0.0, (value - limits[0]) / (limits[1] - limits[0])))


def _x_extent(series: Iterable[Points], top: Number | None) -> tuple[Number, Number]:
    """Return the range of x over all points and, with ``top``, over 0 and ``top``; widened if it is empty or a single
    value."""
    xs = [x for points in series for x, _ in points if math.isfinite(x)]
    xs += [0, top] if top is not None else []
    if not xs:
        return 0, 1
    return (min(xs), max(xs)) if min(xs) < max(xs) else (xs[0] - 1, xs[0] + 1)


def _legend_lines(names: Sequence[str], y_label: str, width: int, lines: int) -> list[Text]:
    """Return the y axis's name and each series with its mark, on as few lines as possible and at most ``lines``."""
    entries = [Text(y_label, "italic")] if y_label else []
    entries += [Text.assemble(_series_style(i), " ", name) for i, name in enumerate(names)]
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


def _tick_line(columns: int, xs: tuple[Number, Number], rule: int | None, top: Number | None) -> str:
    """Return the line below the axis: both ends and the training length, where they do not overlap."""
    first, last = f"{xs[0]:.6g}", f"{xs[1]:.6g}"
    placed = [(columns - len(last), last), (0, first)]
    if rule is not None:
        # The training length is placed first; labels that would touch it are left out.
        note = f"trained to {top:.6g}"
        placed.insert(0, (min(max(0, rule - len(note) // 2), columns - len(note)), note))
    line = [" "] * columns
    for start, text in placed:
        room = line[max(0, start - 1) : start + len(text) + 1]
        if start >= 0 and all(character == " " for character in room):
            line[start : start + len(text)] = text
    return "".join(line)
