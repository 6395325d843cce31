"""Races: several processes train in one folder simultaneously, in some cases after other processes were killed there.
One of them must train, and the log must be intact."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

from .children import fork, kill_leftovers
from .kills import run_uninterrupted
from .runs import RECIPES, build_training_command, find_differences, find_exit_faults, read_content

PROCESS_COUNT = 4


def list_cases(times: float) -> list[str]:
    """Return the names of the cases: processes start simultaneously, start after others were killed, or wait for each
    other."""
    kinds = ("once", "killed", "waiting")
    return [f"{kinds[n % 3]}-{[*RECIPES][n % len(RECIPES)]}-{n}" for n in range(max(2, round(20 * times)))]


def run_case(case: str, rng: random.Random, folder: Path) -> dict[str, Any]:
    """Run one case; return the number of racing processes and the faults found."""
    kind, what, _ = case.split("-")
    right, seconds = run_uninterrupted(what, folder.parent.parent)
    folder.mkdir(parents=True)
    arguments = build_training_command(what, *(["--wait"] if kind == "waiting" else []))
    if kind == "killed":
        first = [fork(arguments, folder) for _ in range(PROCESS_COUNT)]
        time.sleep(rng.uniform(0, seconds))
        for child in first:
            child.kill()
    racers, faults = [], list[str]()
    for _ in range(PROCESS_COUNT):
        racers.append(fork(arguments, folder))
        time.sleep(rng.choice([0, 0, 0.02]))
    for one in racers:  # a process that lost the race must name the winner; one that came after it must print nothing
        lost = bool(one.wait()) and kind != "waiting"
        faults += find_exit_faults(one, [2] if lost else [0])
        faults += [f"it says: {one.errors}"] * (lost and "works on this run" not in one.errors)
    if all(one.code for one in racers):
        faults.append("none of them trained")
    faults += [f"process {left} was still running" for left in kill_leftovers(folder)]
    return {"racers": PROCESS_COUNT, "faults": [*faults, *find_differences(read_content(folder), right)]}
