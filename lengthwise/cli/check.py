"""The command ``check``: test a user's own parts, recipes and studies against laws; validate files of problems."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.text import Text

from lengthwise.api import catalog
from lengthwise.api.checking import Findings, check, describe_file
from lengthwise.base.types import UsageError
from lengthwise.cli.console import print_result, show_elapsed, warn
from lengthwise.cli.entry import is_problem_file
from lengthwise.cli.shared import Arguments, OutputOptions, ProgressOptions
from lengthwise.report.fitted_table import FittedTable


@dataclass(kw_only=True)
class Options(ProgressOptions, OutputOptions):
    """Test your own parts, recipes and studies against the laws of their kinds; or check a file of problems."""

    # MODULE: e.g. own_task, for own_task.py in this folder; or problems.jsonl, a CSV file, or a data set's folder
    import_: Arguments
    words: bool = False  # symbols of files are words, separated by spaces, as in File(path=…,words=true)
    grid: bool = False  # prompts and answers of files are square grids, as in File(path=…,grid=true)


def run(args: Options) -> int:
    """Check everything that modules define, or check files of problems; return 1 if something is wrong."""
    findings, names = Findings(), args.import_
    if files := [name for name in names if is_problem_file(name)]:
        if len(files) < len(names):
            raise UsageError("check files of problems and modules in separate commands")
        return _check_files(args, files)
    if args.words or args.grid:
        raise UsageError(f"--{'words' if args.words else 'grid'} applies only to files of problems: omit it")
    with show_elapsed(f"{', '.join(names)}: testing the laws", quiet=args.quiet):
        for name in names:
            findings += check(sys.modules[name])
    for class_name in (cls for name in names for cls in catalog.find_undecorated_classes(sys.modules[name])):
        warn(f"skipped: {class_name}: not a dataclass (add @dataclass(frozen=True))")
    table = FittedTable("part", "laws")
    for part, law, case in findings.lines():
        cell = Text(f"{law} {case}", "green") if case == "hold" else Text.assemble(law, "\n", (case, "bold red"))
        table.add_row(Text(part), cell)
    broken = len(findings.broken)
    result: dict[str, Any] = {"laws": len(findings), "broken": broken, "found": [*map(asdict, findings)]}
    print_result(args, result, table, "", findings.summary if broken else f"all {len(findings)} laws hold")
    return 1 if broken else 0


def _check_files(args: Options, names: Sequence[str]) -> int:
    """Print a description of each file of problems, or its invalid lines."""
    result, tables, fault_count = [], [], 0
    for name in names:
        faults, facts = describe_file(name, words=args.words, grid=args.grid)
        table = FittedTable(name, "")
        for fact, text in facts or [("wrong", fault) for fault in faults]:
            table.add_row(Text(fact), Text(text, "bold red" if faults else ""))
        result.append({"file": name, "faults": faults, **dict(facts)})
        tables, fault_count = [*tables, table], fault_count + len(faults)
    print_result(args, result, *tables)
    return 1 if fault_count else 0
