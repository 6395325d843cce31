"""Figures for papers: exact match against length, heat maps over two sizes, training curves.

Drawn with matplotlib's objects, never with pyplot, so that no backend is chosen and no window opens; the reader's own
matplotlib settings change nothing, and the same rows give the same bytes.
"""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any, cast

import numpy as np
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from matplotlib.transforms import ScaledTranslation

from lengthwise.base.types import UsageError
from lengthwise.report import Curve, Point, Row, Sizes, by_recipe, latest, names, size_text
from lengthwise.run import Run, write

# Okabe and Ito (2008): told apart with any colour vision. Yellow is left out, as it is faint on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
INK, FAINT, SHADE = "#333333", "#8a8a8a", "#f1f0ec"
WIDTH = 5.5  # inches: a one-column page's text
DPI = 200
DASHED = (0.0, (3.2, 1.6))
MARKS = 12  # markers on a line, about
WRITTEN = 10  # sizes per side up to which a heat map's cells hold their numbers

STYLE = {
    "figure.dpi": DPI,  # text is measured as it will be drawn
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so metrics are the same everywhere
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 8,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.5,
    "text.color": INK,
    "xtick.color": FAINT,
    "xtick.labelcolor": INK,
    "ytick.color": FAINT,
    "ytick.labelcolor": INK,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.4,
    "lines.markersize": 4.2,
    "svg.fonttype": "none",  # text stays text: to be searched, and edited
    "svg.hashsalt": "lengthwise",
}


@contextmanager
def styled() -> Iterator[None]:
    """Drawing in our style, whatever the reader's own settings."""
    with style.context(["default", STYLE]):
        yield


def save(figure: Figure, path: Path | str) -> list[Path]:
    """Write ``path`` + .png and ``path`` + .svg, each whole or not at all; the paths written."""
    path, files = Path(path), []
    for suffix, about in ((".png", {"Software": None}), (".svg", {"Date": None, "Creator": None})):
        content = io.BytesIO()
        with styled():
            figure.savefig(content, format=suffix[1:], metadata=about)
        files.append(path.with_name(path.name + suffix))
        write(files[-1], content.getvalue())
    return files


