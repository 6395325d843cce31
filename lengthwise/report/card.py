"""The score card: the longest length that each recipe solves, on how many seeds, and at what cost."""

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
    share_text,
    size_text,
    trained_on,
    uniform_in,
    worst,
    worst_rows,
)
from lengthwise.report import by_recipe, describe_misfit, own_scores
from lengthwise.report.sheet import FittedTable
from lengthwise.runs.folder import DIVERGED, RunFolder

SURE = 381  # problems that must all be right for the 95 % interval to start at SOLVED
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
    """Return a row per recipe.

    ``longest``: for each seed the largest size it solves. A size is solved if the lower end of the 95 % interval of
    exact match is 0.99 or more, which takes 381 problems, all right. No shorter size beyond the training range may have
    an upper end below 0.99. Where families of structured problems were measured, exact match must also be 0.99 or more
    on every family; ``longest_uniform`` ignores families. ``generalise``: the number of seeds that solve a size beyond
    the training range. ``worst``: the worst family within the training range, or beyond it if none fails within.
    ``chosen_on``: sizes that the recipe may have been selected on. ``fit``: exact match at the training length (see
    ``fit_rows``). ``operations``: those of the whole training; the argument gives those of a step, by the recipe's id
    without seeds. ``cpu_s``: processor time, the median over seeds.

    Only the recipe's own stopping rule counts, and only seeds measured with it. A seed that diverged is listed as
    diverged and not scored.
    """
    rows = []
    for label, group in by_recipe(runs).items():
        first = group[0].outline
        diverged = [run for run in group if run.diverged]
        # Without scores on uniform problems, a seed's longest size is unknown.
        measured = [own_scores(run) for run in group if run not in diverged]
        own = [scores for scores in measured if uniform_in(scores)]
        found = [_longest_solved(rows, first.tops, families=True) for rows in own]
        alone = [_longest_solved(rows, first.tops, families=False) for rows in own]
        fits = [row["exact"] for rows in own for row in fit_rows(rows, first.tops)]
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
                "longest": [size and size_text(size) for size in found] + [DIVERGED] * len(diverged),
                "longest_uniform": [size and size_text(size) for size in alone] + [DIVERGED] * len(diverged),
                "worst": _worst_family(own, first.tops),
                "fit": round(statistics.fmean(fits), 5) if fits else None,
                "parameters": abouts[0]["parameters"] if abouts else None,
                "operations": None if steps is None else float(f"{steps * first.steps:.3g}"),
                "cpu_s": round(statistics.median(about["cpu_s"] for about in abouts), 1) if abouts else None,
            }
        )
    return rows


def _longest_solved(own: Sequence[Row], tops: Sizes, *, families: bool) -> Sizes | None:
    """Return the longest size that a run solves on uniform problems and, with ``families``, on all families measured;
    None if there is none."""
    lowest = {tuple(row["sizes"]): row for row in worst_rows(own)} if families else {}
    longest = None
    uniform = [row for row in own if row["problems"] == "uniform"]
    for row in sorted(uniform, key=lambda row: (max(row["sizes"]), row["sizes"])):
        sizes = tuple(row["sizes"])
        low = lowest.get(sizes)
        if not trained_on(sizes, tops) and (row["high"] < SOLVED or (low is not None and low["high"] < SOLVED)):
            break
        if lowest and low is None:
            continue  # families were not measured at this size
        if row["low"] >= SOLVED and (low is None or low["exact"] >= SOLVED):
            longest = sizes
    return longest


def _worst_family(runs: Iterable[Sequence[Row]], tops: Sizes) -> Row | None:
    """Return the worst family over all runs: within the training range or, if none fails there, beyond it."""
    rows = [row for own in runs for row in worst_rows(own)]
    within = [row for row in rows if trained_on(row["sizes"], tops) and row["exact"] < SOLVED]
    if not rows:
        return None
    low = worst(within or rows)
    return {"family": low["problems"], "size": size_text(low["sizes"]), "exact": low["exact"]}


def card_table(rows: Sequence[Row]) -> Table:
    """Return the score card as a terminal table."""
    caption = (
        f"longest: where exact match is surely {SOLVED} or more (95 % interval; it takes {SURE} problems), per "
        f"seed, and {SOLVED} on every family; seeds beyond: those that solve a size longer than they were trained on"
    )
    table = FittedTable(*HEADINGS, caption=caption)
    for row in rows:
        table.add_row(*card_cells(row))
    return table


def format_sizes(sizes: Iterable[Any]) -> str:
    """Join sizes with commas, a dash for a missing one."""
    return ", ".join(str(size) if size else "–" for size in sizes) or "–"


def card_cells(row: Row) -> list[str]:
    """Format a row of the score card; a dash stands for an unknown value."""

    unfit, low = describe_misfit(row.get("fit"), row["trained_to"]), row.get("worst")

    def format_or_dash(name: str, write: Callable[[Any], str]) -> str:
        return "–" if row[name] is None else write(row[name])

    return [
        row["recipe"] + (f" ({unfit})" if unfit else ""),
        row["trained_to"],
        format_sizes(row.get("chosen_on", [])),
        format_sizes(row["longest"]),
        format_sizes(row.get("longest_uniform", row["longest"])),
        f"{low['family']} {share_text(low['exact'])} at {low['size']}" if low else "not measured",
        f"{row['generalise']} of {row['seeds']}" if row["seeds"] else "–",
        format_or_dash("parameters", lambda count: f"{count:,}"),
        format_or_dash("operations", lambda count: f"{count:.1e}"),
        format_or_dash("cpu_s", lambda seconds: f"{seconds / 60:.1f}"),
    ]
