"""A user's own parts, recipes and studies, held to the laws of their kinds."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from typing import Any

from rich.text import Text

from lengthwise import catalog
from lengthwise.base.types import UsageError
from lengthwise.cli.console import doing, say
from lengthwise.report.sheet import Sheet
from lengthwise.testing.laws import Findings
from lengthwise.testing.laws_of_recipes import check_all
from lengthwise.training.arithmetic import computing


def run(args: argparse.Namespace) -> int:
    """Check all that these modules define; 1 if a law is broken."""
    found, names = Findings(), vars(args)["import"]
    with computing(1), doing(f"{', '.join(names)}: held to the laws", quiet=args.quiet):
        for name in names:
            found += _checked(name)
    broken = len(found.broken)
    result: dict[str, Any] = {"laws": len(found), "broken": broken, "found": [asdict(one) for one in found]}
    say(args, result, _table(found), "", found.told if broken else f"all {len(found)} laws hold")
    return 1 if broken else 0


def _checked(name: str) -> Findings:
    if not any(defined := catalog.defined(sys.modules[name])):
        raise UsageError(f"{name}: it defines no part, recipe or study; a part is a dataclass, e.g. of lw.Task")
    return check_all(*defined)


def _table(found: Findings) -> Sheet:
    table = Sheet("part", "laws")
    for part, law, told in found.lines():
        said = Text(f"{law} {told}", "green") if told == "hold" else Text.assemble(law, "\n", (told, "bold red"))
        table.add_row(Text(part), said)
    return table
