"""Line styles and name labels that line figures share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, cast

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.transforms import ScaledTranslation

from lengthwise.report.style import COLOURS, DASHES, FAINT, MARKERS, Dash, Width

MARKERS_PER_LINE = 12  # approximate number of markers on a line
NAME_HEIGHT, NOTE_HEIGHT = 0.16, 0.11  # inches: height of a name, and of a note below it


@dataclass(frozen=True)
class LineStyle:
    """The style and name of a line."""

    name: str
    colour: str
    marker: str
    dash: Dash = "-"
    highlight: bool = False
    note: str = ""  # small print below the name
    is_hollow: bool = False  # hollow markers, visible on top of a line of the same colour

    def to_matplotlib(self) -> dict[str, Any]:
        """Return the style as keyword arguments of ``Line2D``."""
        line = {"color": self.colour, "marker": self.marker, "linestyle": self.dash, "label": self.name}
        face = {"markeredgecolor": "white", "markeredgewidth": 0.5}
        if self.is_hollow:
            face = {"markeredgecolor": self.colour, "markeredgewidth": 0.8, "markerfacecolor": "white"}
        return line | face | {"linewidth": 2.0 if self.highlight and not self.is_hollow else 1.2}


def line_style(number: int, version: int | None = None, **fields: Any) -> LineStyle:
    """Return the style of line ``number``, counted from 0; no two numbers share both colour and dash. Versions of a
    line, such as one per set of problems, share its colour and differ in dash; ``number`` must then be below seven."""
    turn = number // len(COLOURS)
    marker = MARKERS[(number + turn) % len(MARKERS)]
    if version is None:
        # After the predefined dashes, generate longer and longer ones.
        dash = DASHES[turn] if turn < len(DASHES) else (0.0, (3.0 * turn, 1.5))
        return LineStyle(colour=COLOURS[number % len(COLOURS)], marker=marker, dash=dash, **fields)
    return LineStyle(colour=COLOURS[number], marker=marker, dash=DASHES[version], is_hollow=version > 0, **fields)


def shorten_labels(labels: Sequence[str]) -> tuple[str, list[str]]:
    """Remove the hyphen-separated words that all labels share at the start or end. Return a heading with the full
    pattern, e.g. ``full names: ablation-parity-…`` (empty if nothing was removed), and the short labels."""
    different = list(dict.fromkeys(labels))
    if len(different) < 2:
        return "", list(labels)
    words = [label.split("-") for label in different]
    front, back = (
        len([*takewhile(lambda group: len({*group}) == 1, zip(*sequences, strict=False))])
        for sequences in (words, [label[::-1] for label in words])
    )
    while any(len(label) <= front + back for label in words):  # keep at least one word of each
        front, back = (front, back - 1) if back else (front - 1, back)
    rest = {"-".join(label): "-".join(label[front : len(label) - back]) for label in words}
    head = "".join(f"{word}-" for word in words[0][:front])
    tail = "".join(f"-{word}" for word in words[0][len(words[0]) - back :])
    return (f"full names: {head}…{tail}" if head or tail else ""), [rest[label] for label in labels]


def name_lines(
    axes: Axes, styles: Sequence[LineStyle], end_points: Sequence[tuple[float, float]], width: Width, heading: str = ""
) -> None:
    """Write each line's name to the right of the axes, as near to the height of the line's last point as space permits.
    ``end_points`` are the last points, in data coordinates within the axes. In a column-wide figure, write the names in
    a legend below instead."""
    figure = cast(Figure, axes.figure)
    if width == "column":
        add_legend(figure, styles, max_columns=2, heading=heading)
        return
    figure.draw_without_rendering()  # lays the figure out, which sets the axes' height
    height = axes.get_window_extent().height / figure.dpi
    points = [axes.transAxes.inverted().transform(axes.transData.transform(end)) for end in end_points]
    wanted_heights = [float(height) for _, height in points]
    order = sorted(range(len(end_points)), key=lambda number: -wanted_heights[number])
    gaps = [(NAME_HEIGHT + NOTE_HEIGHT * bool(styles[number].note)) / height for number in order]
    # One pass down spaces names by at least ``gaps``, one pass up keeps the lowest within the axes. If there are too
    # many names, some heights exceed 1.
    heights: list[float] = []
    for place, number in enumerate(order):
        heights.append(min(wanted_heights[number], heights[-1] - gaps[place - 1] if heights else 1.0))
    floor = 0.0
    for place in reversed(range(len(heights))):
        heights[place] = max(heights[place], floor)
        floor = heights[place] + (gaps[place - 1] if place else 0.0)
    for number, place_height in zip(order, heights, strict=True):
        edge = ScaledTranslation(1, place_height, axes.transAxes)  # type: ignore[arg-type]
        beside = figure.dpi_scale_trans + edge  # x in inches from the axes' right edge
        style = styles[number]
        line = style.to_matplotlib() | {"label": "_"}
        axes.add_artist(Line2D([0.16, 0.34, 0.52], [0] * 3, markevery=[1], transform=beside, clip_on=False, **line))
        weight = "bold" if style.highlight else "normal"
        name = axes.text(0.6, 0, style.name, transform=beside, va="center_baseline", fontsize=7.5, weight=weight)
        name.set_parse_math(False)  # a name may contain $
        if style.note:
            axes.text(0.6, -NOTE_HEIGHT, style.note, transform=beside, va="center_baseline", fontsize=6, color=FAINT)
    if heading:
        place = {"xycoords": "axes fraction", "textcoords": "offset points", "annotation_clip": False}
        axes.annotate(heading, (1, max([1.0, *heights])), (11.5, 10), fontsize=7, color=FAINT, **place)


def add_legend(figure: Figure, styles: Sequence[LineStyle], max_columns: int, heading: str = "") -> None:
    """Add a legend below the figure, in as many columns as fit, at most ``max_columns``."""
    names = [f"{look.name} ({look.note})" if look.note else look.name for look in styles]
    pairs = zip(styles, names, strict=True)
    handles = [Line2D([], [], **look.to_matplotlib() | {"label": name}) for look, name in pairs]
    columns = min(max_columns, len(handles))
    head = {"title": heading or None, "title_fontproperties": {"size": 7}}
    legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=3, **head)
    for look, text in zip(styles, legend.get_texts(), strict=True):
        text.set_fontweight("bold" if look.highlight else "normal")
        text.set_parse_math(False)
    figure.draw_without_rendering()
    if columns > 1 and legend.get_window_extent().width > figure.bbox.width:
        legend.remove()
        add_legend(figure, styles, columns - 1, heading)
