"""Figures of exact match against length, with a line per curve, for some recipes or for a whole study."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from lengthwise.base.errors import UsageError
from lengthwise.base.formatting import format_task_name
from lengthwise.base.results import InquiryOutline, RunOutline
from lengthwise.base.score_rows import format_size
from lengthwise.report import WORST_FAMILY, Curve, collect_warnings_by_recipe, curves, format_rule
from lengthwise.report.lines import MARKERS_PER_LINE, LineStyle, add_legend, line_style, name_lines, shorten_labels
from lengthwise.report.map_figure import draw_heat_map, label_scores
from lengthwise.report.style import (
    COLOURS,
    DASHES,
    FAINT,
    PANELS_PER_ROW,
    SHADE,
    Drawing,
    Width,
    fix_layout,
    new_figure,
    style,
    wrap_title,
)
from lengthwise.runs.folder import RunFolder

LEGEND_HEIGHT = 0.6  # inches that several panels leave for a legend
LEGEND_ROW_HEIGHT = 0.17  # inches


@dataclass(frozen=True)
class PlotPanel:
    """One panel with its curves. With ``highlight``, the panel's title is bold."""

    title: str
    curves: list[Curve]
    styles: list[LineStyle]
    highlight: bool = False
    bands_over_seeds_only: bool = False  # draw bands only for curves of several seeds


def draw_score_figure(runs: Sequence[RunFolder], title: str | None = None, *, width: Width = "page") -> Drawing:
    """Draw exact match of runs against length, with separate lines for uniform problems and the worst family. If all
    scores are at pairs of unequal sizes, draw a heat map instead, which can show only one recipe. The default ``title``
    names the task. Raises UsageError without scores, or if several recipes need a heat map."""
    title = title or build_title([run.outline for run in runs])
    lines, rows = curves(runs), label_scores(runs)
    if any(curve.diagonal for curve in lines):
        return draw_length_figure(choose_curves(lines), title, width=width)
    if len({curve.label for curve in lines}) > 1:
        raise UsageError(
            "every score is at two unequal sizes, which only a heat map of one recipe can show: draw recipes separately"
        )
    return draw_heat_map(rows, runs[0].outline.tops, title, width=width)


def build_title(outlines: Sequence[RunOutline | InquiryOutline]) -> str:
    """Return the default title: the tasks, and the training length if it is the same for all."""
    tasks = ", ".join(dict.fromkeys(format_task_name(outline.task) for outline in outlines))
    tops = {format_size(outline.tops) for outline in outlines if isinstance(outline, RunOutline) and outline.top}
    return f"{tasks}, trained on up to {min(tops)}" if len(tops) == 1 else tasks


def choose_curves(curves: Sequence[Curve]) -> list[Curve]:
    """Return the curves to plot against length. If any others remain, omit those of a single size, those of natural
    problems (which mix sizes) and, if families were measured, those of the harder set (one of the families)."""
    left_out = {"natural", *(["hard"] if any(curve.problems == WORST_FAMILY for curve in curves) else [])}
    lines = [curve for curve in curves if curve.problems not in left_out]
    return [curve for curve in lines if len(curve.points) > 1] or lines or list(curves)


@style()
def draw_length_figure(
    curves: Sequence[Curve], title: str | None = None, *, highlight: str | None = None, width: Width = "page"
) -> Drawing:
    """Draw exact match against length, with a line per curve and the training range shaded; ``highlight`` is the main
    recipe. A line is the mean over seeds; its band spans the worst to the best seed or, for a single seed, the 95 %
    interval (only in panels of at most seven lines). With two axes, only the points of ``Curve.diagonal`` are drawn.
    Many curves are split over several panels. Raises UsageError if no curve has points on its diagonal."""
    curves = [curve for curve in curves if curve.diagonal]
    if not curves:
        raise UsageError("no scores to plot against length: evaluate a run first (pairs of sizes make a heat map)")
    parts, heading = split_panels(curves, highlight)
    if len(parts) > 1:
        max_length = max(curve.diagonal[-1].length for curve in curves)
        return _draw_panels(parts, title, width, max_legend_columns=5, max_length=max_length)
    figure, (axes,) = create_panels(1, len(curves), width)
    _draw_plot(axes, parts[0])
    last_points = [([*filter(curve.has_all_seeds, curve.diagonal)] or curve.diagonal)[-1] for curve in curves]
    ends = [(point.length, point.mean) for point in last_points]
    name_lines(axes, parts[0].styles, ends, width, heading)
    if title:
        axes.set_title(wrap_title(title, width), pad=15)
    return fix_layout(figure)


