"""The score card: how far a recipe carries, how surely, and what it costs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

from lengthwise.folder import RunFolder
from lengthwise.report import SOLVED, Row, by_recipe, latest, size_text


def score_card(runs: Sequence[RunFolder], operations: Mapping[str, float] | None = None) -> list[Row]:
    """A row per recipe: ``longest``, for each seed the longest size it solves, that is, where the lower end of exact
    match's 95 % interval is 0.99 or more, with no shorter size beyond the training range where the upper end is less;
    how many seeds ``generalise``, that is, solve a size beyond the training range; parameters, operations of the whole
    training (``operations`` has those of a step, by a recipe's name), and processor time, the median over seeds.

    Solving takes 381 problems, all answered right; sizes measured on fewer are no evidence. Only uniform problems
    count, and the recipe's own stopping rule.
    """
    rows = []
    for label, group in by_recipe(runs).items():
        first = group[0].outline
        found = [_longest(run) for run in group if run.rows("scores")]
        abouts = [about for run in group if (about := run.about())]
        beyond = [size is not None and max(size) > first.top for size in found]
        steps = (operations or {}).get(first.name)
        rows.append(
            {
                "recipe": label,
                "task": first.task,
                "trained_to": size_text(first.tops),
                "seeds": len(found),
                "generalise": sum(beyond),
                "longest": [None if size is None else size_text(size) for size in found],
                "parameters": abouts[0]["parameters"] if abouts else None,
                "operations": None if steps is None else float(f"{steps * first.steps:.3g}"),
                "cpu_s": round(statistics.median(about["cpu_s"] for about in abouts), 1) if abouts else None,
            }
        )
    return rows


def _longest(run: RunFolder) -> tuple[int, ...] | None:
    """The longest size that a run solves, if it solves any."""
    own = [
        row
        for row in latest(run.rows("scores"))
        if row["problems"] == "uniform" and row["stopping"] == run.outline.stopping
    ]
    longest = None
    for row in sorted(own, key=lambda row: (max(row["sizes"]), row["sizes"])):
        if row["low"] >= SOLVED:
            longest = tuple(row["sizes"])
        elif row["high"] < SOLVED and max(row["sizes"]) > run.outline.top:
            break
    return longest


def card_table(rows: Sequence[Row]) -> Table:
    """The same for the terminal."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), caption_justify="left")
    table.caption = f"longest: where exact match is surely {SOLVED} or more (95 % interval), per seed"
    for heading in ("recipe", "trained to", "longest", "seeds beyond", "parameters", "operations", "CPU min"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*card_cells(row))
    return table


def card_cells(row: Row) -> list[str]:
    """A row as it is printed; – where something is not known."""

    def known(name: str, write: Callable[[Any], str]) -> str:
        return "–" if row[name] is None else write(row[name])

    return [
        row["recipe"],
        row["trained_to"],
        ", ".join(size or "–" for size in row["longest"]),
        f"{row['generalise']} of {row['seeds']}",
        known("parameters", lambda count: f"{count:,}"),
        known("operations", lambda count: f"{count:.1e}"),
        known("cpu_s", lambda seconds: f"{seconds / 60:.1f}"),
    ]
