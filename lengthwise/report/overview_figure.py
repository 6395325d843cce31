"""Figure of a whole study: a panel per task, a line per method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lengthwise.base.errors import UsageError
from lengthwise.report import Curve, curves
from lengthwise.report.length_figure import draw_curve, explain_bands, length_axes, panel_grid
from lengthwise.report.lines import legend, look, short
from lengthwise.report.style import Drawing, Width, add_heading, fix_layout, style
from lengthwise.runs.folder import RunFolder


@style()
def overview_figure(
    groups: Mapping[str, Sequence[RunFolder]], title: str | None = None, *, strong: str = "", width: Width = "page"
) -> Drawing:
    """Draw exact match on uniform problems against length, a panel per named group of runs. A recipe's name without
    what all names of its panel share is its method, which has the same style in every panel; a panel of few recipes
    uses the method names of the fullest panel. ``strong`` is the method to highlight. Each recipe is stopped by its own
    rule or, if that was not measured, by the first one measured. Raises UsageError without scores."""
    drawn = {name: found for name, group in groups.items() if (found := _by_recipe(group))}
    if not drawn:
        raise UsageError("no scores along a length to draw: evaluate a run first")
    methods_known = short(list(max(drawn.values(), key=len)))[1]
    panels = {name: _by_method(found, methods_known) for name, found in drawn.items()}
    methods = list(dict.fromkeys(method for panel in panels.values() for method in panel))
    first = sorted(methods, key=lambda method: method != strong)  # the highlighted method takes the first colour
    looks = {method: look(number, name=method, strong=method == strong) for number, method in enumerate(first)}
    figure, grid = panel_grid(len(panels), len(methods), width, sharex=False)
    for axes, (name, panel) in zip(grid, panels.items(), strict=True):
        length_axes(axes, list(panel.values()), max(curve.diagonal()[-1].length for curve in panel.values()))
        for method, curve in panel.items():
            draw_curve(axes, looks[method], curve.diagonal(), banded=len(curve.rows_by_seed) > 1)
        explain_bands(axes, list(panel.values()))
        axes.set_title(name, pad=11, fontsize=8)
    legend(figure, [looks[method] for method in methods], columns=2 if width == "column" else 4)
    if title:
        add_heading(figure, title, width)
    return fix_layout(figure)


def _by_recipe(group: Sequence[RunFolder]) -> dict[str, Curve]:
    """Return the curve of each recipe that has one, by its name."""
    measured = [run for run in group if run.rows("scores")]
    found: dict[str, Curve] = {}
    for curve in curves(measured) if measured else []:
        if curve.problems == "uniform" and curve.diagonal():
            found.setdefault(curve.label, curve)  # curves() puts its own rule first
    return found


def _by_method(found: Mapping[str, Curve], known: Sequence[str]) -> dict[str, Curve]:
    """Return curves by method: the longest of the known methods that is part of a recipe's name. If these are not
    unique, use the shortened names."""
    rests = short(list(found))[1]
    names = [
        max((method for method in known if f"-{method}-" in f"-{label}-"), key=len, default=rest)
        for label, rest in zip(found, rests, strict=True)
    ]
    return dict(zip(names if len({*names}) == len(names) else rests, found.values(), strict=True))
