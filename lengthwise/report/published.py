"""Folders of results, read back: runs whose rows are those that were published."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

from lengthwise.base import fields
from lengthwise.base.errors import UsageError
from lengthwise.base.results import RunOutline
from lengthwise.folder import DIVERGED, RunFolder, one_line, read_text, read_tree
from lengthwise.report import Row, by_recipe

PLAIN: tuple[Callable[[str], Any], ...] = (int, float, str)  # what a cell may be, first what is narrowest


class PublishedRun(RunFolder):
    """A run as a folder of results holds it, next to others. It has rows and an outline, no weights."""

    def __init__(self, folder: Path, entry: Row, rows: dict[str, list[Row]]) -> None:
        super().__init__(folder / f"{entry['recipe_name']}-{entry['id']}")
        self._entry, self.kept = entry, rows

    def rows(self, name: str) -> list[Row]:
        """All published rows of this kind; empty if there are none."""
        return self.kept.get(name, [])

    @cached_property
    def outline(self) -> RunOutline:
        """The facts of the recipe that a report shows."""
        if "outline" not in self._entry:
            raise UsageError(f"{self.folder.parent / 'runs.json'}: {self.folder.name} has no outline")
        return fields.decode(RunOutline, self._entry["outline"], f"{self.folder.parent / 'runs.json'}: outline")

    def config(self) -> Row:
        """The recipe as plain values."""
        return self._entry["recipe"]

    @property
    def diverged(self) -> bool:
        """True if training ended, or went on, with a loss that is no number."""
        return self._entry.get("verdict") == DIVERGED or bool(self._entry.get("diverged"))

    def about(self) -> Row:
        """Versions, commit, device and time."""
        return {name: value for name, value in self._entry.items() if name not in ("recipe", "outline")}


def is_published(folder: Path) -> bool:
    """Is this a folder of results?"""
    return any((folder / name).exists() for name in ("runs.json", "parameters.csv", "overview.png"))


def published(folder: Path) -> list[PublishedRun]:
    """The runs of a folder of results; none if it holds only what was made of several. Raises UsageError if a file is
    damaged."""
    if not (folder / "runs.json").exists():
        return []
    kinds = {name: _by_run(folder / f"{name}.csv") for name in ("scores", "metrics")}
    runs = [
        PublishedRun(folder, entry, {name: rows.get(entry["id"], []) for name, rows in kinds.items()})
        for entry in read_json(folder / "runs.json")
    ]
    by_folder = {run.folder: run for run in runs}
    for label, group in (by_recipe(runs) if runs else {}).items():
        if (path := folder / f"anatomy-{label}.json").exists():
            by_folder[group[0].folder].kept["anatomy"] = read_json(path)  # of all its seeds: each row names its own
        for name in (label, group[0].folder.name):
            if (path := folder / f"stopping-{name}.json").exists():
                by_folder[group[0].folder].kept["depth"] = read_json(path)
    return runs


def read_json(path: Path) -> Any:
    """What a JSON file of results holds. Raises UsageError if it is damaged."""
    try:
        return json.loads(read_text(path))
    except ValueError as error:
        raise UsageError(f"{path}: not JSON ({one_line(error)})") from None


def told(folder: Path) -> Row:
    """What figures say beyond their rows: ``title``, ``strong``, ``claims``."""
    return read_tree(folder / "figures.json") if (folder / "figures.json").exists() else {}


def read_csv(path: Path) -> list[Row]:
    """Rows as ``tables.write_csv`` writes them: sizes are tuples again, ``exact.8`` an entry of ``exact``."""
    if not path.exists():
        return []
    found = []
    for line in csv.DictReader(read_text(path).splitlines()):
        row: Row = {}
        for name, cell in line.items():
            if cell:
                head, _, key = name.partition(".")
                target, at = (row.setdefault(head, {}), key) if key else (row, head)
                target[at] = [int(size) for size in cell.split("x")] if at == "sizes" else _plain(cell)
        found.append(row)
    return found


def _plain(cell: str) -> Any:
    for kind in PLAIN:
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell


def _by_run(path: Path) -> dict[str, list[Row]]:
    """A file's rows without the columns that name the run, by its id."""
    found: dict[str, list[Row]] = {}
    for row in read_csv(path):
        identity = str(row.pop("id", ""))
        for name in ("recipe_name", "train_seed"):
            row.pop(name, None)
        found.setdefault(identity, []).append(row)
    return found
