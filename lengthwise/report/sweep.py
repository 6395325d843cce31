"""Report of a sweep: a table of trials, the importance of each field, and a figure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from itertools import groupby

from rich.table import Table

from lengthwise.base.errors import UsageError
from lengthwise.base.score_rows import Row, format_share, group_by
from lengthwise.report.fitted_table import FittedTable
from lengthwise.report.style import COLOURS, FAINT, Drawing, fix_layout, new_figure, style

MAX_TRIAL_ROWS = 12  # trials in the table
BIN_COUNT = 3  # bins per searched range


def rank_trials(trials: Sequence[Row]) -> list[Row]:
    """Return the trials, the best first: most seeds, then highest mean exact match, then fewest parameters."""
    return sorted(trials, key=lambda row: (-row["seeds"], -row["exact"], row["parameters"] or 0))


def compute_importances(trials: Sequence[Row], range_paths: Sequence[str]) -> list[Row]:
    """Return a row per field that varied: the fraction of the variance of exact match that its values explain, and mean
    exact match at each value. Values of the fields in ``range_paths``, which a search draws from a range, are put into
    three bins of about equal counts. Equal values share a bin."""
    exact = [row["exact"] for row in trials]
    variance, mean, rows_of_fields = statistics.pvariance(exact), statistics.fmean(exact), []
    for path in trials[0]["values"]:
        groups = (_bin_trials if path in range_paths else _group_trials)(trials, path)
        means = {value: statistics.fmean(group) for value, group in groups.items()}
        between = sum(len(groups[value]) * (means[value] - mean) ** 2 for value in groups) / len(exact)
        rows_of_fields.append({"field": path, "explains": between / variance if variance else 0.0, "exact": means})
    return sorted(rows_of_fields, key=lambda row: -row["explains"])


def _group_trials(trials: Sequence[Row], path: str) -> dict[str, list[float]]:
    """Return the trials' exact match by the value of the field ``path``."""
    by_value = group_by(trials, lambda row: row["values"][path])
    return {value: [row["exact"] for row in rows] for value, rows in by_value.items()}


def _bin_trials(trials: Sequence[Row], path: str) -> dict[str, list[float]]:
    """Return the trials' exact match in bins of about equal counts, by each bin's range of the field ``path``."""
    ordered = sorted(trials, key=lambda row: float(row["values"][path]))
    size, parts = -(-len(ordered) // BIN_COUNT), [list[Row]()]
    for _, equal_rows in groupby(ordered, key=lambda row: float(row["values"][path])):
        rows = list(equal_rows)
        if parts[-1] and len(parts) < BIN_COUNT and len(parts[-1]) + len(rows) > size:
            parts.append([])
        parts[-1] += rows
    spans = [dict.fromkeys(row["values"][path] for row in (part[0], part[-1])) for part in parts]
    return {"–".join(span): [row["exact"] for row in part] for span, part in zip(spans, parts, strict=True)}


def build_trials_table(trials: Sequence[Row]) -> Table:
    """Return a table of the ``MAX_TRIAL_ROWS`` best trials."""
    paths = list(trials[0]["values"])
    further = f"{len(trials) - MAX_TRIAL_ROWS} more in trials.csv" if len(trials) > MAX_TRIAL_ROWS else None
    headings = (*paths, "exact match", "worst seed", "seeds", "parameters")
    table = FittedTable(*headings, title="Trials, the best first", caption=further)
    for row in rank_trials(trials)[:MAX_TRIAL_ROWS]:
        size = f"{row['parameters']:,}" if row["parameters"] else "–"
        numbers = (format_share(row["exact"], 3), format_share(row["worst"], 3), str(row["seeds"]), size)
        table.add_row(*(row["values"][path] for path in paths), *numbers)
    return table


def build_importance_table(rows: Sequence[Row]) -> Table:
    """Return a table of the importance of each field, largest first."""
    caption = "explains: share of the variance of exact match between trials; the rest: interactions and chance"
    table = FittedTable("field", "explains", "exact match by value", title="Importance of fields", caption=caption)
    for row in rows:
        by_value = ", ".join(f"{value}: {format_share(mean, 3)}" for value, mean in row["exact"].items())
        table.add_row(row["field"], format_share(row["explains"]), by_value)
    return table


@style()
def draw_sweep_figure(trials: Sequence[Row], ranges: Mapping[str, bool], title: str) -> Drawing:
    """Draw exact match against each field that varied, with a mark per trial and, for listed values, a line through the
    means. ``ranges`` maps searched fields to whether their axis is logarithmic. Raises UsageError without trials."""
    if not trials:
        raise UsageError("there is nothing to draw: no trial has ended")
    paths = list(trials[0]["values"])
    figure = new_figure("page", 2.4)
    panels = figure.subplots(1, len(paths), sharey=True, squeeze=False)[0]
    exact = [row["exact"] for row in trials]
    for axes, path in zip(panels, paths, strict=True):
        values = [row["values"][path] for row in trials]
        if path in ranges:
            axes.scatter([float(value) for value in values], exact, s=12, color=COLOURS[0], alpha=0.7)
            axes.set_xscale("log" if ranges[path] else "linear")
        else:
            groups = _group_trials(trials, path)
            places = {value: number for number, value in enumerate(groups)}
            means = [statistics.fmean(group) for group in groups.values()]
            axes.scatter([places[value] for value in values], exact, s=12, color=FAINT, alpha=0.7)
            axes.plot(list(places.values()), means, "o-", color=COLOURS[0])
            axes.set_xticks(list(places.values()), list(places))
        axes.set(xlabel=path, ylim=(-0.02, 1.02))
    panels[0].set_ylabel("exact match")
    return fix_layout(figure, title)
