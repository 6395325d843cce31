"""Figure of the course of training: loss, and exact match measured while training."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from matplotlib.axes import Axes
from matplotlib.ticker import StrMethodFormatter

from lengthwise.base.errors import UsageError
from lengthwise.report import by_recipe
from lengthwise.report.lines import MARKS, LineStyle, line_style, name_lines, shorten_labels
from lengthwise.report.style import (
    COLOURS,
    DASHES,
    FAINT,
    INK,
    MARKERS,
    Drawing,
    Width,
    fix_layout,
    new_figure,
    style,
    wrap_title,
)
from lengthwise.runs.folder import RunFolder

FULLY_DRAWN = 4  # maximum number of recipes for which logged losses are drawn behind the mean
Points = list[tuple[int, float]]  # (step, value)


@style()
def loss_figure(
    runs: Iterable[RunFolder],
    title: str | None = None,
    *,
    watch: bool = True,
    strong: str | None = None,
    width: Width = "page",
) -> Drawing:
    """Draw the running geometric mean of the loss against steps on a log axis; with few recipes, logged losses too, as
    thin lines. With ``watch``, draw the exact match measured while training below it. ``strong`` is the recipe to
    highlight. Raises UsageError if no run has logged a loss."""
    groups = {name: [_LoggedValues.of(run) for run in group] for name, group in by_recipe(runs).items()}
    groups = {name: logged for name, group in groups.items() if (logged := [one for one in group if one.losses])}
    if not groups:
        raise UsageError("no loss to draw: these runs logged none that is finite and above 0")
    heading, looks = _choose_styles(groups, strong)
    sizes = list(dict.fromkeys(size for group in groups.values() for one in group for size in one.watched))
    sizes = sorted(sizes, key=lambda size: [int(part) for part in size.split("x")]) if watch else []
    # Dashes mark sizes if colours suffice for the recipes; otherwise each size has its own axes.
    parts = [sizes] if sizes and len(groups) <= len(COLOURS) else [[size] for size in sizes]
    high = max(2.6, 0.4 + 0.17 * len(groups))
    beneath = 0.17 * len(groups) if width == "column" else 0.0  # room for the legend
    figure = new_figure(width, high + 1.4 * len(parts) + beneath)
    panels = figure.subplots(1 + len(parts), 1, sharex=True, squeeze=False, height_ratios=[high] + [1.4] * len(parts))
    loss, *below = panels[:, 0]
    ends = _draw_losses(loss, groups, looks)
    for axes, part in zip(below, parts, strict=True):
        _draw_exact_match(axes, groups, looks, part)
    panels[-1, 0].set(xlabel="steps", xlim=(0, None))
    panels[-1, 0].xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    loss.set_title(wrap_title(title or "Training", width))
    if width == "page" and parts and len(parts[0]) > 1:
        marks, heights = [_size_style(number, size) for number, size in enumerate(sizes)], []
        for size in sizes:  # a legend of the marker and dash of each size
            last = [points[-1] for group in groups.values() for one in group if (points := one.watched.get(size))]
            heights.append((0.0, statistics.fmean(share for _, share in last)))
        name_lines(below[0], marks, heights, "page")
    name_lines(loss, list(looks.values()), ends, width, heading)
    return fix_layout(figure)


def _choose_styles(groups: dict[str, list[_LoggedValues]], strong: str | None) -> tuple[str, dict[str, LineStyle]]:
    """Return a heading with the words that all names share, and each recipe's style by its label."""
    heading, names = shorten_labels(list(groups))
    order = sorted(groups, key=lambda label: label != strong)
    looks = {}
    for label, name in zip(groups, names, strict=True):
        seeds = len(groups[label])
        note = f"{seeds} seeds" if seeds > 1 else ""
        looks[label] = replace(line_style(order.index(label), name=name, note=note, strong=label == strong), marker="")
    return heading, looks


@dataclass(frozen=True)
class _LoggedValues:
    """The values that a run has logged, as (step, value)."""

    losses: Points  # finite and above 0, as a log axis requires
    watched: dict[str, Points]  # exact match, by size

    @staticmethod
    def of(run: RunFolder) -> _LoggedValues:
        rows = run.rows("metrics")
        losses = [(row["step"], float(row["loss"])) for row in rows if row.get("loss") is not None]
        watched: dict[str, Points] = {}
        for row in rows:
            for size, share in row.get("exact", {}).items():
                watched.setdefault(size, []).append((row["step"], float(share)))
        return _LoggedValues([(step, loss) for step, loss in losses if 0 < loss < math.inf], watched)


