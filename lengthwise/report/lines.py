"""What figures of lines share: how each line looks, and its name beside its end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import ConnectionPatch
from matplotlib.transforms import ScaledTranslation

from lengthwise.report.style import COLOURS, DASHES, FAINT, MARKERS, Dash, Width

MARKS = 12  # markers on a line, about
ROW, NOTE = 0.16, 0.11  # inches: how high a name is, and a line of a note beneath it


@dataclass(frozen=True)
class Look:
    """How a line is drawn and called."""

    name: str
    colour: str
    marker: str
    dash: Dash = "-"
    strong: bool = False  # is it what the figure is about?
    note: str = ""  # said in small print beneath its name
    hollow: bool = False  # are its markers? Then it is seen where it lies upon its twin

    def line(self) -> dict[str, Any]:
        """Its properties, for matplotlib."""
        line = {"color": self.colour, "marker": self.marker, "linestyle": self.dash, "label": self.name}
        face = {"markeredgecolor": "white", "markeredgewidth": 0.5}
        if self.hollow:
            face = {"markeredgecolor": self.colour, "markeredgewidth": 0.8, "markerfacecolor": "white"}
        return line | face | {"linewidth": 2.0 if self.strong and not self.hollow else 1.2}


def look(number: int, twin: int | None = None, **about: Any) -> Look:
    """The look of line ``number``, counted from 0: no two numbers have the same colour and dash. A line that is drawn
    in several versions, such as one per set of problems, has a ``twin`` instead, counted from 0: of the same colour,
    with a dash of its own; then seven numbers differ."""
    turn = number // len(COLOURS)
    marker = MARKERS[(number + turn) % len(MARKERS)]
    if twin is None:
        # Beyond all dashes that are made by hand come longer and longer ones.
        dash = DASHES[turn] if turn < len(DASHES) else (0.0, (3.0 * turn, 1.5))
        return Look(colour=COLOURS[number % len(COLOURS)], marker=marker, dash=dash, **about)
    return Look(colour=COLOURS[number], marker=marker, dash=DASHES[twin], hollow=twin > 0, **about)


def short(labels: Sequence[str]) -> tuple[str, list[str]]:
    """Labels without the words, joined by hyphens, that all of them begin or end with; and a heading that gives the
    full names, ``full names: ablation-parity-…``, empty where they are whole."""
    different = list(dict.fromkeys(labels))
    if len(different) < 2:
        return "", list(labels)
    words = [label.split("-") for label in different]
    front = _common(words)
    back = _common([label[front:][::-1] for label in words])
    while any(len(label) <= front + back for label in words):  # something has to be left of each
        front, back = (front, back - 1) if back else (front - 1, back)
    rest = {label: "-".join(parts[front : len(parts) - back]) for label, parts in zip(different, words, strict=True)}
    head = "".join(f"{word}-" for word in words[0][:front])
    tail = "".join(f"-{word}" for word in words[0][len(words[0]) - back :]) if back else ""
    return (f"full names: {head}…{tail}" if head or tail else ""), [rest[label] for label in labels]


def _common(words: Sequence[Sequence[str]]) -> int:
    """How many words all begin with."""
    return next((i for i, at in enumerate(zip(*words, strict=False)) if len(set(at)) > 1), min(map(len, words)))


def name_lines(
    axes: Axes, looks: Sequence[Look], ends: Sequence[tuple[float, float]], width: Width, heading: str = ""
) -> None:
    """The legend: each line's name to the right of the axes, as near to its end as there is room, joined to it where
    that is not near. Ends are points of data, which lie within the axes. In a column, all names stand beneath."""
    if width == "column":
        legend(cast(Figure, axes.figure), looks, columns=2, heading=heading)
        return
    figure = cast(Figure, axes.figure)
    figure.draw_without_rendering()  # the axes' height is known once the layout is
    height = axes.get_window_extent().height / figure.dpi
    wanted = [float(axes.transAxes.inverted().transform(axes.transData.transform(end))[1]) for end in ends]
    order = sorted(range(len(ends)), key=lambda number: -wanted[number])
    gaps = [(ROW + NOTE * bool(looks[number].note)) / height for number in order]
    heights = _spread_heights([wanted[number] for number in order], gaps)
    for number, at in zip(order, heights, strict=True):
        edge = ScaledTranslation(1, at, axes.transAxes)  # type: ignore[arg-type]
        beside = figure.dpi_scale_trans + edge  # inches to the right of it
        look = looks[number]
        line = look.line() | {"label": "_"}
        axes.add_artist(Line2D([0.16, 0.34, 0.52], [0] * 3, markevery=[1], transform=beside, clip_on=False, **line))
        weight = "bold" if look.strong else "normal"
        name = axes.text(0.6, 0, look.name, transform=beside, va="center_baseline", fontsize=7.5, weight=weight)
        name.set_parse_math(False)  # whatever it is called
        if look.note:
            axes.text(0.6, -NOTE, look.note, transform=beside, va="center_baseline", fontsize=6, color=FAINT)
        near = ends[number][0] > 0.85 * axes.get_xlim()[1]
        if near and abs(at - wanted[number]) * height > ROW / 2:
            joint = ConnectionPatch(ends[number], (0.13, 0), axes.transData, beside, color=look.colour, linewidth=0.4)
            joint.set_in_layout(False)
            axes.add_artist(joint)
    if heading:
        place = {"xycoords": "axes fraction", "textcoords": "offset points", "annotation_clip": False}
        axes.annotate(heading, (1, max([1.0, *heights])), (11.5, 10), fontsize=7, color=FAINT, **place)


def legend(figure: Figure, looks: Sequence[Look], columns: int, heading: str = "") -> None:
    """Names beneath the figure, in as many columns as fit, and no more than these."""
    handles = [
        Line2D([], [], **look.line() | {"label": f"{look.name} ({look.note})" if look.note else look.name})
        for look in looks
    ]
    columns = min(columns, len(handles))
    head = {"title": heading or None, "title_fontproperties": {"size": 7}}
    shown = figure.legend(handles=handles, loc="outside lower center", ncols=columns, handlelength=3, **head)
    for look, text in zip(looks, shown.get_texts(), strict=True):
        text.set_fontweight("bold" if look.strong else "normal")
        text.set_parse_math(False)
    figure.draw_without_rendering()
    if columns > 1 and shown.get_window_extent().width > figure.bbox.width:
        shown.remove()
        legend(figure, looks, columns - 1, heading)


def _spread_heights(wanted: Sequence[float], gaps: Sequence[float], top: float = 1.0) -> list[float]:
    """Heights from the top down, each its gap above the next and as near to those wanted (in falling order) as one
    pass down and one up can make them; too many run over the top."""
    heights: list[float] = []
    for number, height in enumerate(wanted):
        heights.append(min(height, heights[-1] - gaps[number - 1] if heights else top))
    floor = 0.0
    for number in reversed(range(len(heights))):
        heights[number] = max(heights[number], floor)
        floor = heights[number] + (gaps[number - 1] if number else 0.0)
    return heights
