"""Figure of how answers go wrong: at which positions, and on which problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from matplotlib.ticker import MaxNLocator

from lengthwise.base.errors import UsageError
from lengthwise.base.score_rows import Row, group_by, share_text, size_text
from lengthwise.report.lines import add_legend, line_style
from lengthwise.report.style import COLOURS, Drawing, Width, fix_layout, new_figure, style

ENDS = {"early": "end early", "late": "end late", "right": "have a wrong symbol"}
SHOWN: dict[Width, int] = {"column": 1, "page": 3}  # maximum number of sizes in a figure; the largest are taken


@style()
def anatomy_figure(rows: Sequence[Row], title: str, *, width: Width = "page") -> Drawing:
    """Draw one column per size, from the rows of several seeds. Above: how many answers first go wrong at each
    position. Below: exact match against a difficulty feature, a line per ``train_seed``. Raises UsageError without
    rows."""
    if not rows:
        raise UsageError("there is nothing to draw: no answers were analysed")
    columns = list(group_by_size(rows).values())[-SHOWN[width] :]
    traits = list(columns[0][0]["by"])[:1]
    figure = new_figure(width, 2.1 + 1.7 * len(traits))
    grid = figure.subplots(1 + len(traits), len(columns), squeeze=False, sharey="row")
    seeds = list(dict.fromkeys(row.get("train_seed", 0) for group in columns for row in group))
    looks = {seed: line_style(number, name=f"seed {seed}") for number, seed in enumerate(seeds)}
    for (above, *others), group in zip(grid.T, columns, strict=True):
        merged = merge_rows(group)
        positions, exact = sorted(merged["first_wrong"]), share_text(merged["exact"], 3)
        above.bar(positions, [merged["first_wrong"][position] for position in positions], color=COLOURS[1], width=0.8)
        above.set_title(f"length {size_text(group[0]['sizes'])}: {exact} right", pad=29, fontsize=8)
        above.set(xlim=(0.4, max(positions, default=1) + 0.6), xlabel="position in the answer")
        above.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        above.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        ends = ",\n".join(f"{merged['ends'][name]} {text}" for name, text in ENDS.items())
        above.annotate(ends, (0, 1), (0, 4), xycoords="axes fraction", textcoords="offset points", fontsize=6.5)
        for below, trait in zip(others, traits, strict=True):
            for row in group:
                middles = [(part["low"] + part["high"]) / 2 for part in row["by"][trait]]
                shares = [part["exact"] for part in row["by"][trait]]
                below.plot(middles, shares, zorder=3, clip_on=False, **looks[row.get("train_seed", 0)].properties())
            below.set(ylim=(-0.02, 1.02), xlabel=trait)
            below.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    grid[0, 0].set_ylabel("answers first wrong here")
    for row in grid[1:]:
        row[0].set_ylabel("exact match")
    if traits and len(looks) > 1:
        add_legend(figure, list(looks.values()), columns=5)
    return fix_layout(figure, title, width)


def group_by_size(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Group rows by size, smallest first. If a run was analysed twice at a size, both rows count."""
    ordered = sorted(rows, key=lambda row: (max(row["sizes"]), row["sizes"]))
    return group_by(ordered, lambda row: size_text(row["sizes"]))


def merge_rows(rows: Sequence[Row]) -> dict[str, Any]:
    """Merge rows of one size: exact match, and counts of wrong answers by where they end and where they first go
    wrong."""
    ends, first = Counter[str](), Counter[int]()
    for row in rows:
        ends.update(row["ends"])
        first.update({int(position): count for position, count in row["first_wrong"].items()})
    count = sum(row["count"] for row in rows)
    exact = sum(row["exact"] * row["count"] for row in rows) / count
    return {"count": count, "exact": exact, "ends": ends, "first_wrong": first}