@style()
def draw_overview_figure(
    groups: Mapping[str, Sequence[RunFolder]], title: str | None = None, *, highlight: str = "", width: Width = "page"
) -> Drawing:
    """Draw exact match on uniform problems against length, a panel per named group of runs. A recipe's method has the
    same style in every panel. The method is the recipe's name without the words that all names of the panel share. The
    panel with the most recipes decides the methods' names in the other panels. ``highlight`` is the main method. Each
    recipe is shown with its own stopping rule or, if that was not measured, with the first rule measured. Raises
    UsageError without scores."""
    drawn: dict[str, dict[str, Curve]] = {}  # by panel, and by recipe
    for name, group in groups.items():
        measured = [run for run in group if run.rows("scores")]
        for curve in curves(measured) if measured else []:
            if curve.problems == "uniform" and curve.diagonal:
                drawn.setdefault(name, {}).setdefault(curve.label, curve)  # a recipe's own rule comes first
    if not drawn:
        raise UsageError("no scores to plot against length: evaluate a run first")
    known_methods = shorten_labels(list(max(drawn.values(), key=len)))[1]
    panels: dict[str, dict[str, Curve]] = {}  # by panel, and by method
    for name, curves_by_label in drawn.items():
        # The longest known method within a recipe's name; if two recipes have the same one, their shortened names.
        short_labels = shorten_labels(list(curves_by_label))[1]
        names = [
            max((method for method in known_methods if f"-{method}-" in f"-{label}-"), key=len, default=rest)
            for label, rest in zip(curves_by_label, short_labels, strict=True)
        ]
        names = names if len({*names}) == len(names) else short_labels
        panels[name] = dict(zip(names, curves_by_label.values(), strict=True))
    methods = list(dict.fromkeys(method for panel in panels.values() for method in panel))
    first = sorted(methods, key=lambda method: method != highlight)  # the highlighted method takes the first colour
    styles = {method: line_style(first.index(method), name=method, highlight=method == highlight) for method in methods}
    parts = [
        PlotPanel(
            name, [*panel.values()], [styles[method] for method in panel], highlight=True, bands_over_seeds_only=True
        )
        for name, panel in panels.items()
    ]
    return _draw_panels(parts, title, width, max_legend_columns=4)


def _draw_panels(
    panels: Sequence[PlotPanel],
    title: str | None,
    width: Width,
    *,
    max_legend_columns: int,
    max_length: int | None = None,
) -> Drawing:
    """Draw several panels and one legend. With ``max_length``, all panels share a length axis up to this length."""
    styles = dict.fromkeys(look for part in panels for look in part.styles)
    figure, grid = create_panels(len(panels), len(styles), width, sharex=max_length is not None)
    for axes, part in zip(grid, panels, strict=True):
        _draw_plot(axes, part, max_length)
        axes.set_title(part.title, pad=11, fontsize=8, fontweight="bold" if part.highlight else "normal")
    columns, height = 2 if width == "column" else max_legend_columns, figure.get_figheight()
    # A large legend makes the figure taller: first by estimate, so that the layout succeeds, then as measured.
    figure.set_figheight(height + max(0.0, LEGEND_ROW_HEIGHT * len(styles) / columns - LEGEND_HEIGHT))
    add_legend(figure, list(styles), columns)
    legend_height = figure.legends[0].get_window_extent().height / figure.dpi
    figure.set_figheight(height + max(0.0, legend_height - LEGEND_HEIGHT))
    return fix_layout(figure, title or "", width)


