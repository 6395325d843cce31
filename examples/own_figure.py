"""A custom figure: the longest length that each seed solves. `python own_figure.py runs/*` writes reach.png."""

import sys
from pathlib import Path

from lengthwise.base.score_rows import SOLVED
from lengthwise.report import by_recipe
from lengthwise.report.style import COLOURS, fix_layout, new_figure, save, style
from lengthwise.runs.folder import RunFolder


def largest_solved_size(run):
    """Return the largest size whose scores, including families, are all at least SOLVED; else 0."""
    lowest = {}
    for row in run.rows("scores"):
        size = max(row["sizes"])
        lowest[size] = min(row["exact"], lowest.get(size, 1.0))
    return max((size for size, exact in lowest.items() if exact >= SOLVED), default=0)


@style()
def draw_solved_sizes(runs):
    """Draw a row of dots per recipe, one per run, and a bar at the longest training length."""
    groups = by_recipe(run for run in runs if run.rows("scores"))
    figure = new_figure("page", 1 + 0.3 * len(groups))
    axes = figure.add_subplot()
    for number, group in enumerate(groups.values()):
        colour = COLOURS[number % len(COLOURS)]
        axes.plot([largest_solved_size(run) for run in group], [number] * len(group), "o", color=colour, clip_on=False)
        axes.plot(group[0].outline.top, number, "|", markersize=14, color="black")
    axes.set_yticks(range(len(groups)), groups)
    axes.set_ylim(len(groups) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"longest length with exact match ≥ {SOLVED}; bar: longest in training")
    return fix_layout(figure)


if __name__ == "__main__":
    folders = [Path(name) for name in sys.argv[1:] if Path(name, "config.json").exists()]  # skip folders of `ask`
    print(*save(draw_solved_sizes([RunFolder(folder) for folder in folders]), Path("reach")))
