"""Figure of accuracy and confidence against loops, with the loops at which stopping rules stop."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from lengthwise.base.errors import UsageError
from lengthwise.base.score_rows import Row, size_text
from lengthwise.report.lines import Look, legend
from lengthwise.report.style import COLOURS, FAINT, INK, Dash, Drawing, Width, add_heading, drawing, fix_layout, style

RULES: dict[str, tuple[str, str, Dash]] = {
    "oracle": ("T(n)", INK, "-"),
    "batch": ("most confident, per batch", COLOURS[1], (0.0, (4.0, 1.6))),
    "example": ("most confident, per example", COLOURS[2], (0.0, (1.2, 1.2))),
    "own": ("its own rule", COLOURS[3], (0.0, (6.0, 1.5, 1.2, 1.5))),
}


@style()
def depth_figure(rows: Sequence[Row], title: str, *, width: Width = "page") -> Drawing:
    """Draw one column per size. Above: exact match after each loop. Below: the cross-entropy of the model's output with
    its own answer, which is lowest where it is most confident. Raises UsageError without rows, or if a row has
    different numbers of loops and confidences."""
    if not rows:
        raise UsageError("there is nothing to draw: no loops were measured")
    for row in rows:
        if len(row["exact"]) != len(row["confidence"]):
            where = f"length {size_text(row['sizes'])}"
            raise UsageError(
                f"depth.jsonl: the row of {where} has different numbers of loops and confidences: delete it"
            )
    figure = drawing(width, 3.9)
    grid = figure.subplots(2, len(rows), squeeze=False, sharex="col", sharey="row", height_ratios=(3, 2))
    for (above, below), row in zip(grid.T, rows, strict=True):
        loops = range(1, len(row["exact"]) + 1)
        _mark(above, row)
        _mark(below, row)
        above.plot(loops, row["exact"], color=COLOURS[0], zorder=3, clip_on=False, label="_")
        # A cross-entropy that rounds to 0 has no logarithm; draw it at about float32's resolution.
        unsure = [max(1e-8, -confidence) for confidence in row["confidence"]]
        below.plot(loops, unsure, color=COLOURS[0], zorder=3, clip_on=False, label="_")
        above.set_title(f"length {size_text(row['sizes'])}", fontsize=8)
        above.set_ylim(-0.02, 1.02)
        above.set_xlim(0, 1.02 * len(row["exact"]))
        below.set_yscale("log")
        below.set_xlabel("loops")
        below.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    grid[0, 0].set_ylabel("exact match")
    grid[1, 0].set_ylabel("cross-entropy\nwith its own answer")
    add_heading(figure, title, width)
    rules = [rule for name, rule in RULES.items() if any(name in row["chosen"] for row in rows)]
    legend(figure, [Look(text, colour, "", dash) for text, colour, dash in rules], columns=len(rules))
    return fix_layout(figure)


def _mark(axes: Axes, row: Row) -> None:
    """Mark where each rule stops: a line at the mean, and the middle 80 % of the problems shaded."""
    for name, chosen in row["chosen"].items():
        _, colour, dash = RULES[name]
        axes.axvline(chosen["mean"], color=colour, linestyle=dash, linewidth=1.0, zorder=2, label="_")
        if chosen["high"] > chosen["low"]:
            axes.axvspan(chosen["low"], chosen["high"], color=colour, alpha=0.1, linewidth=0, zorder=1)
    axes.tick_params(color=FAINT)
