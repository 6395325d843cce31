"""Figures over loops: accuracy and confidence, where stopping rules stop, and how the state changes beyond T(n)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.ticker import MaxNLocator

from lengthwise.base.errors import UsageError
from lengthwise.base.results import Fate, group_seeds, seeds_name, seeds_verdict
from lengthwise.base.score_rows import Row, size_text
from lengthwise.report.lines import LineStyle, add_legend
from lengthwise.report.style import COLOURS, DASHED, FAINT, INK, Dash, Drawing, Width, fix_layout, new_figure, style

RULES: dict[str, tuple[str, str, Dash]] = {
    "oracle": ("T(n)", INK, "-"),
    "batch": ("most confident, per batch", COLOURS[1], (0.0, (4.0, 1.6))),
    "example": ("most confident, per example", COLOURS[2], (0.0, (1.2, 1.2))),
    "own": ("its own rule", COLOURS[3], (0.0, (6.0, 1.5, 1.2, 1.5))),
}
ACROSS = 3
DETAILED = 3  # maximum number of weights for which a map and a path are drawn too
FLOOR = 1e-8  # smaller movements are rounding errors


@style()
def depth_figure(rows: Sequence[Row], title: str, *, width: Width = "page") -> Drawing:
    """Draw one column per size. Above: exact match after each loop. Below: the cross-entropy of the model's output with
    its own answer, lowest where the model is most confident. Raises UsageError without rows, or if a row has different
    numbers of loops and confidences."""
    if not rows:
        raise UsageError("there is nothing to draw: no loops were measured")
    for row in rows:
        if len(row["exact"]) != len(row["confidence"]):
            where = f"length {size_text(row['sizes'])}"
            raise UsageError(
                f"depth.jsonl: the row of {where} has different numbers of loops and confidences: delete it"
            )
    figure = new_figure(width, 3.9)
    grid = figure.subplots(2, len(rows), squeeze=False, sharex="col", sharey="row", height_ratios=(3, 2))
    for (above, below), row in zip(grid.T, rows, strict=True):
        loops = range(1, len(row["exact"]) + 1)
        _mark_rules(above, row)
        _mark_rules(below, row)
        above.plot(loops, row["exact"], color=COLOURS[0], zorder=3, clip_on=False, label="_")
        # A cross-entropy that rounds to 0 has no logarithm; draw it at about float32's resolution.
        unsure = [max(1e-8, -confidence) for confidence in row["confidence"]]
        below.plot(loops, unsure, color=COLOURS[0], zorder=3, clip_on=False, label="_")
        above.set_title(f"length {size_text(row['sizes'])}", fontsize=8)
        above.set(ylim=(-0.02, 1.02), xlim=(0, 1.02 * len(row["exact"])))
        below.set(yscale="log", xlabel="loops")
        below.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    grid[0, 0].set_ylabel("exact match")
    grid[1, 0].set_ylabel("cross-entropy\nwith its own answer")
    rules = [rule for name, rule in RULES.items() if any(name in row["chosen"] for row in rows)]
    add_legend(figure, [LineStyle(text, colour, "", dash) for text, colour, dash in rules], columns=len(rules))
    return fix_layout(figure, title, width)


def _mark_rules(axes: Axes, row: Row) -> None:
    """Mark where each stopping rule stops: a line at the mean loop, and a shade over the middle 80 % of problems."""
    for name, chosen in row["chosen"].items():
        _, colour, dash = RULES[name]
        axes.axvline(chosen["mean"], color=colour, linestyle=dash, linewidth=1.0, zorder=2, label="_")
        if chosen["high"] > chosen["low"]:
            axes.axvspan(chosen["low"], chosen["high"], color=colour, alpha=0.1, linewidth=0, zorder=1)
    axes.tick_params(color=FAINT)


@style()
def fate_figure(fates: Sequence[Fate], title: str) -> Drawing:
    """Draw exact match and movement of the state against loops, a panel per recipe with a line for each seed; for up to
    three panels also a map and a path of one problem of the first seed. Raises UsageError without weights."""
    if not fates:
        raise UsageError("there is nothing to draw: no weights were measured")
    panels = group_seeds(fates)
    detailed = len(panels) <= DETAILED
    columns = len(panels) if detailed else ACROSS
    rows = 3 if detailed else math.ceil(len(panels) / ACROSS)
    figure = new_figure("page", 1.0 + (1.9 if detailed else 1.45) * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for number, seeds in enumerate(panels):
        column, row = (number, 0) if detailed else (number % ACROSS, number // ACROSS)
        _draw_curves(grid[row, column], seeds)
        if detailed:
            _draw_map(grid[1, column], seeds[0])
            _draw_path(grid[2, column], seeds[0])
    if not detailed:
        for axes in grid.flat[len(panels) :]:
            axes.remove()
    looks = [
        LineStyle("exact match (left)", COLOURS[0], "", "-"),
        LineStyle("movement over one loop (right)", COLOURS[1], "", "-"),
        LineStyle("over two loops (right)", COLOURS[2], "", DASHED),
    ]
    if detailed:
        looks.append(LineStyle("state after T(n) loops (lowest panel)", COLOURS[1], "x", "", hollow=True))
    add_legend(figure, looks, columns=3)
    return fix_layout(figure, title)


def _draw_curves(axes: Axes, seeds: Sequence[Fate]) -> None:
    other, width = axes.twinx(), 1.0 if len(seeds) == 1 else 0.6
    for fate in seeds:
        for values, colour, dash in ((fate.moved, COLOURS[1], "-"), (fate.moved_over_two, COLOURS[2], DASHED)):
            shown = [math.nan if value is None else max(FLOOR, value) for value in values]
            other.plot(fate.after, shown, color=colour, linestyle=dash, linewidth=width, label="_")
        exact = [fate.exact_after(k) for k in fate.after]
        axes.plot(fate.after, exact, color=COLOURS[0], linewidth=1.6 * width, zorder=3, label="_")
    other.set(yscale="log", ylim=(FLOOR, 5))
    other.grid(visible=False)
    other.tick_params(labelsize=6)
    axes.axvline(0, color=INK, linewidth=0.6)
    axes.set_ylim(-0.03, 1.03)
    title = f"{seeds_name(seeds)}, {size_text(seeds[0].sizes)}\n{seeds_verdict(seeds)}"
    axes.set_title(title, fontsize=6.5)
    axes.set_xlabel("loops − T(n)", fontsize=6.5)
    axes.tick_params(color=FAINT, labelsize=6)


def _draw_map(axes: Axes, fate: Fate) -> None:
    """Draw how far each loop, counted from 1, moved the state of each position of one problem; dark: no movement."""
    moved = [[math.nan if x is None else max(FLOOR, x) for x in loop] for loop in fate.map]
    edges = (-0.5, len(moved[0]) - 0.5, len(moved) + 0.5, 0.5)  # left, right, bottom, top
    scale = LogNorm(1e-6, 2)
    image = axes.imshow(moved, aspect="auto", norm=scale, interpolation="nearest", cmap="viridis", extent=edges)
    axes.axhline(fate.map_planned, color="white", linewidth=0.8)
    axes.text(len(moved[0]) - 0.6, fate.map_planned, "T(n)", color="white", fontsize=6, ha="right", va="bottom")
    axes.grid(visible=False)
    _label(axes, "position", "loop")
    _add_colour_bar(axes, image, "movement")


def _label(axes: Axes, across: str, up: str) -> None:
    axes.set_xlabel(across, fontsize=6.5)
    axes.set_ylabel(up, fontsize=6.5)
    axes.tick_params(labelsize=6)


def _add_colour_bar(axes: Axes, shown: ScalarMappable, label: str) -> None:
    bar = axes.figure.colorbar(shown, ax=axes, pad=0.02)
    bar.set_label(label, fontsize=6.5)
    bar.ax.tick_params(labelsize=6)


def _draw_path(axes: Axes, fate: Fate) -> None:
    """Draw one problem's states on two principal components; the cross is T(n)."""
    across, up = zip(*fate.path, strict=True)
    axes.plot(across, up, color=FAINT, linewidth=0.5)
    states = axes.scatter(across, up, c=range(1, len(across) + 1), s=5, cmap="viridis", zorder=3)
    axes.plot(*fate.path[fate.map_planned - 1], marker="x", color=COLOURS[1], markersize=7, zorder=4)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    _label(axes, "first principal component", "second")
    _add_colour_bar(axes, states, "loop")
