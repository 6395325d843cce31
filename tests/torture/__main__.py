"""Run the campaigns case by case and print the faults found. A stopped campaign resumes."""

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
from collections import Counter, defaultdict
from pathlib import Path
from types import ModuleType
from typing import Any

from .children import ROOT

CAMPAIGNS = ("kills", "signals", "races", "disks", "fuzz")


def main() -> int:
    """Run the requested cases that are not in the log; print sums by campaign; return 0 if no case failed."""
    parser = argparse.ArgumentParser(prog="torture", description=__doc__)
    parser.add_argument("--times", type=float, default=1.0, metavar="N", help="run N times the usual ten minutes")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments and inputs")
    parser.add_argument("--only", type=lambda text: text.split(","), default=CAMPAIGNS, metavar="A,B")
    parser.add_argument(
        "--cases", type=lambda text: text.split(","), metavar="A,B", help="run only these cases, e.g. kills/looped-0"
    )
    parser.add_argument("--folder", type=Path, help="where the log and failed cases go (default: a temporary folder)")
    args = parser.parse_args()
    # Results of other code do not count as done.
    git = subprocess.run(["git", "-C", str(ROOT), "describe", "--always", "--dirty"], capture_output=True, text=True)
    folder = args.folder or Path(tempfile.gettempdir()) / f"torture-{git.stdout.strip() or 'nowhere'}-{args.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.jsonl"
    done = {row["case"]: row for row in map(json.loads, log.read_text().splitlines())} if log.exists() else {}
    campaigns = {name: _import_campaign(name) for name in args.only}
    listed = [f"{name}/{case}" for name, campaign in campaigns.items() for case in campaign.list_cases(args.times)]
    names = args.cases or listed
    left = [name for name in names if name not in done]
    print(f"{len(left)} of {len(names)} cases are left; what was done is in {log}", file=sys.stderr)
    for name in left:
        done[name] = row = _run_and_clean_up(name, args.seed, folder)
        with log.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{name:32} {row['seconds']:6.1f} s  {'; '.join(row['faults']) or 'held'}", flush=True)
    sums: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name in names:
        numbers = {key: value for key, value in done[name].items() if isinstance(value, int | float)}
        sums[name.partition("/")[0]].update(numbers | {"cases": 1, "failed": bool(done[name]["faults"])})
    print(json.dumps(sums))
    return int(any(row["failed"] for row in sums.values()))


def _import_campaign(name: str) -> ModuleType:
    return importlib.import_module(f"{__package__}.{name}")


def _run_and_clean_up(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """Run a case; keep its folder if it failed."""
    campaign, _, case = name.partition("/")
    case_folder = folder / name.replace("/", "-")
    shutil.rmtree(case_folder, ignore_errors=True)
    start = time.monotonic()
    try:
        row = _import_campaign(campaign).run_case(case, random.Random(f"{seed}/{name}"), case_folder / "work")
    except Exception as error:
        traceback.print_exc()
        row = {"faults": [f"the case itself failed: {error!r}"]}
    if not row["faults"]:
        shutil.rmtree(case_folder, ignore_errors=True)
    return {"case": name, **row, "seconds": round(time.monotonic() - start, 2)}


if __name__ == "__main__":
    sys.exit(main())
