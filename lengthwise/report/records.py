"""The best published length generalization of each task, and this package's results on it."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

from lengthwise.base.errors import UsageError
from lengthwise.base.score_rows import Row, share_text

# Written by `make docs` from docs/records.toml and the rows in results/.
RECORDS = Path(__file__).with_name("records.json")


def read_records(group: str | None = None) -> list[Row]:
    """Return the published records, or those of one group of tasks. Raises UsageError if there is no such group.

    Each has ``group``, ``system``, ``paper``, ``trained_to``, ``tested_at``, ``score``, ``source`` and ``standing``
    ("read" or "second-hand"). If this package has runs of the task, ``ours`` holds the exact match of each of its
    ``seeds`` at ``sizes``, and a ``verdict``.
    """
    found = json.loads(RECORDS.read_text(encoding="utf-8"))
    groups = list(dict.fromkeys(record["group"] for record in found))
    if group is not None and group not in groups:
        raise UsageError(f"records: no group {group!r}; there are: {', '.join(groups)}")
    return [record for record in found if group in (None, record["group"])]


def describe_ours(record: Row) -> str:
    """Describe this package's score for a record: the verdict, the mean over seeds, the sizes, a training's processor
    time; empty if there is none."""
    if "ours" not in record:
        return ""
    ours = record["ours"]
    seeds, lengths = ours["seeds"], "x".join(map(str, ours["trained_to"]))
    number = "1 seed" if len(seeds) == 1 else f"{len(seeds)} seeds"
    score = f"{share_text(statistics.fmean(seeds), 3)} ({number}), {lengths} → {ours['sizes']}"
    return f"{ours['verdict']}: {score}; {max(1, round(ours['minutes']))} CPU min"
