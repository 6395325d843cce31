"""The command ``check``: test a user's own parts, recipes and studies against the laws of their kinds; and validate
files of problems."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich.text import Text

from lengthwise.api.checking import Findings, check, describe_file, list_hints
from lengthwise.base.types import UsageError
from lengthwise.cli.console import print_result, show_elapsed, warn
from lengthwise.cli.entry import is_problem_file
from lengthwise.cli.shared import Arguments, OutputOptions, ProgressOptions
from lengthwise.report.sheet import FittedTable


@dataclass(kw_only=True)
class Options(ProgressOptions, OutputOptions):
    """Test your own parts, recipes and studies against the laws of their kinds; or check a file of problems."""

    # MODULE: e.g. own_task, for own_task.py in this folder; or problems.jsonl, a CSV file, or a data set's folder
    import_: Arguments
    words: bool = False  # symbols of files are words, separated by spaces, as in File(path=…,words=true)
    grid: bool = False  # prompts and answers of files are square grids, as in File(path=…,grid=true)


def run(args: Options) -> int:
    """Check all that these modules define, or these files of problems; return 1 if something is wrong."""
    found, names = Findings(), args.import_
    if files := [name for name in names if is_problem_file(name)]:
        if len(files) < len(names):
            raise UsageError("check files of problems and modules in separate commands")
        return _check_files(args, files)
    if args.words or args.grid:
        raise UsageError(f"--{'words' if args.words else 'grid'} is for files of problems")
    with show_elapsed(f"{', '.join(names)}: testing the laws", quiet=args.quiet):
        for name in names:
            found += check(sys.modules[name])
    table = FittedTable("part", "laws")
    for part, law, holds in found.lines():
        cell = Text(f"{law} {holds}", "green") if holds == "hold" else Text.assemble(law, "\n", (holds, "bold red"))
        table.add_row(Text(part), cell)
    broken = len(found.broken)
    result: dict[str, Any] = {"laws": len(found), "broken": broken, "found": [asdict(one) for one in found]}
    print_result(args, result, table, "", found.summary if broken else f"all {len(found)} laws hold")
    for hint in [hint for name in names for hint in list_hints(sys.modules[name], found)]:
        warn(hint)
    return 1 if broken else 0


def _check_files(args: Options, names: Sequence[str]) -> int:
    """Print the contents of each file of problems, or its invalid lines."""
    result, tables, wrong = [], [], 0
    for name in names:
        faults, facts = describe_file(name, words=args.words, grid=args.grid)
        table = FittedTable(name, "")
        for fact, text in facts or [("wrong", fault) for fault in faults]:
            table.add_row(Text(fact), Text(text, "bold red" if faults else ""))
        result.append({"file": name, "faults": faults, **dict(facts)})
        tables, wrong = [*tables, table], wrong + len(faults)
    print_result(args, result, *tables)
    return 1 if wrong else 0