def _draw_plot(axes: Axes, panel: PlotPanel, max_length: int | None = None) -> None:
    """Draw a panel's curves, up to ``max_length`` or by default their largest size, and describe their bands. A line
    joins the sizes that all seeds were measured at; other sizes have separate hollow markers, with their bands."""
    curves = panel.curves
    _set_up_length_axes(axes, curves, max_length or max(curve.diagonal[-1].length for curve in curves))
    few, banded = len(curves) <= len(COLOURS), list[Curve]()
    for look, curve in zip(panel.styles, curves, strict=True):
        points = [point for point in curve.diagonal if curve.has_all_seeds(point)]
        apart = [point for point in curve.diagonal if not curve.has_all_seeds(point)]
        sizes, means = [point.length for point in points], [point.mean for point in points]
        layer = 2.9 if look.highlight else 3.0  # drawn below the others, so that its wide line does not hide them
        marked = math.ceil(len(sizes) / MARKERS_PER_LINE)
        axes.plot(sizes, means, markevery=marked, zorder=layer, clip_on=False, **look.to_matplotlib())
        if look.highlight or len(curve.rows_by_seed) > 1 or (few and not panel.bands_over_seeds_only):
            banded.append(curve)
            low, high = [point.low for point in points], [point.high for point in points]
            alpha = 0.18 if few or look.highlight else 0.1  # many bands overlap
            axes.fill_between(sizes, low, high, alpha=alpha, color=look.colour, linewidth=0, zorder=2)
        hollow = replace(look, is_hollow=True, name="_").to_matplotlib() | {"linestyle": ""}  # "_": not in a legend
        for point in apart:
            axes.vlines(point.length, point.low, point.high, color=look.colour, linewidth=0.8, zorder=2)
            axes.plot(point.length, point.mean, zorder=layer, clip_on=False, **hollow)
    if banded and axes.get_xlabel():
        several = {point.seed_count > 1 for curve in banded for point in curve.diagonal}
        bands = ["worst to best seed"] * (True in several) + ["95 % interval of a single seed"] * (False in several)
        means, explained = "\nlines: mean over seeds" * (True in several), ",\nor ".join(bands)
        complete = all(curve.has_all_seeds(point) for curve in curves for point in curve.diagonal)
        partial = "" if complete else "\nseparate markers: fewer seeds"
        axes.set_xlabel(f"{axes.get_xlabel()}{means}{partial}\nbands: {explained}")


def _set_up_length_axes(axes: Axes, curves: Sequence[Curve], max_length: int) -> None:
    """Set up the axes for exact match against length, up to ``max_length``, and shade the training range."""
    tops = sorted({curve.top for curve in curves if curve.top})
    right = 1.02 * max([max_length, *tops])
    axes.set(xlim=(0, right), ylim=(-0.02, 1.02), yticks=np.linspace(0, 1, 6))
    axes.xaxis.set_major_locator(MaxNLocator(10, steps=[1, 2, 5, 10], integer=True))
    place = axes.get_subplotspec()
    if place is None or place.is_last_row():
        label, kinds = "length", {curve.axes for curve in curves}
        if {row["task"] for curve in curves for rows in curve.rows_by_seed.values() for row in rows} == {"addition"}:
            label = "digits per operand"
        elif len(kinds) == 1:  # what sizes count
            short: dict[str, int] = {}
            for curve in curves:
                short |= {name: limit for name, limit in zip(curve.axes, curve.tops, strict=True) if limit < curve.top}
            free = " = ".join(name for name in curves[0].axes if name not in short)
            label = ", ".join([free, *(f"{name} up to {limit}" for name, limit in short.items())])
        axes.set_xlabel(label)
    if place is None or place.is_first_col():
        axes.set_ylabel("exact match")
    for top in tops:
        axes.axvspan(0, top, color=SHADE, zorder=0.1, linewidth=0)
        axes.axvline(top, color=FAINT, linewidth=0.7, zorder=1.5)
    if tops:
        text = "trained to " + " and ".join(filter(None, [", ".join(map(str, tops[:-1])), str(tops[-1])]))
        # Align the text with the end of the training range, unless the range is too narrow for it.
        side, x = ("right", tops[-1]) if tops[-1] > 0.2 * right else ("left", 0)
        text_options = {"fontsize": 7, "color": FAINT, "annotation_clip": False}
        axes.annotate(text, (x, 1.02), (0, 3), ha=side, textcoords="offset points", **text_options)


