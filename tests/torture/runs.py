"""Small training runs, and comparisons of what two of them store."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .children import Child

SMALL_CHANGES = ["model.width=8", "batch=4", "watch.count=4"]
SUM_CHANGES = [*SMALL_CHANGES, "model.heads=2", "watch.every=15", "watch.sizes=(2,)", "steps=45"]
PARITY_CHANGES = [*SUM_CHANGES, "lengths=Curriculum(top=4,every=10)", "watch.sizes=(4,)"]
EXPRESSION_CHANGES = ["batch=8", "source.rows=128", "lengths.top=14", "watch.every=8", "watch.validation=16"]
EXPRESSION_CHANGES += ["steps=20", "model.width=8"]

# Recipes whose training keeps each kind of state: a moving average, the best weights, a fixed set, dropout, decoding,
# rows of families, loops that are drawn, exams that were passed.
RECIPES = {
    "looped": ["looped-parity", *PARITY_CHANGES],
    "best": [
        "halting-parity",
        *PARITY_CHANGES,
        "keep=best",
        "lengths=Mastery(top=4,every=5,pass_accuracy=0.2,count=4)",
    ],
    "pairs": ["looped-pairs", *SUM_CHANGES, "lengths=Uniform(top=2)"],
    "decoder": ["ntp-parity", *PARITY_CHANGES, "model.layers=2"],
    "retran": ["retran-small", *EXPRESSION_CHANGES, "model.hidden=8", "model.layers=2", "model.heads=2"],
    "lstm": ["lstm-small", *EXPRESSION_CHANGES],
}

STUDY = '''"""A study of two recipes that are trained in a second."""

from lengthwise.recipes.window import looped_parity
from lengthwise.experiment.study import Panel, Study

CHANGES = {changes!r}


def tiny() -> Study:
    """Small models on short rows."""
    recipes = [looped_parity().change([*CHANGES, f"name=tiny-{{steps}}", f"steps={{steps}}"]) for steps in (30, 45)]
    return Study("Tiny", (Panel("Tiny", tuple(recipes), (2, 4, 6)),))
'''


def build_training_command(name: str, *options: str) -> list[str]:
    """Return the command that trains and measures one of the recipes, with many checkpoints."""
    measured = ["--lengths", "12,14"] if name in ("retran", "lstm") else ["--lengths", "2,4,6", "--families"]
    return ["train", *RECIPES[name], *measured, "--samples", "4", "--quiet", "--save-every", "0.15", *options]


def build_study_command(folder: Path, *options: str) -> list[str]:
    """Write a study into ``folder`` and return the command that trains its four runs, two at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "own_study.py").write_text(STUDY.format(changes=PARITY_CHANGES))
    arguments = ["reproduce", "tiny", "--import", "own_study", "--seeds", "2", "--jobs", "2", "--samples", "8"]
    return [*arguments, "--out", "results", "--publish", "--quiet", *options]


# Comparison

TIME_FIELDS = {"wall_s", "cpu_s"}
# Files that name a process, not the run; and temporary ones of killed processes, which a write minutes later removes.
PROCESS_FILES_PATTERN = re.compile(r"\.(lock|owner|.*\.lengthwise-[0-9a-f]{16})")


def read_content(folder: Path) -> dict[str, Any]:
    """Return the content of a folder that must not depend on interruptions, by path: the bytes of weights and recipes,
    rows without times, and None for all other files."""
    found: dict[str, Any] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not PROCESS_FILES_PATTERN.fullmatch(path.name) and "__pycache__" not in path.parts:
            found[str(path.relative_to(folder))] = _read_file(path)
    return found


def _read_file(path: Path) -> Any:
    if path.suffix == ".jsonl":
        return [_remove_times(json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    if path.suffix == ".csv":
        return [_remove_times(row) for row in csv.DictReader(path.read_text(encoding="utf-8").splitlines())]
    if path.name == "config.json" or path.suffix == ".safetensors":
        return path.read_bytes()
    return None


def _remove_times(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in TIME_FIELDS}


def find_differences(content: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Return one line for each file whose content differs from ``expected``."""
    faults = [f"{path} is missing" for path in expected.keys() - content.keys()]
    faults += [f"{path} was left behind" for path in content.keys() - expected.keys()]
    for path in sorted(content.keys() & expected.keys()):
        if content[path] != expected[path]:
            faults.append(f"{path} {_describe_difference(content[path], expected[path])}")
    return faults


def _describe_difference(found_rows: Any, expected: Any) -> str:
    if not isinstance(expected, list):
        return "is not the same to the bit"
    have, want = (Counter(json.dumps(row, sort_keys=True) for row in rows) for rows in (found_rows, expected))
    lost, more = (want - have).total(), (have - want).total()
    return f"has {lost} rows lost and {more} too many" if lost or more else "has its rows in another order"


def find_exit_faults(child: Child, expected: Sequence[int]) -> list[str]:
    """Wait until a process ends; return its faults: a status that is not ``expected``, a traceback, or more than one
    line of errors."""
    code, found = child.wait(), []
    if code is None:
        child.kill()
        found.append("it did not end")
    elif code not in expected:
        found.append(f"exit {code}, not {' or '.join(map(str, expected))}")
    lines = child.errors.strip().splitlines()
    if "Traceback" in child.errors:
        found.append(f"a traceback: {lines[-1]}")
    elif len(lines) > 1:
        found.append(f"{len(lines)} lines: {lines[-1]}")
    return found
