"""Run the campaigns case by case and print what failed. A campaign that was stopped resumes."""

from __future__ import annotations

import argparse
import importlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from .children import ROOT

CAMPAIGNS = ("kills", "signals", "races", "disks", "fuzzing")

Row = dict[str, Any]


def main() -> int:
    """Run the requested cases that are not in the log; return 0 if no case failed."""
    args = _arguments()
    folder = args.folder or Path(tempfile.gettempdir()) / f"torture-{_describe_code()}-{args.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.jsonl"
    done = {row["case"]: row for row in map(json.loads, log.read_text().splitlines())} if log.exists() else {}
    names = args.cases or [f"{name}/{case}" for name in args.only for case in _import_campaign(name).plan(args.times)]
    left = [name for name in names if name not in done]
    print(f"{len(left)} of {len(names)} cases are left; what was done is in {log}", file=sys.stderr)
    for name in left:
        done[name] = _play_case(name, args.seed, folder)
        with log.open("a") as file:
            file.write(json.dumps(done[name]) + "\n")
        _print_case(done[name])
    return _print_summary([done[name] for name in names])


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="torture", description=__doc__)
    parser.add_argument("--times", type=float, default=1.0, metavar="N", help="N times the usual ten minutes")
    parser.add_argument("--seed", type=int, default=0, help="other moments, other inputs")
    parser.add_argument("--only", type=lambda text: text.split(","), default=CAMPAIGNS, metavar="A,B")
    parser.add_argument("--cases", type=lambda text: text.split(","), metavar="A,B", help="these alone: kills/looped-0")
    parser.add_argument("--folder", type=Path, help="of the log, and of whatever failed (default: a temporary one)")
    return parser.parse_args()


def _describe_code() -> str:
    """Return what identifies the code: results of other code do not count as done."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(git, capture_output=True, text=True).stdout.strip() or "nowhere"


def _import_campaign(name: str) -> ModuleType:
    return importlib.import_module(f"{__package__}.{name}")


def _play_case(name: str, seed: int, folder: Path) -> Row:
    """Run a case; keep its folder if it failed."""
    campaign, _, case = name.partition("/")
    place = folder / name.replace("/", "-")
    shutil.rmtree(place, ignore_errors=True)
    start = time.monotonic()
    try:
        row = _import_campaign(campaign).play(case, random.Random(f"{seed}/{name}"), place / "work")
    except Exception as error:
        traceback.print_exc()
        row = {"faults": [f"the case itself failed: {error!r}"]}
    if not row["faults"]:
        shutil.rmtree(place, ignore_errors=True)
    return {"case": name, **row, "seconds": round(time.monotonic() - start, 2)}


def _print_case(row: Row) -> None:
    print(f"{row['case']:32} {row['seconds']:6.1f} s  {'; '.join(row['faults']) or 'held'}", flush=True)


def _print_summary(rows: Sequence[Row]) -> int:
    """Print a table with a line per campaign, then the same as a line of JSON; return 1 if a case failed."""
    campaigns: dict[str, Row] = {}
    for row in rows:
        total = campaigns.setdefault(row["case"].partition("/")[0], {"cases": 0, "failed": 0})
        total["cases"], total["failed"] = total["cases"] + 1, total["failed"] + bool(row["faults"])
        for name, value in row.items():
            if isinstance(value, int | float):
                total[name] = round(total.get(name, 0) + value, 2)
    for name, total in campaigns.items():
        print(f"{name:10}" + "".join(f"{value:>8} {key}" for key, value in total.items()))
    print(json.dumps(campaigns))
    return int(any(total["failed"] for total in campaigns.values()))


if __name__ == "__main__":
    sys.exit(main())
