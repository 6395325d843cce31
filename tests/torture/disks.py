"""Disks that fail: full, read-only, over a quota, a file too large, a folder or a log that vanishes.

The command ends with one line. When the disk is well again, the same command goes on, and all is as if it always was.
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

from .children import Child, fork, orphans
from .kills import undisturbed
from .runs import RECIPES, complaints, differences, kept, study, training


def plan(times: float) -> list[str]:
    """Return the names of the cases."""
    names = [*RECIPES]
    return [f"{kind}-{names[n % len(names)]}-{n}" for n in range(max(1, round(3 * times))) for kind in FAILING]


def play(name: str, draw: random.Random, place: Path) -> dict[str, Any]:
    """Run one case."""
    kind, what, _ = name.rsplit("-", 2)
    what = "study" if kind == "study-full" else what
    right, seconds = undisturbed(what, place.parent.parent)
    place.mkdir(parents=True)
    words = study(place) if what == "study" else training(what)
    try:
        child = FAILING[kind](words, place, seconds, draw)
        faults = complaints(child, [0, 2])
        faults += [f"process {left} lived on" for left in orphans(place)]
        _grow(place / "runs")
        faults += complaints(fork(words, place), [0])
        wrong = differences(kept(place), right)
    except _Unsupported as reason:
        return {"skipped": 1, "why": str(reason), "faults": []}
    finally:
        subprocess.run(["umount", "-q", "-l", place / "runs"], capture_output=True)
    if kind == "log-vanishing":
        wrong = [one for one in wrong if "metrics.jsonl" not in one]
    return {"failures": int(child.code == 2), "faults": faults + wrong}


class _Unsupported(Exception):
    """Raised where this machine does not let the user do this."""


def _mount(folder: Path, options: str) -> None:
    folder.mkdir(exist_ok=True)
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], capture_output=True, text=True)
    if done.returncode:
        raise _Unsupported(done.stderr.strip())


def _grow(folder: Path) -> None:
    if os.path.ismount(folder):
        subprocess.run(["mount", "-o", "remount,rw,size=64m", folder], check=True)


def _full(words: list[str], place: Path, _: float, draw: random.Random) -> Child:
    _mount(place / "runs", f"size={4 * draw.randint(1, 40)}k")
    return fork(words, place)


def _read_only(words: list[str], place: Path, seconds: float, draw: random.Random) -> Child:
    _mount(place / "runs", "size=64m")
    first = fork(words, place)
    first.wait(draw.uniform(0, seconds))
    first.kill()
    subprocess.run(["mount", "-o", "remount,ro", place / "runs"], check=True)
    return fork(words, place)


def _limit(words: list[str], place: Path, _: float, draw: random.Random) -> Child:
    most = draw.randint(0, 60_000)
    return fork(words, place, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)))


def _refusing(number: int, words: list[str], place: Path, _: float, draw: random.Random) -> Child:
    """Refuse every write of the process from one of them on."""
    left = [draw.randint(1, 40)]
    below = str(place / "runs")

    def hook(event: str, details: tuple[Any, ...]) -> None:
        writes = event in ("os.rename", "os.mkdir") or (event == "open" and "r" not in str(details[1] or "r"))
        if writes and os.path.abspath(str(details[0])).startswith(below):
            left[0] -= 1
            if left[0] <= 0:
                raise OSError(number, os.strerror(number))

    return fork(words, place, lambda: sys.addaudithook(hook))


def _vanishing(what: str, words: list[str], place: Path, seconds: float, draw: random.Random) -> Child:
    child = fork(words, place)
    while child.poll() is None and not any(place.glob("runs/*/metrics.jsonl")):
        time.sleep(0.005)
    child.wait(draw.uniform(0, seconds / 2))
    for path in place.glob(what):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return child


FAILING = {
    "full": _full, "study-full": _full, "read-only": _read_only, "limit": _limit,
    "quota": partial(_refusing, errno.EDQUOT), "failing": partial(_refusing, errno.EIO),
    "vanishing": partial(_vanishing, "runs"), "log-vanishing": partial(_vanishing, "runs/*/metrics.jsonl"),
}  # fmt: skip
