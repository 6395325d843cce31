"""Kills at random moments: SIGKILL to a training process, to a study, or to one of a study's processes.

Killed commands are started again until they end; then weights, rows and files must equal those of an uninterrupted run.
"""

from __future__ import annotations

import math
import os
import random
import signal
import sys
import time
from functools import cache, partial
from pathlib import Path
from typing import Any

from .children import Child, fork, kill_leftovers, list_children, start_interpreter
from .runs import RECIPES, build_study_command, build_training_command, find_differences, find_exit_faults, read_content


def list_cases(times: float) -> list[str]:
    """Return the names of the cases: each trains a recipe in a fork, a recipe in a new interpreter, or a study."""
    rounds = max(1, round(2 * times))
    return [f"{what}-{n}" for n in range(rounds) for what in (*RECIPES, "looped-fresh", "study", "study-child")]


def run_case(case: str, rng: random.Random, folder: Path) -> dict[str, Any]:
    """Run one case: kill, start again, and compare with an uninterrupted run."""
    what, *how = case.split("-")[:-1]
    right, seconds = run_uninterrupted(what, folder.parent.parent)
    folder.mkdir(parents=True)
    arguments = build_study_command(folder) if what == "study" else build_training_command(what)
    kills, faults = 0, []
    for _ in range(3 if what == "study" or how else 5):
        if "fresh" in how:
            child, until = start_interpreter(arguments, folder), 4 * seconds
        else:  # half of the processes kill themselves at a file operation, when files may be incomplete
            operation = round(math.exp(rng.uniform(0, 7))) if rng.random() < 0.5 else 0
            child, until = fork(arguments, folder, partial(_kill_self_at, operation)), 1.1 * seconds
        kills += _kill_at_random_moment(child, rng, until, kill_child="child" in how)
        faults += [f"process {number} was still running" for number in kill_leftovers(folder)]
    faults += find_exit_faults(fork(arguments, folder), [0])
    return {"kills": kills, "faults": faults + find_differences(read_content(folder), right)}


def _kill_self_at(operation: int) -> None:
    left = [operation]

    def hook(event: str, _: Any) -> None:
        if event in ("open", "os.rename", "os.remove", "os.truncate", "os.mkdir"):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _kill_at_random_moment(child: Child, rng: random.Random, seconds: float, *, kill_child: bool) -> int:
    """Kill the process, or one of its children, at a random moment; return the number of kills, 0 or 1."""
    if child.wait(rng.uniform(0, seconds)) is None:
        victims = list_children(child.pid) if kill_child else []
        if victims:
            os.kill(rng.choice(victims), signal.SIGKILL)
            child.wait()
            return 1
        child.kill()
    return int(child.code == -signal.SIGKILL)


@cache
def run_uninterrupted(target: str, folder: Path) -> tuple[dict[str, Any], float]:
    """Return the content that an uninterrupted run stores, and the duration of the run in seconds."""
    work = folder / f"uninterrupted-{target}-{os.getpid()}" / "work"
    work.mkdir(parents=True)
    arguments = build_study_command(work) if target == "study" else build_training_command(target)
    start = time.monotonic()
    child = fork(arguments, work)
    if child.wait() != 0:
        raise RuntimeError(f"an uninterrupted {target} fails: {child.errors}")
    return read_content(work), time.monotonic() - start
