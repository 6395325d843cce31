"""The command ``records``: the best published length generalization of each task, and this package's results."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

from rich.table import Table

from lengthwise.cli.console import print_result
from lengthwise.cli.shared import Argument, OutputOptions
from lengthwise.report.records import describe_ours, read_records


@dataclass(kw_only=True)
class Options(OutputOptions):
    """The best published length generalization of each task, and ours beside it."""

    group: Argument | None = None  # GROUP: e.g. parity; left out, all groups of tasks


def run(args: Options) -> int:
    """Print the records of all groups of tasks, or of one."""
    found = read_records(args.group)
    tables = []
    for group, records in groupby(found, key=lambda record: record["group"]):
        table = Table(title=group, title_justify="left", title_style="bold", expand=True)
        for head, ratio in (("system", 3), ("trained to → tested at", 2), ("published", 3), ("ours", 3)):
            table.add_column(head, ratio=ratio)
        for record in records:
            lengths = f"{record['trained_to']} → {record['tested_at']}"
            source = f"{record['system']} ({record['paper']}; {record['standing']})"
            table.add_row(source, lengths, record["score"], describe_ours(record) or "–")
        tables.append(table)
    return print_result(args, found, *tables)
