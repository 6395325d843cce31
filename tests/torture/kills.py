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

from .children import Child, children_of, fork, kill_leftovers, start_interpreter
from .runs import RECIPES, differences, exit_faults, stored_content, study_command, training_command


def plan(times: float) -> list[str]:
    """Return the names of the cases: one of five kinds of kills for each recipe, and two of three for a study."""
    rounds = max(1, round(2 * times))
    return [f"{what}-{n}" for n in range(rounds) for what in (*RECIPES, "looped-fresh", "study", "study-child")]


def play(name: str, draw: random.Random, folder: Path) -> dict[str, Any]:
    """Run one case: kill, start again, and compare with an uninterrupted run."""
    what, *how = name.split("-")[:-1]
    right, seconds = run_uninterrupted(what, folder.parent.parent)
    folder.mkdir(parents=True)
    words = study_command(folder) if what == "study" else training_command(what)
    kills, faults = 0, []
    for _ in range(3 if what == "study" or how else 5):
        if "fresh" in how:
            child, until = start_interpreter(words, folder), 4 * seconds
        else:  # half of the processes kill themselves at a file operation, when files may be incomplete
            operation = round(math.exp(draw.uniform(0, 7))) if draw.random() < 0.5 else 0
            child, until = fork(words, folder, partial(_kill_self_at, operation)), 1.1 * seconds
        kills += _kill_at_random_moment(child, draw, until, one_inside="child" in how)
        faults += [f"process {number} was still running" for number in kill_leftovers(folder)]
    faults += exit_faults(fork(words, folder), [0])
    return {"kills": kills, "faults": faults + differences(stored_content(folder), right)}


def _kill_self_at(operation: int) -> None:
    left = [operation]

    def hook(event: str, _: Any) -> None:
        if event in ("open", "os.rename", "os.remove", "os.truncate", "os.mkdir"):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _kill_at_random_moment(child: Child, draw: random.Random, seconds: float, *, one_inside: bool) -> int:
    """Kill the process, or one of its children, at a random moment; return 1 if it had not ended before."""
    if child.wait(draw.uniform(0, seconds)) is None:
        victims = children_of(child.pid) if one_inside else []
        if victims:
            os.kill(draw.choice(victims), signal.SIGKILL)
            child.wait()
            return 1
        child.kill()
    return int(child.code == -signal.SIGKILL)


@cache
def run_uninterrupted(what: str, folder: Path) -> tuple[dict[str, Any], float]:
    """Return the content that an uninterrupted run stores, and its seconds."""
    work = folder / f"uninterrupted-{what}-{os.getpid()}" / "work"
    work.mkdir(parents=True)
    words = study_command(work) if what == "study" else training_command(what)
    start = time.monotonic()
    child = fork(words, work)
    if child.wait() != 0:
        raise RuntimeError(f"an uninterrupted {what} fails: {child.errors}")
    return stored_content(work), time.monotonic() - start
