"""Tables of scores on families of structured problems."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from lengthwise.base.score_rows import (
    SOLVED,
    Row,
    Sizes,
    family_rows_by_size,
    latest_rows,
    share_text,
    size_text,
    uniform_rows_by_size,
    within_training_sizes,
    worst_row,
)
from lengthwise.report import TRAINED
from lengthwise.report.sheet import FittedTable


def worst_table(rows: Iterable[Row], tops: Sizes) -> Table:
    """Return a table with a row per size: exact match on uniform problems, and on the worst family, by name."""
    rows = latest_rows(rows)
    uniform = uniform_rows_by_size(rows)
    structured = family_rows_by_size(rows)
    counts = sorted({row["count"] for found in structured.values() for row in found if row["problems"] != "every"})
    drawn = f"; {counts[0]}{f' to {counts[-1]}' if len(counts) > 1 else ''} problems of each family" if counts else ""
    headings = ("size", "uniform", "worst family", "", "families below")
    caption = f"families below: those with exact match under {SOLVED}{drawn}"
    table = FittedTable(*headings, left_aligned=("size", "worst family"), no_wrap=headings, caption=caption)
    short = [sizes for sizes in structured if _have_all_problems(structured[sizes]) and sizes not in uniform]
    for within in (True, False):
        if part := [sizes for sizes in short if within_training_sizes(sizes, tops) == within]:
            # The shortest sizes, where all problems were measured, share a row.
            rows = [row for at in part for row in structured[at]]
            count, wrong = sum(row["count"] for row in rows), sum((1 - row["exact"]) * row["count"] for row in rows)
            span = TRAINED * within + "–".join(dict.fromkeys([size_text(min(part)), size_text(max(part))]))
            share = _format_share(worst_row(rows))
            table.add_row(span, "", "every problem", share, f"{round(wrong)} of {count} wrong")
    for sizes in sorted({*uniform, *structured} - {*short}):
        found = structured.get(sizes, [])
        low = worst_row(found) if found else None
        below = sum(row["exact"] < SOLVED for row in found)
        mark = TRAINED if within_training_sizes(sizes, tops) else ""
        table.add_row(
            f"{mark}{size_text(sizes)}",
            _format_share(uniform.get(sizes)),
            low["problems"] if low else "–",
            _format_share(low),
            f"{below} of {len(found)}" if found else "–",
        )
    return table


def family_table(rows: Iterable[Row], tops: Sizes) -> Table:
    """Return a table of exact match, with a row per family, the worst first, and a column per size."""
    structured = family_rows_by_size(latest_rows(rows))
    sizes = [at for at in sorted(structured) if not _have_all_problems(structured[at])]
    by_name: dict[str, dict[Sizes, Row]] = {}
    for at in sizes:
        for row in structured[at]:
            by_name.setdefault(row["problems"], {})[at] = row
    headings = ["family", *(f"{TRAINED if within_training_sizes(at, tops) else ''}{size_text(at)}" for at in sizes)]
    table = FittedTable(*headings, left_aligned=("family",), no_wrap=headings)
    means = {name: statistics.fmean(row["exact"] for row in cells.values()) for name, cells in by_name.items()}
    for name, cells in sorted(by_name.items(), key=lambda item: means[item[0]]):
        table.add_row(name, *(_format_share(cells.get(at)) for at in sizes))
    return table


def _have_all_problems(rows: Sequence[Row]) -> bool:
    return all(row["problems"] == "every" for row in rows)


def _format_share(row: Row | None) -> Text:
    if row is None:
        return Text("–", "dim")
    exact = row["exact"]
    return Text(share_text(exact, 3), "bold green" if exact >= SOLVED else "red")
