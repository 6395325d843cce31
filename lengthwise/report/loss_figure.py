"""Figures of training: loss and exact match against steps, accuracy against parameters, and lengths of problems."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import EngFormatter, Formatter, LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from lengthwise.base.errors import UsageError
from lengthwise.base.results import Claim
from lengthwise.base.score_rows import Row, group_by
from lengthwise.report import by_recipe, select_own_scores
from lengthwise.report.lines import MARKERS_PER_LINE, LineStyle, add_legend, line_style, name_lines, shorten_labels
from lengthwise.report.style import (
    COLOURS,
    DASHES,
    DOTTED,
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

Points = list[tuple[int, float]]  # (step, value)
LogsByRecipe = dict[str, list["_LoggedRun"]]


@style()
def draw_loss_figure(
    runs: Iterable[RunFolder], title: str | None = None, *, highlight: str | None = None, width: Width = "page"
) -> Drawing:
    """Draw the running geometric mean of the loss against steps on a log axis and, for at most four recipes, the logged
    losses as thin lines. Draw exact match during training in panels below. ``highlight`` is the main recipe. Raises
    UsageError if no run has logged a loss."""
    groups = {}
    for name, group in by_recipe(runs).items():
        if logged := [log for log in map(_LoggedRun, group) if log.losses]:
            groups[name] = logged
    if not groups:
        raise UsageError("no loss to draw: these runs logged no loss that is finite and above 0")
    heading, names = shorten_labels(list(groups))
    order, looks = sorted(groups, key=lambda label: label != highlight), {}
    for label, name in zip(groups, names, strict=True):
        note = f"{len(groups[label])} seeds" if len(groups[label]) > 1 else ""
        look = line_style(order.index(label), name=name, note=note, highlight=label == highlight)
        looks[label] = replace(look, marker="")
    watched = {size for group in groups.values() for run_log in group for size in run_log.watched}
    sizes = sorted(watched, key=lambda size: [int(part) for part in size.split("x")])
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
        marks, heights = [_choose_size_style(number, size) for number, size in enumerate(sizes)], []
        for size in sizes:  # a legend of the marker and dash of each size
            logs = (log for group in groups.values() for log in group if size in log.watched)
            heights.append((0.0, statistics.fmean(log.watched[size][-1][1] for log in logs)))
        name_lines(below[0], marks, heights, "page")
    name_lines(loss, list(looks.values()), ends, width, heading)
    return fix_layout(figure)


class _LoggedRun:
    """The loss and exact match that a run has logged, as pairs of step and value."""

    def __init__(self, run: RunFolder) -> None:
        self.losses: Points = []  # finite and above 0, as a log axis requires
        self.watched: dict[str, Points] = {}  # exact match, by size
        for row in run.rows("metrics"):
            if 0 < float(row.get("loss") or 0) < math.inf:
                self.losses.append((row["step"], float(row["loss"])))
            for size, share in row.get("exact", {}).items():
                self.watched.setdefault(size, []).append((row["step"], float(share)))


def _join_lines(lines: Iterable[Points]) -> tuple[tuple[list[float], list[float]], list[int]]:
    """Join lines of one style into one line with gaps, which matplotlib draws much faster. Return the steps and values,
    and the indices of about ``MARKERS_PER_LINE`` marked points per line."""
    steps: list[float] = []
    values: list[float] = []
    marked: list[int] = []
    for line in lines:
        steps += [math.nan] * bool(steps)
        values += [math.nan] * bool(values)
        marked += range(len(steps), len(steps) + len(line), math.ceil(len(line) / MARKERS_PER_LINE))
        steps += [step for step, _ in line]
        values += [value for _, value in line]
    return (steps, values), marked


def _draw_losses(axes: Axes, groups: LogsByRecipe, styles: dict[str, LineStyle]) -> list[tuple[float, float]]:
    """Draw all losses. Return the end point of each recipe's lines, averaged over seeds."""
    axes.set(yscale="log", ylabel="loss (nats)")
    ends: list[tuple[float, float]] = []
    few = len(groups) <= 4  # then logged losses are drawn behind the mean
    text = "bold: running geometric mean; thin: as logged" if few else "running geometric mean"
    axes.text(0.99, 0.98, text, transform=axes.transAxes, ha="right", va="top", fontsize=6.5, color=FAINT)
    for label, group in groups.items():
        if few:
            logged, _ = _join_lines([run_log.losses for run_log in group])
            axes.plot(*logged, color=styles[label].colour, linewidth=0.4, alpha=0.35, zorder=2, label="_")
        lines = [zip(*run_log.losses, strict=True) for run_log in group]
        smooth = [[*zip(steps, compute_running_geometric_mean(losses), strict=True)] for steps, losses in lines]
        joined, _ = _join_lines(smooth)
        axes.plot(*joined, zorder=2.9 if styles[label].highlight else 3, **styles[label].to_matplotlib())
        last = [line[-1] for line in smooth]
        ends.append((max(step for step, _ in last), statistics.geometric_mean(loss for _, loss in last)))
    return ends