def settled(figure: Figure) -> Figure:
    """The figure with its layout worked out once and kept: both formats, and a second save, look the same."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    return figure


# Exact match against length


@styled()
def length_figure(curves: Sequence[Curve], title: str | None = None) -> Figure:
    """Exact match against length, a line per curve, the training range shaded.

    Bands: the mean over seeds ± its standard error, and faintly the worst and the best seed; of a single seed the
    95 % interval. With two axes, the sizes at which both are equal, short of one that is kept short.
    UsageError where there is nothing to draw.
    """
    drawn = [(curve, points) for curve in curves if (points := curve.diagonal())]
    if not drawn:
        raise UsageError("no scores along a length to draw: evaluate a run first (pairs of sizes make a heat map)")
    looks = _looks([curve for curve, _ in drawn])
    figure = Figure((_width(look.name for look in looks), max(2.9, 1.0 + 0.16 * len(drawn))), layout="constrained")
    axes = figure.add_subplot()
    _length_axes(axes, [curve for curve, _ in drawn], max(points[-1].length for _, points in drawn))
    for look, (_, points) in zip(looks, drawn, strict=True):
        _draw_curve(axes, look, points)
    _name_lines(axes, looks, [_up(points[-1].mean) for _, points in drawn])
    if title:
        axes.set_title(title, pad=15)
    return settled(figure)


@dataclass(frozen=True)
class _Look:
    """How a line is drawn and called."""

    name: str
    colour: str
    marker: str
    dash: str | tuple[float, tuple[float, ...]] = "-"

    def line(self) -> dict[str, Any]:
        """Its properties, for matplotlib."""
        line = {"color": self.colour, "marker": self.marker, "linestyle": self.dash}
        return line | {"markeredgecolor": "white", "markeredgewidth": 0.5}


def _looks(curves: Sequence[Curve]) -> list[_Look]:
    """A colour and a marker for each recipe and rule; the harder problems are its dashed twin."""
    kinds = list(dict.fromkeys((curve.label, curve.stopping) for curve in curves))
    looks = []
    for curve, name in zip(curves, names(curves), strict=True):
        number = kinds.index((curve.label, curve.stopping))
        # The two cycles drift apart by one per turn, so that a second turn repeats no pair.
        marker = MARKERS[(number + number // len(COLOURS)) % len(MARKERS)]
        dash = "-" if curve.problems == "uniform" else DASHED
        looks.append(_Look(name, COLOURS[number % len(COLOURS)], marker, dash))
    return looks


def _length_axes(axes: Axes, curves: Sequence[Curve], longest: int) -> None:
    tops = sorted({curve.top for curve in curves if curve.top})
    right = 1.02 * max([longest, *tops])
    axes.set_xlim(0, right)
    axes.set_ylim(-0.02, 1.02)
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10], integer=True))
    axes.set_yticks(np.linspace(0, 1, 6))
    axes.set_xlabel(_length_label(curves))
    axes.set_ylabel("exact match")
    if not tops:
        return
    for top in tops:
        axes.axvspan(0, top, color=SHADE, zorder=0.1, linewidth=0)
        axes.axvline(top, color=FAINT, linewidth=0.7, zorder=1.5)
    text = "trained to " + " and ".join(filter(None, [", ".join(map(str, tops[:-1])), str(tops[-1])]))
    # It ends where the training range ends, unless the range is too narrow to hold it.
    side, at = ("right", tops[-1]) if tops[-1] > 0.2 * right else ("left", 0)
    axes.annotate(
        text, (at, 1.02), (0, 3), ha=side, textcoords="offset points", fontsize=7, color=FAINT, annotation_clip=False
    )


def _length_label(curves: Sequence[Curve]) -> str:
    """What the sizes count, if all curves agree on it."""
    tasks = {row["task"] for curve in curves for rows in curve.rows_by_seed.values() for row in rows}
    axes = {curve.axes for curve in curves}
    if tasks == {"addition"}:
        return "digits per operand"
    if len(axes) > 1:
        return "length"
    short = {
        name: most
        for curve in curves
        for name, most in zip(curve.axes, curve.most or (curve.top,) * len(curve.axes), strict=True)
        if most < curve.top
    }
    free = " = ".join(name for name in next(iter(axes)) if name not in short)
    return ", ".join([free, *(f"{name} up to {most}" for name, most in short.items())])


def _draw_curve(axes: Axes, look: _Look, points: Sequence[Point]) -> None:
    sizes = [point.length for point in points]
    means = [point.mean for point in points]
    band = {"color": look.colour, "linewidth": 0}
    axes.fill_between(sizes, [p.low for p in points], [p.high for p in points], alpha=0.15, zorder=2, **band)
    errors = [point.error or 0.0 for point in points]
    if any(errors):
        low = [max(0.0, mean - error) for mean, error in zip(means, errors, strict=True)]
        high = [min(1.0, mean + error) for mean, error in zip(means, errors, strict=True)]
        axes.fill_between(sizes, low, high, alpha=0.25, zorder=2, **band)
    axes.plot(sizes, means, markevery=math.ceil(len(sizes) / MARKS), zorder=3, clip_on=False, **look.line())


def _up(share: float) -> float:
    """Where exact match stands on its axis, as a share of the axis's height."""
    return (share + 0.02) / 1.04


def _name_lines(axes: Axes, looks: Sequence[_Look], ends: Sequence[float]) -> None:
    """The legend: each line's name to the right of the axes, as near to its end as there is room. Ends are shares of
    the axes' height."""
    figure = cast(Figure, axes.figure)
    figure.draw_without_rendering()  # the axes' height is known once the layout is
    gap = 0.16 * figure.dpi / axes.get_window_extent().height
    order = sorted(range(len(ends)), key=lambda number: -ends[number])
    for number, place in zip(order, _apart([ends[number] for number in order], gap), strict=True):
        edge = ScaledTranslation(1, place, axes.transAxes)  # type: ignore[arg-type]
        beside = figure.dpi_scale_trans + edge  # inches to the right of it
        look, sample = looks[number], [0.12, 0.3, 0.48]
        axes.add_artist(Line2D(sample, [0] * 3, markevery=[1], transform=beside, clip_on=False, **look.line()))
        axes.text(0.56, 0, look.name, transform=beside, va="center_baseline", fontsize=7.5)


def _width(names: Iterable[str]) -> float:
    """A figure's width in inches: wider than usual where long names would leave the axes too little."""
    return max(WIDTH, 3.9 + 0.068 * max(map(len, names)))


def _apart(wanted: Sequence[float], gap: float, top: float = 1.0) -> list[float]:
    """Places from the top down, at least ``gap`` apart and as near to those wanted (in falling order) as one pass down
    and one up can make them; too many run over the top."""
    places: list[float] = []
    for place in wanted:
        places.append(min(place, places[-1] - gap if places else top))
    floor = 0.0
    for number in reversed(range(len(places))):
        places[number] = max(places[number], floor)
        floor = places[number] + gap
    return places


