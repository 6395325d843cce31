"""The command ``records``: the best published length generalization of each task, and this package's results."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from rich.table import Table

from lengthwise.base.errors import UsageError
from lengthwise.base.score_rows import Row, format_share
from lengthwise.cli.console import print_result
from lengthwise.cli.shared import Argument, OutputOptions

# Written by `make docs` from docs/records.toml and the rows in results/.
RECORDS_FILE = Path(__file__).with_name("records.json")


@dataclass(kw_only=True)
class Options(OutputOptions):
    """Print the best published length generalization of each task, and ours."""

    group: Argument | None = None  # GROUP: a group of tasks, e.g. parity (default: all groups)


def run(args: Options) -> int:
    """Print the records of all groups of tasks, or of one."""
    all_records = read_records(args.group)
    tables = []
    for group, records in groupby(all_records, key=lambda record: record["group"]):
        table = Table(title=group, title_justify="left", title_style="bold", expand=True)
        for head, ratio in (("system", 3), ("trained to → tested at", 2), ("published", 3), ("ours", 3)):
            table.add_column(head, ratio=ratio)
        for record in records:
            lengths = f"{record['trained_to']} → {record['tested_at']}"
            source = f"{record['system']} ({record['paper']}; {record['standing']})"
            own_text = "–"
            if ours := record.get("ours"):  # verdict, mean over seeds, sizes, processor time of a training run
                number = "1 seed" if len(ours["seeds"]) == 1 else f"{len(ours['seeds'])} seeds"
                tested = f"{'x'.join(map(str, ours['trained_to']))} → {ours['sizes']}"
                own_text = f"{ours['verdict']}: {format_share(statistics.fmean(ours['seeds']), 3)} ({number}), {tested}"
                own_text += f"; {max(1, round(ours['minutes']))} CPU min"
            table.add_row(source, lengths, record["score"], own_text)
        tables.append(table)
    return print_result(args, all_records, *tables)


def read_records(group: str | None = None) -> list[Row]:
    """Return the published records, or those of one group of tasks. Raises UsageError if there is no such group.

    A record has ``group``, ``system``, ``paper``, ``trained_to``, ``tested_at``, ``score``, ``source`` and ``standing``
    ("read" or "second-hand"). If this package has runs of the task, ``ours`` holds the exact match of each of its
    ``seeds`` at ``sizes``, and a ``verdict``.
    """
    all_records = json.loads(RECORDS_FILE.read_text(encoding="utf-8"))
    groups = list(dict.fromkeys(record["group"] for record in all_records))
    if group is not None and group not in groups:
        raise UsageError(f"records: no group {group!r}; the groups are: {', '.join(groups)}")
    return [record for record in all_records if group in (None, record["group"])]
