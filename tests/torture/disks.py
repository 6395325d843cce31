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
from .runs import RECIPES, build_study_command, build_training_command, find_differences, find_exit_faults, read_content


def list_cases(times: float) -> list[str]:
    """Return the names of the cases."""
    names = [*RECIPES]
    return [f"{kind}-{names[n % len(names)]}-{n}" for n in range(max(1, round(3 * times))) for kind in FAULTS_BY_KIND]


def run_case(case: str, rng: random.Random, folder: Path) -> dict[str, Any]:
    """Run one case; return whether the failing disk stopped the command, and the command's faults."""
    kind, what, _ = case.rsplit("-", 2)
    what = "study" if kind == "study-full" else what
    right, seconds = run_uninterrupted(what, folder.parent.parent)
    folder.mkdir(parents=True)
    arguments = build_study_command(folder) if what == "study" else build_training_command(what)
    try:
        child = FAULTS_BY_KIND[kind](arguments, folder, seconds, rng)
        faults = find_exit_faults(child, [0, 2])
        faults += [f"process {left} was still running" for left in kill_leftovers(folder)]
        _enlarge_disk(folder / "runs")
        faults += find_exit_faults(fork(arguments, folder), [0])
        wrong = find_differences(read_content(folder), right)
    except _Unsupported as reason:
        return {"skipped": 1, "why": str(reason), "faults": []}
    finally:
        subprocess.run(["umount", "-q", "-l", folder / "runs"], capture_output=True)
    return {"failures": int(child.code == 2), "faults": faults + wrong}


class _Unsupported(Exception):
    """Raised if the fault cannot be caused on this machine."""


def _mount(folder: Path, options: str) -> None:
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], capture_output=True, text=True)
    if done.returncode:
        raise _Unsupported(done.stderr.strip())


def _enlarge_disk(folder: Path) -> None:
    if os.path.ismount(folder):
        subprocess.run(["mount", "-o", "remount,rw,size=64m", folder], check=True)


def _fill_disk(arguments: list[str], folder: Path, _: float, rng: random.Random) -> Child:
    _mount(folder / "runs", f"size={4 * rng.randint(1, 40)}k")
    return fork(arguments, folder)


def _make_read_only(arguments: list[str], folder: Path, seconds: float, rng: random.Random) -> Child:
    _mount(folder / "runs", "size=64m")
    first = fork(arguments, folder)
    first.wait(rng.uniform(0, seconds))
    first.kill()
    subprocess.run(["mount", "-o", "remount,ro", folder / "runs"], check=True)
    return fork(arguments, folder)


def _limit_file_size(arguments: list[str], folder: Path, _: float, rng: random.Random) -> Child:
    most = rng.randint(0, 60_000)
    return fork(arguments, folder, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)))


def _refuse_writes(error_number: int, arguments: list[str], folder: Path, _: float, rng: random.Random) -> Child:
    """Run a process in which, after a random number of writes, all further writes fail."""
    left = [rng.randint(1, 40)]
    below = str(folder / "runs")

    def hook(event: str, details: tuple[Any, ...]) -> None:
        is_write = event in ("os.rename", "os.mkdir") or (event == "open" and "r" not in str(details[1] or "r"))
        if is_write and os.path.abspath(str(details[0])).startswith(below):
            left[0] -= 1
            if left[0] <= 0:
                raise OSError(error_number, os.strerror(error_number))

    return fork(arguments, folder, lambda: sys.addaudithook(hook))


def _remove_folder(arguments: list[str], folder: Path, seconds: float, rng: random.Random) -> Child:
    child = fork(arguments, folder)
    while child.poll() is None and not any(folder.glob("runs/*/metrics.jsonl")):
        time.sleep(0.005)
    child.wait(rng.uniform(0, seconds / 2))
    shutil.rmtree(folder / "runs", ignore_errors=True)
    return child


FAULTS_BY_KIND = {
    "full": _fill_disk, "study-full": _fill_disk, "read-only": _make_read_only, "limit": _limit_file_size,
    "quota": partial(_refuse_writes, errno.EDQUOT), "failing": partial(_refuse_writes, errno.EIO),
    "vanishing": _remove_folder,
}  # fmt: skip