def _join_lines(lines: Iterable[Points]) -> tuple[tuple[list[float], list[float]], list[int]]:
    """Join lines of one style with breaks between them, because matplotlib draws one line much faster. Return steps and
    values, and the indices of about ``MARKS`` marked points per line."""
    steps: list[float] = []
    values: list[float] = []
    marked: list[int] = []
    for line in lines:
        steps += [math.nan] * bool(steps)
        values += [math.nan] * bool(values)
        marked += range(len(steps), len(steps) + len(line), math.ceil(len(line) / MARKS))
        steps += [step for step, _ in line]
        values += [value for _, value in line]
    return (steps, values), marked


def _draw_losses(
    axes: Axes, groups: dict[str, list[_LoggedValues]], styles: dict[str, LineStyle]
) -> list[tuple[float, float]]:
    """Draw all losses. Return the end point of each recipe's lines, averaged over seeds."""
    axes.set(yscale="log", ylabel="loss (nats)")
    ends: list[tuple[float, float]] = []
    explanation = (
        "bold: running geometric mean; thin: as logged" if len(groups) <= FULLY_DRAWN else "running geometric mean"
    )
    axes.text(0.99, 0.98, explanation, transform=axes.transAxes, ha="right", va="top", fontsize=6.5, color=FAINT)
    for label, group in groups.items():
        if len(groups) <= FULLY_DRAWN:
            logged, _ = _join_lines([one.losses for one in group])
            axes.plot(*logged, color=styles[label].colour, linewidth=0.4, alpha=0.35, zorder=2, label="_")
        smooth = []
        for one in group:
            steps, losses = zip(*one.losses, strict=True)
            smooth.append([*zip(steps, running_mean(losses), strict=True)])
        joined, _ = _join_lines(smooth)
        axes.plot(*joined, zorder=2.9 if styles[label].strong else 3, **styles[label].properties())
        last = [line[-1] for line in smooth]
        ends.append((max(step for step, _ in last), statistics.geometric_mean(loss for _, loss in last)))
    return ends


def _draw_exact_match(
    axes: Axes, groups: dict[str, list[_LoggedValues]], styles: dict[str, LineStyle], sizes: Sequence[str]
) -> None:
    """Draw exact match in the colours of the recipes; each size has a marker and a dash, or axes of its own."""
    axes.set(ylim=(-0.02, 1.02), ylabel="exact match" if len(sizes) > 1 else f"exact match\nat {sizes[0]}")
    for label, group in groups.items():
        for number, size in enumerate(sizes):
            own = styles[label]
            if len(sizes) > 1:
                own = replace(_size_style(number, size), name=f"{own.name} at {size}", colour=own.colour)
            joined, marked = _join_lines([points for one in group if (points := one.watched.get(size))])
            line = own.properties() | {
                "linewidth": 0.9,
                "markevery": marked,
                "in_layout": False,
            }  # NaN breaks disturb the layout
            axes.plot(*joined, zorder=3, clip_on=False, **line)


def _size_style(number: int, size: str) -> LineStyle:
    marker, dash = MARKERS[number % len(MARKERS)], DASHES[number % len(DASHES)]
    return LineStyle(f"at {size}", INK, marker, dash, hollow=number > 0)


def running_mean(losses: Sequence[float], memory: float = 1 / 50) -> list[float]:
    """Return a running geometric mean. Its window extends on either side by the fraction ``memory`` of all values, or
    by a quarter of the values before the point if that is less: early losses may fall a thousandfold, so a fixed window
    would distort the start."""
    sums = [0.0, *itertools.accumulate(math.log(loss) for loss in losses)]
    sides = [int(min(memory * len(losses), number / 4)) for number in range(len(losses))]
    spans = [(number - side, min(number + side + 1, len(losses))) for number, side in enumerate(sides)]
    return [math.exp((sums[end] - sums[start]) / (end - start)) for start, end in spans]
