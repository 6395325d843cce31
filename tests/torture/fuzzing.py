"""Hostile input from ``fuzz``, some hundred inputs per case."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from .children import ROOT

INPUTS = 250  # in a case


def plan(times: float) -> list[str]:
    """Return the names of the cases."""
    return [str(number) for number in range(max(1, round(8 * times)))]


def play(name: str, draw: random.Random, place: Path) -> dict[str, Any]:
    """Run one case of ``INPUTS`` inputs."""
    place.mkdir(parents=True)
    options = ["--inputs", str(INPUTS), "--seed", str(draw.randrange(10**6))]
    done = subprocess.run(
        [sys.executable, "-m", "tests.torture.fuzz", *options], cwd=ROOT, capture_output=True, text=True
    )
    (place.parent / "said.txt").write_text(done.stdout + done.stderr)
    last = (done.stdout + done.stderr).strip().splitlines()[-1:]
    return {"inputs": INPUTS, "faults": [f"{' '.join(options)}: {' '.join(last)}"] if done.returncode else []}