def _draw_exact_match(axes: Axes, groups: LogsByRecipe, styles: dict[str, LineStyle], sizes: Sequence[str]) -> None:
    """Draw exact match against steps in the recipes' colours; each of several sizes has its own marker and dash."""
    axes.set(ylim=(-0.02, 1.02), ylabel="exact match" if len(sizes) > 1 else f"exact match\nat {sizes[0]}")
    for label, group in groups.items():
        for number, size in enumerate(sizes):
            look = styles[label]
            if len(sizes) > 1:
                look = replace(_choose_size_style(number, size), name=f"{look.name} at {size}", colour=look.colour)
            joined, marked = _join_lines([points for run_log in group if (points := run_log.watched.get(size))])
            line = look.to_matplotlib() | {"linewidth": 0.9, "markevery": marked}
            axes.plot(*joined, zorder=3, clip_on=False, in_layout=False, **line)  # NaN breaks disturb the layout


def _choose_size_style(number: int, size: str) -> LineStyle:
    marker, dash = MARKERS[number % len(MARKERS)], DASHES[number % len(DASHES)]
    return LineStyle(f"at {size}", INK, marker, dash, is_hollow=number > 0)


def compute_running_geometric_mean(losses: Sequence[float]) -> list[float]:
    """Return the running geometric mean of losses. The window reaches a fiftieth of all values to either side of a
    point, but at most a quarter of the values before the point, since early losses may fall a thousandfold."""
    sums = [0.0, *itertools.accumulate(math.log(loss) for loss in losses)]
    sides = [int(min(1 / 50 * len(losses), number / 4)) for number in range(len(losses))]
    spans = [(number - side, min(number + side + 1, len(losses))) for number, side in enumerate(sides)]
    return [math.exp((sums[end] - sums[start]) / (end - start)) for start, end in spans]


# Parameters and problems


def build_parameter_rows(runs: Iterable[RunFolder]) -> list[Row]:
    """Return a row per run that logged a validation loss: parameters, time, the lowest such loss, and exact match on
    natural problems under the recipe's own rule, at the largest size ``within`` and ``beyond`` the training range."""
    rows = []
    for run in runs:
        watched = (row.get("validation_loss") for row in run.rows("metrics"))
        losses = [loss for loss in watched if loss is not None]
        if not losses or not (about := run.about()):
            continue
        top = run.outline.top
        natural = [row for row in select_own_scores(run) if row["problems"] == "natural"]
        # A set of natural problems has all lengths up to its size, so the largest size counts.
        ordered = sorted(natural, key=lambda row: max(row["sizes"]))
        within = [row["exact"] for row in ordered if max(row["sizes"]) <= top]
        beyond = [row["exact"] for row in ordered if max(row["sizes"]) > top]
        row = {
            "recipe": run.outline.name,
            "id": run.outline.seedless_id,
            "seed": run.outline.seed,
            "model": run.outline.model,
            "parameters": about["parameters"],
            "validation_loss": min(losses),
            "within": within[-1] if within else None,
            "beyond": beyond[-1] if beyond else None,
            "cpu_s": about["cpu_s"],
            "wall_s": about["wall_s"],
        }
        rows.append(row)
    return rows


