"""Disks that fail: a full or read-only disk, an exceeded quota, a file that is too large, a folder that is deleted.

A command must report the fault in one line. Once the disk works again, the same command must continue, with the same
results as without the fault.
"""

from __future__ import annotations

import errno
import os
import random
import resource
import shutil
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

from .children import Child, fork, kill_leftovers
from .kills import run_uninterrupted
from .runs import RECIPES, differences, exit_faults, stored_content, study_command, training_command


def plan(times: float) -> list[str]:
    """Return the names of the cases."""
    names = [*RECIPES]
    return [f"{kind}-{names[n % len(names)]}-{n}" for n in range(max(1, round(3 * times))) for kind in FAILING]


def play(name: str, draw: random.Random, folder: Path) -> dict[str, Any]:
    """Run one case."""
    kind, what, _ = name.rsplit("-", 2)
    what = "study" if kind == "study-full" else what
    right, seconds = run_uninterrupted(what, folder.parent.parent)
    folder.mkdir(parents=True)
    words = study_command(folder) if what == "study" else training_command(what)
    try:
        child = FAILING[kind](words, folder, seconds, draw)
        faults = exit_faults(child, [0, 2])
        faults += [f"process {left} was still running" for left in kill_leftovers(folder)]
        _enlarge_disk(folder / "runs")
        faults += exit_faults(fork(words, folder), [0])
        wrong = differences(stored_content(folder), right)
    except _Unsupported as reason:
        return {"skipped": 1, "why": str(reason), "faults": []}
    finally:
        subprocess.run(["umount", "-q", "-l", folder / "runs"], capture_output=True)
    return {"failures": int(child.code == 2), "faults": faults + wrong}


class _Unsupported(Exception):
    """Raised where this machine does not let the user cause the fault."""


def _mount(folder: Path, options: str) -> None:
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], capture_output=True, text=True)
    if done.returncode:
        raise _Unsupported(done.stderr.strip())


def _enlarge_disk(folder: Path) -> None:
    if os.path.ismount(folder):
        subprocess.run(["mount", "-o", "remount,rw,size=64m", folder], check=True)


def _fill_disk(words: list[str], folder: Path, _: float, draw: random.Random) -> Child:
    _mount(folder / "runs", f"size={4 * draw.randint(1, 40)}k")
    return fork(words, folder)


def _make_read_only(words: list[str], folder: Path, seconds: float, draw: random.Random) -> Child:
    _mount(folder / "runs", "size=64m")
    first = fork(words, folder)
    first.wait(draw.uniform(0, seconds))
    first.kill()
    subprocess.run(["mount", "-o", "remount,ro", folder / "runs"], check=True)
    return fork(words, folder)


def _limit_file_size(words: list[str], folder: Path, _: float, draw: random.Random) -> Child:
    most = draw.randint(0, 60_000)
    return fork(words, folder, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)))


def _refuse_writes(number: int, words: list[str], folder: Path, _: float, draw: random.Random) -> Child:
    """Run a process in which every write fails from a random one on."""
    left = [draw.randint(1, 40)]
    below = str(folder / "runs")

    def hook(event: str, details: tuple[Any, ...]) -> None:
        writes = event in ("os.rename", "os.mkdir") or (event == "open" and "r" not in str(details[1] or "r"))
        if writes and os.path.abspath(str(details[0])).startswith(below):
            left[0] -= 1
            if left[0] <= 0:
                raise OSError(number, os.strerror(number))

    return fork(words, folder, lambda: sys.addaudithook(hook))


def _remove_folder(words: list[str], folder: Path, seconds: float, draw: random.Random) -> Child:
    child = fork(words, folder)
    while child.poll() is None and not any(folder.glob("runs/*/metrics.jsonl")):
        time.sleep(0.005)
    child.wait(draw.uniform(0, seconds / 2))
    shutil.rmtree(folder / "runs", ignore_errors=True)
    return child


FAILING = {
    "full": _fill_disk, "study-full": _fill_disk, "read-only": _make_read_only, "limit": _limit_file_size,
    "quota": partial(_refuse_writes, errno.EDQUOT), "failing": partial(_refuse_writes, errno.EIO),
    "vanishing": _remove_folder,
}  # fmt: skip
