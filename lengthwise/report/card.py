"""The score card: how far a recipe carries, how surely, and what it costs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from rich.table import Table

from lengthwise.base.score_rows import (
    SOLVED,
    Row,
    Sizes,
    fit_rows,
    latest,
    share_text,
    size_text,
    trained_on,
    uniform_in,
    worst,
    worst_rows,
)
from lengthwise.report import by_recipe, not_fitted
from lengthwise.report.sheet import Sheet
from lengthwise.runs.folder import DIVERGED, RunFolder

SURE = 381  # problems, all answered right, whose interval begins at SOLVED
HEADINGS = (
    "recipe",
    "trained to",
    "chosen on",
    "longest",
    "of uniform ones",
    "worst family",
    "seeds beyond",
    "parameters",
    "operations",
    "CPU min",
)


def score_card(runs: Sequence[RunFolder], operations: Mapping[str, float] | None = None) -> list[Row]:
    """A row per recipe: ``longest``, for each seed the longest size it solves, that is, where the lower end of exact
    match's 95 % interval is 0.99 or more, with no shorter size beyond the training range where the upper end is less;
    how many seeds ``generalise``, that is, solve a size beyond the training range; parameters, operations of the whole
    training (``operations`` has those of a step, by a recipe's id without seeds), and processor time, the median over
    seeds.

    Solving takes 381 problems, all answered right; sizes measured on fewer are no evidence. Where families of
    structured problems were measured, a size is solved only if exact match is 0.99 or more on every one of them too;
    a seed that diverged is called so. ``longest_uniform`` is the longest without them, and ``worst`` the worst family:
    within the training range or, where none is wrong there, beyond. ``chosen_on`` are the sizes that may have chosen
    the recipe; ``fit`` is exact match at the training length (see ``fit_rows``). Only the recipe's own stopping rule
    counts, only seeds that were measured by it, and of those that diverged no more than that they did.
    """
    rows = []
    for label, group in by_recipe(runs).items():
        first = group[0].outline
        diverged = [run for run in group if run.diverged]
        own = [*filter(None, (_own(run) for run in group if run not in diverged))]
        found = [_longest(rows, first.tops, families=True) for rows in own]
        alone = [_longest(rows, first.tops, families=False) for rows in own]
        abouts = [about for run in group if (about := run.about())]
        beyond = [size is not None and not trained_on(size, first.tops) for size in found]
        steps = (operations or {}).get(first.seedless_id)
        rows.append(
            {
                "recipe": label,
                "task": first.task,
                "trained_to": size_text(first.tops),
                "chosen_on": list(first.looked_at),
                "seeds": len(found) + len(diverged),
                "generalise": sum(beyond),
                "longest": [*map(_text, found), *[DIVERGED] * len(diverged)],
                "longest_uniform": [*map(_text, alone), *[DIVERGED] * len(diverged)],
                "worst": _worst(own, first.tops),
                "fit": _fit(own, first.tops),
                "parameters": abouts[0]["parameters"] if abouts else None,
                "operations": None if steps is None else float(f"{steps * first.steps:.3g}"),
                "cpu_s": round(statistics.median(about["cpu_s"] for about in abouts), 1) if abouts else None,
            }
        )
    return rows


def _text(size: Sizes | None) -> str | None:
    return None if size is None else size_text(size)


def _own(run: RunFolder) -> list[Row]:
    """What a run was measured on by its own stopping rule; nothing without uniform problems: how far it carries is not
    known."""
    rows = [row for row in latest(run.rows("scores")) if row["stopping"] == run.outline.stopping]
    return rows if uniform_in(rows) else []


def _longest(own: Sequence[Row], tops: Sizes, *, families: bool) -> Sizes | None:
    """The longest size that a run solves, if it solves any: on uniform problems, and on all families measured."""
    lowest = {tuple(row["sizes"]): row for row in worst_rows(own)} if families else {}
    longest = None
    uniform = [row for row in own if row["problems"] == "uniform"]
    for row in sorted(uniform, key=lambda row: (max(row["sizes"]), row["sizes"])):
        sizes = tuple(row["sizes"])
        low = lowest.get(sizes)
        if not trained_on(sizes, tops) and (row["high"] < SOLVED or (low is not None and low["high"] < SOLVED)):
            break
        if lowest and low is None:
            continue  # nothing is known of the families here
        if row["low"] >= SOLVED and (low is None or low["exact"] >= SOLVED):
            longest = sizes
    return longest


def _worst(runs: Iterable[Sequence[Row]], tops: Sizes) -> Row | None:
    """The worst family of all runs: within the training range, or beyond where none is wrong within."""
    rows = [row for own in runs for row in worst_rows(own)]
    within = [row for row in rows if trained_on(row["sizes"], tops) and row["exact"] < SOLVED]
    if not rows:
        return None
    low = worst(within or rows)
    return {"family": low["problems"], "size": size_text(low["sizes"]), "exact": low["exact"]}


def _fit(runs: Iterable[Sequence[Row]], tops: Sizes) -> float | None:
    """Exact match at the training length, the mean over seeds; of all problems where these were measured."""
    shares = [row["exact"] for own in runs for row in fit_rows(own, tops)]
    return round(statistics.fmean(shares), 5) if shares else None


def card_table(rows: Sequence[Row]) -> Table:
    """The score card for the terminal."""
    table = Sheet()
    table.caption = (
        f"longest: where exact match is surely {SOLVED} or more (95 % interval; it takes {SURE} problems), per "
        f"seed, and {SOLVED} on every family; seeds beyond: those that solve a size longer than they were trained on"
    )
    for heading in HEADINGS:
        table.add_column(heading)
    for row in rows:
        table.add_row(*card_cells(row))
    return table


def format_sizes(sizes: Iterable[Any]) -> str:
    """Sizes in words, such as those of each seed; – for none."""
    return ", ".join(str(size) if size else "–" for size in sizes) or "–"


def card_cells(row: Row) -> list[str]:
    """A row as it is printed; – where something is not known."""

    unfit, low = not_fitted(row.get("fit"), row["trained_to"]), row.get("worst")

    def format_known(name: str, write: Callable[[Any], str]) -> str:
        return "–" if row[name] is None else write(row[name])

    return [
        row["recipe"] + (f" ({unfit})" if unfit else ""),
        row["trained_to"],
        format_sizes(row.get("chosen_on", [])),
        format_sizes(row["longest"]),
        format_sizes(row.get("longest_uniform", row["longest"])),
        f"{low['family']} {share_text(low['exact'])} at {low['size']}" if low else "not measured",
        f"{row['generalise']} of {row['seeds']}" if row["seeds"] else "–",
        format_known("parameters", lambda count: f"{count:,}"),
        format_known("operations", lambda count: f"{count:.1e}"),
        format_known("cpu_s", lambda seconds: f"{seconds / 60:.1f}"),
    ]