@style()
def draw_parameter_figure(rows: Sequence[Row], claims: Sequence[Claim] = (), *, width: Width = "page") -> Drawing:
    """Draw exact match and validation loss against parameters on a log axis: a line per kind of model through the means
    over seeds, and a faint mark per seed. Marks beyond the training range are hollow. Published scores, the
    ``claims``, are horizontal lines. Raises UsageError without rows."""
    if not rows:
        raise UsageError("there is nothing to draw: no run logged a validation loss")
    figure = new_figure(width, 3.0 if width == "page" else 5.0)
    left, right = figure.subplots(1, 2) if width == "page" else figure.subplots(2, 1)
    kinds = group_by(rows, lambda row: row["model"])
    shares_colours = len(kinds) <= len(COLOURS)  # a kind keeps its colour beyond the training range
    styles = []
    for number, (kind, group) in enumerate(kinds.items()):
        # The words that the recipes' names share, such as ``gpt`` for gpt-small and gpt-large; otherwise the class.
        recipes = list(dict.fromkeys(row["recipe"] for row in group))
        common = shorten_labels(recipes)[0].removeprefix("full names: ").split("…")[0].strip("-")
        name = recipes[0] if len(recipes) == 1 else common or str(kind)
        numbers = [(number, 0), (number, 1)] if shares_colours else [(2 * number,), (2 * number + 1,)]
        within_style, beyond_style = (line_style(*numbers_of_style, name=name) for numbers_of_style in numbers)
        styles.append(within_style)
        _draw_line(left, group, "within", within_style)
        _draw_line(left, group, "beyond", replace(beyond_style, name=f"{name}, beyond", is_hollow=True))
        _draw_line(right, group, "validation_loss", within_style)
    published = [claim for claim in claims if claim.exact is not None]
    for claim, dash in zip(published, (DOTTED, *DASHES[3:]), strict=False):
        left.axhline(claim.exact, color=INK, linestyle=dash, linewidth=1.0, label=claim.system)
        styles.append(LineStyle(claim.system, INK, "", dash))
    left.set_ylim(-0.02, 1.02)
    right.set_yscale("log")
    for axes, title in ((left, "exact match"), (right, "validation loss (nats)")):
        axes.set_title(title, fontsize=8)
        axes.set(xscale="log", xlabel="parameters")
        axes.margins(x=0.12)
        _label_log_axis(axes.xaxis, [row["parameters"] for row in rows], EngFormatter(sep=""))
    _label_log_axis(right.yaxis, [row["validation_loss"] for row in rows], StrMethodFormatter("{x:g}"))
    styles.append(LineStyle("within the training lengths", FAINT, "o", ""))
    styles.append(LineStyle("beyond", FAINT, "o", "", is_hollow=True))
    add_legend(figure, styles, max_columns=6)
    return fix_layout(figure, "Accuracy and loss against size", width)


def _label_log_axis(axis: Axis, values: Sequence[float], formatter: Formatter) -> None:
    """Set the tick labels of a log axis. Over less than a decade, matplotlib's own labels would overlap."""
    wide = max(values) >= 10 * min(values)
    axis.set_major_locator(LogLocator(subs=(1.0, 3.0)) if wide else MaxNLocator(4))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(formatter)


def _draw_line(axes: Axes, group: Sequence[Row], field: str, line: LineStyle) -> None:
    measured = [row for row in group if row.get(field) is not None]
    if not measured:
        return
    recipes = group_by(measured, lambda row: (row["recipe"], row["parameters"]))
    means = sorted((rows[0]["parameters"], statistics.fmean(row[field] for row in rows)) for rows in recipes.values())
    axes.plot(*zip(*means, strict=True), zorder=3, clip_on=False, **line.to_matplotlib())
    marks = [(row["parameters"], row[field]) for rows in recipes.values() for row in rows]
    faint = line.to_matplotlib() | {"linestyle": "none", "label": "_"}
    axes.plot(*zip(*marks, strict=True), alpha=0.5, zorder=2, clip_on=False, **faint)


@style()
def draw_length_counts(counts_by_length: Mapping[int, int], *, width: Width = "page") -> Drawing:
    """Draw the number of training problems of each length. Raises UsageError if ``counts`` is empty."""
    if not counts_by_length:
        raise UsageError("there is nothing to draw: no problems were counted")
    figure = new_figure(width, 2.2)
    axes = figure.add_subplot()
    axes.bar(list(counts_by_length), list(counts_by_length.values()), color=FAINT, width=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set(xlabel="length", ylabel="problems", title=f"{sum(counts_by_length.values()):,} problems to train on")
    return fix_layout(figure)
