"""Line plots of the demo, made of braille characters, each with two by four dots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
from rich.console import Group
from rich.text import Text

Points = Sequence[tuple[float, float]]

ROWS, COLUMNS = 9, 71  # cells
MARKERS = "●▲■◆○△□◇"
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")  # the terminal's own, which suit its background
DOT_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # of a braille cell's left and right column of dots


def plot(series: Mapping[str, Points], x_label: str, top: float | None = None) -> Group:
    """Plot exact match as a line per named series; a dashed line marks ``top``, the largest size trained on."""
    ends = [x for points in series.values() for x, _ in points] + ([0, top] if top is not None else [])
    low, high = min(ends, default=0), max(ends, default=1)

    def locate_dot(x: float, y: float) -> tuple[int, int]:
        """Return the position of a value's dot, counted from the left and from the top."""
        across = np.interp(x, (low, max(high, low + 1)), (0, 2 * COLUMNS - 1))
        return round(across), round(np.interp(y, (0, 1), (4 * ROWS - 1, 0)))

    dots: dict[tuple[int, int], int] = {}  # bits of the braille characters, by row and column
    lines: dict[tuple[int, int], tuple[str, str]] = {}  # characters and their styles
    marks: dict[tuple[int, int], tuple[str, str]] = {}
    legend = [Text("exact match", "italic")]
    for number, (name, points) in enumerate(series.items()):
        mark, colour = MARKERS[number % len(MARKERS)], COLOURS[number % len(COLOURS)]
        legend.append(Text.assemble((mark, f"bold {colour}"), " ", name))
        places = [locate_dot(x, y) for x, y in points]
        for start, end in pairwise(places):
            steps = max(abs(end[0] - start[0]), abs(end[1] - start[1]))
            for x, y in np.linspace(start, end, steps + 1).round().astype(int).tolist():
                cell = y // 4, x // 2
                dots[cell] = dots.get(cell, 0) | DOT_BITS[x % 2][y % 4]
                lines[cell] = chr(0x2800 + dots[cell]), colour
        every = max(1, 8 * len(places) // COLUMNS)  # marks are eight columns apart, if there are many
        for x, y in [*places[::every], *places[-1:]]:
            marks[y // 4, x // 2] = mark, f"bold {colour}"
    rule = None if top is None else locate_dot(top, 0)[0] // 2
    drawn = Text(no_wrap=True, overflow="crop")
    for row in range(ROWS):
        tick = {0: "1", ROWS // 2: "0.5", ROWS - 1: "0"}.get(row, "")
        drawn.append(f"{tick:>4}{'┤' if tick else '│'}", "dim")
        for column in range(COLUMNS):
            empty = "┊" if column == rule else " ", "dim"
            drawn.append(*marks.get((row, column), lines.get((row, column), empty)))
        drawn.append("\n")
    axis = "".join("┴" if column == rule else "─" for column in range(COLUMNS - len(x_label) - 1))
    note = "" if top is None else f"trained to {top:g}"
    below = f"{low:<8g}{note:^{COLUMNS - 16}}{high:>8g}"
    return Group(Text("   ").join(legend), drawn.append(f"    └{axis} {x_label}\n     {below}", "dim"))
