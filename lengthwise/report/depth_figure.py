"""Figures of loops: accuracy and confidence, where stopping rules stop, and how the state changes beyond T(n)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.ticker import MaxNLocator

from lengthwise.base.errors import UsageError
from lengthwise.base.results import Fate, format_seeds, format_verdicts, group_seeds
from lengthwise.base.score_rows import Row, format_size
from lengthwise.report.lines import LineStyle, add_legend
from lengthwise.report.style import COLOURS, DASHED, FAINT, INK, Dash, Drawing, Width, fix_layout, new_figure, style

RULE_STYLES: dict[str, tuple[str, str, Dash]] = {  # each stopping rule's name in the legend, colour and dash
    "oracle": ("T(n)", INK, "-"),
    "batch": ("most confident, per batch", COLOURS[1], (0.0, (4.0, 1.6))),
    "example": ("most confident, per example", COLOURS[2], (0.0, (1.2, 1.2))),
    "own": ("its own rule", COLOURS[3], (0.0, (6.0, 1.5, 1.2, 1.5))),
}
MIN_MOVEMENT = 1e-8  # smaller movements are rounding errors


@style()
def draw_depth_figure(rows: Sequence[Row], title: str, *, width: Width = "page") -> Drawing:
    """Draw two panels per size: exact match after each loop and, below, the cross-entropy of the model's output with
    its own answer, lowest where the model is most confident. Raises UsageError without rows, or for damaged rows."""
    if not rows:
        raise UsageError("there is nothing to draw: no loops were measured")
    figure = new_figure(width, 3.9)
    grid = figure.subplots(2, len(rows), squeeze=False, sharex="col", sharey="row", height_ratios=(3, 2))
    for (above, below), row in zip(grid.T, rows, strict=True):
        if len(row["exact"]) != len(row["confidence"]):
            where = f"the row of length {format_size(row['sizes'])}"
            raise UsageError(f"depth.jsonl: {where} has different numbers of loops and confidences: delete the row")
        # A cross-entropy that rounds to 0 has no logarithm; draw it at about float32's resolution.
        unsure = [max(1e-8, -confidence) for confidence in row["confidence"]]
        for axes, values in ((above, row["exact"]), (below, unsure)):
            for name, chosen in row["chosen"].items():  # where each rule stops: the mean, and the middle 80 %
                _, colour, dash = RULE_STYLES[name]
                axes.axvline(chosen["mean"], color=colour, linestyle=dash, linewidth=1.0, zorder=2, label="_")
                if chosen["high"] > chosen["low"]:
                    axes.axvspan(chosen["low"], chosen["high"], color=colour, alpha=0.1, linewidth=0, zorder=1)
            axes.tick_params(color=FAINT)
            axes.plot(range(1, len(values) + 1), values, color=COLOURS[0], zorder=3, clip_on=False, label="_")
        above.set_title(f"length {format_size(row['sizes'])}", fontsize=8)
        above.set(ylim=(-0.02, 1.02), xlim=(0, 1.02 * len(row["exact"])))
        below.set(yscale="log", xlabel="loops")
        below.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    grid[0, 0].set_ylabel("exact match")
    grid[1, 0].set_ylabel("cross-entropy\nwith its own answer")
    rules = [rule for name, rule in RULE_STYLES.items() if any(name in row["chosen"] for row in rows)]
    add_legend(figure, [LineStyle(text, colour, "", dash) for text, colour, dash in rules], max_columns=len(rules))
    return fix_layout(figure, title, width)


@style()
def draw_fate_figure(fates: Sequence[Fate], title: str) -> Drawing:
    """Draw exact match and the movement of the state against loops beyond T(n), with a panel per recipe and a line per
    seed. For up to three recipes, also draw the first seed's states on one problem. Raises UsageError without
    ``fates``."""
    if not fates:
        raise UsageError("there is nothing to draw: no weights were measured")
    panels = group_seeds(fates)
    detailed, columns = len(panels) <= 3, min(3, len(panels))
    rows = 3 if detailed else math.ceil(len(panels) / columns)
    figure = new_figure("page", 1.0 + (1.9 if detailed else 1.45) * rows)
    grid = figure.subplots(rows, columns, squeeze=False)
    for number, seeds in enumerate(panels):
        _draw_curves(grid.flat[number], seeds)
        if detailed:
            _draw_problem(grid[1, number], grid[2, number], seeds[0])
    for axes in () if detailed else grid.flat[len(panels) :]:
        axes.remove()
    styles = [
        LineStyle("exact match (left)", COLOURS[0], "", "-"),
        LineStyle("movement over one loop (right)", COLOURS[1], "", "-"),
        LineStyle("over two loops (right)", COLOURS[2], "", DASHED),
    ]
    if detailed:
        styles.append(LineStyle("state after T(n) loops (lowest panel)", COLOURS[1], "x", "", is_hollow=True))
    add_legend(figure, styles, max_columns=3)
    return fix_layout(figure, title)


def _draw_curves(axes: Axes, fates: Sequence[Fate]) -> None:
    movement_axes, width = axes.twinx(), 1.0 if len(fates) == 1 else 0.6
    for fate in fates:
        for values, colour, dash in ((fate.moved, COLOURS[1], "-"), (fate.moved_over_two, COLOURS[2], DASHED)):
            drawn = [math.nan if value is None else max(MIN_MOVEMENT, value) for value in values]
            movement_axes.plot(fate.after, drawn, color=colour, linestyle=dash, linewidth=width, label="_")
        exact = [fate.exact_after(k) for k in fate.after]
        axes.plot(fate.after, exact, color=COLOURS[0], linewidth=1.6 * width, zorder=3, label="_")
    movement_axes.set(yscale="log", ylim=(MIN_MOVEMENT, 5))
    movement_axes.grid(visible=False)
    movement_axes.tick_params(labelsize=6)
    axes.axvline(0, color=INK, linewidth=0.6)
    axes.set_ylim(-0.03, 1.03)
    title = f"{format_seeds(fates)}, {format_size(fates[0].sizes)}\n{format_verdicts(fates)}"
    axes.set_title(title, fontsize=6.5)
    axes.set_xlabel("loops − T(n)", fontsize=6.5)
    axes.tick_params(color=FAINT, labelsize=6)


def _draw_problem(movement_axes: Axes, state_axes: Axes, fate: Fate) -> None:
    """Draw one problem's states in two panels. The upper one shows how far each loop, counted from 1, moved the state
    at each position (dark: not at all). The lower one shows states on two principal components; a cross marks T(n)."""
    moved = [[math.nan if x is None else max(MIN_MOVEMENT, x) for x in loop] for loop in fate.map]
    edges = (-0.5, len(moved[0]) - 0.5, len(moved) + 0.5, 0.5)  # left, right, bottom, top
    scale = LogNorm(1e-6, 2)
    image = movement_axes.imshow(moved, "viridis", scale, aspect="auto", interpolation="nearest", extent=edges)
    movement_axes.axhline(fate.map_planned, color="white", linewidth=0.8)
    place = len(moved[0]) - 0.6, fate.map_planned
    movement_axes.text(*place, "T(n)", color="white", fontsize=6, ha="right", va="bottom")
    movement_axes.grid(visible=False)
    across, up = zip(*fate.path, strict=True)
    state_axes.plot(across, up, color=FAINT, linewidth=0.5)
    states = state_axes.scatter(across, up, c=range(1, len(across) + 1), s=5, cmap="viridis", zorder=3)
    state_axes.plot(*fate.path[fate.map_planned - 1], marker="x", color=COLOURS[1], markersize=7, zorder=4)
    movement_axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, min_n_ticks=1))
    state_axes.xaxis.set_major_locator(MaxNLocator(4))
    for axes, image_or_states, label, across_label, up_label in (
        (movement_axes, image, "movement", "position", "loop"),
        (state_axes, states, "loop", "first principal component", "second"),
    ):
        axes.set_xlabel(across_label, fontsize=6.5)
        axes.set_ylabel(up_label, fontsize=6.5)
        bar = axes.figure.colorbar(image_or_states, ax=axes, pad=0.02)
        bar.set_label(label, fontsize=6.5)
        for labelled in (axes, bar.ax):
            labelled.tick_params(labelsize=6)