# Heat maps over two sizes


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
    for place in sorted(map(sizes.index, written), reverse=True):
        if not apart or apart[-1] - place >= len(sizes) / (2 * most):
            apart.append(place)
    apart.reverse()
    return apart, [str(sizes[place]) for place in apart]


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


# Training curves


@styled()
def loss_figure(runs: Iterable[Run], *, watch: bool = True) -> Figure:
    """Loss against steps on a log axis: what was logged, thin, and its running geometric mean. With ``watch``, beneath
    it the exact match measured while training, where there is any. UsageError if no run has logged a loss."""
    groups = {name: [_Training.of(run) for run in group] for name, group in by_recipe(runs).items()}
    groups = {name: logged for name, group in groups.items() if (logged := [one for one in group if one.losses])}
    if not groups:
        raise UsageError("no loss to draw: these runs have logged none that is finite and above 0")
    sizes = list(dict.fromkeys(size for group in groups.values() for one in group for size in one.watched))
    below = watch and bool(sizes)
    figure = Figure((_width(groups), 4.4 if below else 2.9), layout="constrained")
    panels = figure.subplots(1 + below, 1, sharex=True, squeeze=False, height_ratios=[3, 2] if below else [1])[:, 0]
    _draw_losses(panels[0], groups)
    if below:
        _draw_watched(panels[1], groups, sizes)
    panels[-1].set_xlabel("steps")
    panels[-1].xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    panels[-1].set_xlim(left=0)
    return settled(figure)


@dataclass(frozen=True)
class _Training:
    """What a run has logged, as (step, value)."""

    losses: list[tuple[int, float]]  # finite and above 0: the rest has no place on a log axis
    watched: dict[str, list[tuple[int, float]]]  # exact match, by size

    @staticmethod
    def of(run: Run) -> _Training:
        rows = run.rows("metrics")
        losses = [(row["step"], float(row["loss"])) for row in rows if "loss" in row]
        watched: dict[str, list[tuple[int, float]]] = {}
        for row in rows:
            for size, share in row.get("exact", {}).items():
                watched.setdefault(size, []).append((row["step"], float(share)))
        return _Training([(step, loss) for step, loss in losses if 0 < loss < math.inf], watched)


def _draw_losses(axes: Axes, groups: dict[str, list[_Training]]) -> None:
    axes.set_yscale("log")
    axes.set_ylabel("loss (nats)")
    looks, ends = [], []
    for number, (name, group) in enumerate(groups.items()):
        look = _Look(name, COLOURS[number % len(COLOURS)], "")
        last = []
        for one in group:
            steps, losses = zip(*one.losses, strict=True)
            smooth = _running_mean(losses)
            axes.plot(steps, losses, color=look.colour, linewidth=0.4, alpha=0.35, zorder=2)
            axes.plot(steps, smooth, color=look.colour, linewidth=1.3, zorder=3)
            last.append(smooth[-1])
        looks.append(look)
        ends.append(statistics.geometric_mean(last))
    low, high = (math.log(limit) for limit in axes.get_ylim())
    _name_lines(axes, looks, [(math.log(end) - low) / (high - low) for end in ends])


def _draw_watched(axes: Axes, groups: dict[str, list[_Training]], sizes: Sequence[str]) -> None:
    """Colours are the recipes' as above; a marker for each size."""
    axes.set_ylim(-0.02, 1.02)
    axes.set_ylabel("exact match")
    looks = [_Look(f"at {size}", INK, MARKERS[number % len(MARKERS)]) for number, size in enumerate(sizes)]
    ends: dict[str, list[float]] = {size: [] for size in sizes}
    for number, group in enumerate(groups.values()):
        for one in group:
            for look, size in zip(looks, sizes, strict=True):
                if points := one.watched.get(size):
                    steps, shares = zip(*points, strict=True)
                    line = look.line() | {"color": COLOURS[number % len(COLOURS)], "linewidth": 0.9}
                    axes.plot(steps, shares, markevery=math.ceil(len(steps) / MARKS), zorder=3, **line)
                    ends[size].append(shares[-1])
    _name_lines(axes, looks, [_up(statistics.fmean(ends[size])) for size in sizes])


def _running_mean(losses: Sequence[float], memory: float = 1 / 50) -> list[float]:
    """The geometric mean of what went before, its weights halving every ``memory`` of all values."""
    decay = 0.5 ** (1 / max(1.0, memory * len(losses)))
    total = weight = 0.0
    means = []
    for loss in losses:
        total, weight = decay * total + math.log(loss), decay * weight + 1
        means.append(math.exp(total / weight))
    return means