def create_panels(count: int, name_count: int, width: Width, *, sharex: bool = True) -> tuple[Drawing, list[Axes]]:
    """Return a figure with ``count`` panels and room for ``name_count`` line names, and the panels. With ``sharex``,
    the panels share their length axis."""
    across = min(count, PANELS_PER_ROW[width])
    down = math.ceil(count / across)
    height = (2.9 if width == "page" else 2.4) if count == 1 else 0.8 + 1.7 * down
    if count == 1:  # make room for all names, which stand at the right or below
        height = max(height, 0.8 + 0.17 * name_count) if width == "page" else height + 0.17 * name_count
    figure = new_figure(width, height)
    grid = figure.subplots(down, across, squeeze=False, sharex=sharex, sharey=True)
    for axes in grid.ravel()[count:]:
        axes.set_axis_off()
    for number in range(count, down * across):  # panels above an empty place show axis labels
        grid.ravel()[number - across].xaxis.set_tick_params(labelbottom=True)
    return figure, grid.ravel().tolist()[:count]


def split_panels(curves: Sequence[Curve], highlight: str | None) -> tuple[list[PlotPanel], str]:
    """Split curves into panels. Return the panels, and a heading with the words that all recipe names share. All curves
    share one panel if there is a colour for each pair of recipe and stopping rule. Otherwise there is one panel per
    recipe if recipes have several rules, or else one per set of problems."""
    heading, labels = shorten_labels([curve.label for curve in curves])
    short_labels = dict(zip((curve.label for curve in curves), labels, strict=True))
    kinds, split = {(curve.label, curve.stopping) for curve in curves}, ""
    if len(kinds) > len(COLOURS):
        if 1 < len({label for label, _ in kinds}) < len(kinds):
            split = "label"
        elif len({curve.problems for curve in curves}) > 1:
            split = "problems"

    def get_style_key(curve: Curve, *ignored: str) -> tuple[Any, ...]:
        parts = ("label", "stopping", "problems")  # they identify a curve
        return tuple(getattr(curve, part) for part in parts if part not in (split, *ignored))

    # Within a panel the colour shows the recipe and rule, and the dash the set of problems; if there are too few
    # colours or dashes, each curve gets its own pair of colour and dash.
    first = sorted(curves, key=lambda curve: curve.label != highlight)  # the order of colours
    colours = list(dict.fromkeys(get_style_key(curve, "problems") for curve in first))
    numbers = list(dict.fromkeys(get_style_key(curve) for curve in first))
    sets = sorted({curve.problems for curve in curves}, key=lambda problems: problems != "uniform")
    shares_colours = split != "problems" and len(colours) <= len(COLOURS) and len(sets) <= len(DASHES)
    warnings, panels = collect_warnings_by_recipe(curves), dict[str, PlotPanel]()
    for curve in curves:
        rules = {other.stopping for other in curves if other.label == curve.label}
        parts = [
            short_labels[curve.label] if split != "label" else "",
            format_rule(curve.stopping) if split == "label" or len(rules) > 1 else "",
            curve.problems if curve.problems != "uniform" and split != "problems" else "",
        ]
        main = curve.stopping == first[0].stopping if split == "label" else curve.label == highlight and not split
        look = line_style(
            colours.index(get_style_key(curve, "problems")) if shares_colours else numbers.index(get_style_key(curve)),
            sets.index(curve.problems) if shares_colours else None,
            name=", ".join(filter(None, parts)),
            highlight=main,
            note=warnings[curve.label] if curve.problems == "uniform" and not split else "",
        )
        key = str(getattr(curve, split)) if split else ""
        title = short_labels[key] if split == "label" else f"{key} problems" if split else ""
        panel = panels.setdefault(key, PlotPanel(title, [], [], key == highlight))
        panel.curves.append(curve)
        panel.styles.append(look)
    return [*panels.values()], heading
