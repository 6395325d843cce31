"""Figures of accuracy and validation loss against parameters, and of the lengths of training problems."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.ticker import EngFormatter, Formatter, LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from lengthwise.base.errors import UsageError
from lengthwise.base.results import Claim
from lengthwise.base.score_rows import Row, group_by
from lengthwise.report import own_scores
from lengthwise.report.lines import LineStyle, add_legend, line_style, shorten_labels
from lengthwise.report.style import (
    COLOURS,
    DASHES,
    DOTTED,
    FAINT,
    INK,
    Drawing,
    Width,
    fix_layout,
    new_figure,
    style,
    wrap_title,
)
from lengthwise.runs.folder import RunFolder


def parameter_rows(runs: Iterable[RunFolder]) -> list[Row]:
    """Return a row per run that logged validation loss: parameters, time, the lowest loss, and exact match on natural
    problems under the recipe's own stopping rule, within the training range and beyond (None if not measured)."""
    found = []
    for run in runs:
        watched = (row.get("validation_loss") for row in run.rows("metrics"))
        losses = [loss for loss in watched if loss is not None]
        if not losses or not (about := run.about()):
            continue
        top = run.outline.top
        natural = [row for row in own_scores(run) if row["problems"] == "natural"]
        # Natural problems have all lengths up to their size, so the largest size counts.
        ordered = sorted(natural, key=lambda row: max(row["sizes"]))
        within = [row["exact"] for row in ordered if max(row["sizes"]) <= top]
        beyond = [row["exact"] for row in ordered if max(row["sizes"]) > top]
        found.append(
            {
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
        )
    return found


@style()
def parameter_figure(rows: Sequence[Row], claims: Sequence[Claim] = (), *, width: Width = "page") -> Drawing:
    """Draw exact match and validation loss against parameters on a log axis: a line per kind of model through the means
    over seeds, and a faint mark per seed. Marks beyond the training range are hollow. Claims are dotted lines. Raises
    UsageError without rows."""
    if not rows:
        raise UsageError("there is nothing to draw: no run logged a validation loss")
    wide = width == "page"
    figure = new_figure(width, 3.0 if wide else 5.0)
    left, right = figure.subplots(1, 2) if wide else figure.subplots(2, 1)
    kinds = group_by(rows, lambda row: row["model"])
    twins = len(kinds) <= len(COLOURS)  # keep a line's colour beyond the training range if there are enough colours
    looks = []
    for number, group in enumerate(kinds.values()):
        name = _common_name(group)
        numbers = [(number, 0), (number, 1)] if twins else [(2 * number,), (2 * number + 1,)]
        own, beyond = (line_style(*one, name=name) for one in numbers)
        looks.append(own)
        _draw_line(left, group, "within", own)
        _draw_line(left, group, "beyond", replace(beyond, name=f"{name}, beyond", hollow=True))
        _draw_line(right, group, "validation_loss", own)
    published = [claim for claim in claims if claim.exact is not None]
    for claim, dash in zip(published, (DOTTED, *DASHES[3:]), strict=False):
        left.axhline(claim.exact, color=INK, linestyle=dash, linewidth=1.0, label=claim.who)
        looks.append(LineStyle(claim.who, INK, "", dash))
    left.set_ylim(-0.02, 1.02)
    left.set_title("exact match", fontsize=8)
    right.set_yscale("log")
    right.set_title("validation loss (nats)", fontsize=8)
    for axes in (left, right):
        axes.set(xscale="log", xlabel="parameters")
        axes.margins(x=0.12)
        _label_log_axis(axes.xaxis, [row["parameters"] for row in rows], EngFormatter(sep=""))
    _label_log_axis(right.yaxis, [row["validation_loss"] for row in rows], StrMethodFormatter("{x:g}"))
    ranges = [
        LineStyle("within the training lengths", FAINT, "o", ""),
        LineStyle("beyond", FAINT, "o", "", hollow=True),
    ]
    joined = len({row["parameters"] for row in rows}) > len(kinds)  # otherwise only marks are drawn
    shown = [one if joined or not one.marker else replace(one, dash="") for one in looks]
    add_legend(figure, [*shown, *ranges], columns=6)
    return fix_layout(figure, "Accuracy and loss against size", width)


def _common_name(rows: Sequence[Row]) -> str:
    """Return the words that the names of recipes of one kind of model share, such as ``gpt`` for gpt-small and
    gpt-large; if they share none, return the model's class."""
    recipes = list(dict.fromkeys(row["recipe"] for row in rows))
    common = shorten_labels(recipes)[0].removeprefix("full names: ").split("…")[0].strip("-")
    return recipes[0] if len(recipes) == 1 else common or str(rows[0]["model"])


def _label_log_axis(axis: Axis, values: Sequence[float], formatter: Formatter) -> None:
    """Label a log axis that may span less than a decade, where matplotlib's labels would overlap."""
    wide = max(values) >= 10 * min(values)
    axis.set_major_locator(LogLocator(subs=(1.0, 3.0)) if wide else MaxNLocator(4))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(formatter)


def _draw_line(axes: Axes, group: Sequence[Row], measure: str, look: LineStyle) -> None:
    measured = [row for row in group if row.get(measure) is not None]
    recipes = group_by(measured, lambda row: (row["recipe"], row["parameters"]))
    if not recipes:
        return
    means = sorted((rows[0]["parameters"], statistics.fmean(row[measure] for row in rows)) for rows in recipes.values())
    line = look.properties()
    axes.plot(*zip(*means, strict=True), zorder=3, clip_on=False, **line)
    each = [(row["parameters"], row[measure]) for rows in recipes.values() for row in rows]
    faint = line | {"linestyle": "none", "label": "_"}
    axes.plot(*zip(*each, strict=True), alpha=0.5, zorder=2, clip_on=False, **faint)


@style()
def distribution_figure(counts: Mapping[int, int], title: str, *, width: Width = "page") -> Drawing:
    """Draw the number of problems of each length. Raises UsageError if ``counts`` is empty."""
    if not counts:
        raise UsageError("there is nothing to draw: no problems were counted")
    figure = new_figure(width, 2.2)
    axes = figure.add_subplot()
    axes.bar(list(counts), list(counts.values()), color=FAINT, width=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(12, integer=True))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    axes.set(xlabel="length", ylabel="problems", title=wrap_title(title, width))
    return fix_layout(figure)
