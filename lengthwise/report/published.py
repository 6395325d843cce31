"""Folders of results, read back: runs whose rows are those that were published."""

from __future__ import annotations

import csv
import gzip
import json
import math
import zlib
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from lengthwise.base import fields
from lengthwise.base.errors import UsageError
from lengthwise.base.files import one_line, read_text, read_tree, regular
from lengthwise.base.results import RunOutline
from lengthwise.base.schemas import About, Anatomy, Depth, Figures, Measured, Metrics, Published, SizeText
from lengthwise.base.score_rows import Row
from lengthwise.report import by_recipe
from lengthwise.runs.folder import DIVERGED, InquiryFolder, RunFolder, check_axes

# Columns that hold words, even where these look like numbers: a run's id may be 2276e59742.
WORDS = frozenset(
    ("recipe_name", "id", "sealed", "family", "task", "weights", "stopping", "problems", "recipe", "model")
)
MAX_TEXT = 2**28  # bytes of an unpacked table: a small file may unpack to any size
SCHEMAS: dict[str, Any] = {"scores": Measured, "metrics": Metrics}


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
        """Versions, commit, device and time; empty of a run that was not trained to the end."""
        if not About.__required_keys__ <= self._entry.keys():
            return {}
        return {name: value for name, value in self._entry.items() if name not in ("recipe", "outline")}


class PublishedInquiry(InquiryFolder):
    """What a language model was asked, as a folder of results holds it."""

    def __init__(self, folder: Path, entry: Row, scores: list[Row]) -> None:
        super().__init__(folder / f"{entry['recipe_name']}-{entry['id']}")
        self._entry, self._scores = entry, scores

    def rows(self, name: str) -> list[Row]:
        """All published rows of this kind; empty if there are none."""
        return self._scores if name == "scores" else []

    def _asked(self) -> Row:
        if "outline" not in self._entry:
            raise UsageError(f"{self.folder.parent / 'inquiries.json'}: {self.folder.name} has no outline")
        return self._entry


def is_published(folder: Path) -> bool:
    """Is this a folder of results?"""
    return any((folder / name).exists() for name in ("runs.json", "parameters.csv", "overview.png"))


def read_published(folder: Path) -> list[PublishedRun]:
    """The runs of a folder of results; none if it holds only what was made of several. Raises UsageError if a file is
    damaged."""
    if not (folder / "runs.json").exists():
        return []
    entries = read_json(folder / "runs.json", tuple[Published, ...])
    kinds = {name: _by_run(folder / f"{name}.csv", schema) for name, schema in SCHEMAS.items()}
    runs = [
        PublishedRun(folder, entry, {name: rows.get(entry["id"], []) for name, rows in kinds.items()})
        for entry in entries
    ]
    by_folder = {run.folder: run for run in runs}
    for label, group in (by_recipe(runs) if runs else {}).items():
        if (path := folder / f"anatomy-{label}.json").exists():
            owners = {run.outline.seed: run for run in reversed(group)}
            for row in read_json(path, tuple[Anatomy, ...]):
                owner = owners.get(row.get("train_seed"), group[0])
                by_folder[owner.folder].kept.setdefault("anatomy", []).append(row)
        for name in (label, group[0].folder.name):
            if (path := folder / f"stopping-{name}.json").exists():
                by_folder[group[0].folder].kept["depth"] = read_json(path, tuple[Depth, ...])
    for run in runs:
        for name, rows in run.kept.items():
            check_axes(rows, run.axes, f"{run.folder}: {name}: row")
    return runs


def inquiries(folder: Path) -> list[PublishedInquiry]:
    """What language models were asked in a folder of results. Raises UsageError if a file is damaged."""
    if not (folder / "inquiries.json").exists():
        return []
    entries = read_json(folder / "inquiries.json", tuple[Published, ...])
    scores = _by_run(folder / "scores.csv", Measured)
    found = [PublishedInquiry(folder, entry, scores.get(entry["id"], [])) for entry in entries]
    for one in found:
        check_axes(one.rows("scores"), one.axes, f"{one.folder}: scores: row")
    return found


def read_json(path: Path, kind: Any) -> Any:
    """What a JSON file of results holds, which is of this kind. Raises UsageError if it is damaged."""
    try:
        tree = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON ({one_line(error)})") from None
    if not isinstance(tree, (list, dict)):
        raise UsageError(f"{path}: neither a list nor an object of JSON")
    return fields.conform(kind, tree, str(path))


def read_figures_json(folder: Path) -> Row:
    """What figures say beyond their rows: ``title``, ``strong``, ``claims``."""
    path = folder / "figures.json"
    return fields.conform(Figures, read_tree(path), str(path)) if path.exists() else {}


def read_table(path: Path, schema: Any) -> list[Row]:
    """The rows of a CSV file, each of which fits the schema. Raises UsageError if one does not, by its number."""
    rows = read_csv(path)
    if not fields.all_fit(schema, rows):
        for number, row in enumerate(rows, 1):
            fields.conform(schema, row, f"{path}: row {number}")
    return rows


def read_csv(path: Path) -> list[Row]:
    """Rows as ``csv_files.write_csv`` writes them: sizes are lists again, ``exact.8`` an entry of ``exact``. Raises
    UsageError for sizes that are none, and for a line with more cells than there are columns."""
    found: list[Row] = []
    for number, line in enumerate(csv.DictReader(_lines_of(path)), 1):
        row: Row = {}
        if None in line:
            raise UsageError(f"{path}: row {number} has more cells than there are columns")
        for name, cell in line.items():
            if cell or name == "stopping":  # of a language model that was asked there is no rule
                head, _, key = name.partition(".")
                target, at = (row.setdefault(head, {}), key) if key else (row, head)
                if not isinstance(target, dict):
                    raise UsageError(f"{path}: there are a column {head} and a column {name}")
                target[at] = _sizes(cell, f"{path}: row {number}") if at == "sizes" else _value(at, cell)
        found.append(row)
    return found


def _lines_of(path: Path) -> list[str]:
    """Return the lines of a text file or, if it is not there, of its compressed form ``path`` + .gz; none if neither
    is there. Raises UsageError for one that is damaged or unpacks to more than ``MAX_TEXT`` bytes."""
    packed = path.with_name(f"{path.name}.gz")
    if path.exists() or not packed.exists():
        return read_text(path).splitlines() if path.exists() else []
    try:
        with gzip.open(regular(packed)) as file:
            content = file.read(MAX_TEXT + 1)
        text = content.decode()
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UsageError(f"{packed}: not a whole gzip file of text ({one_line(error)})") from None
    if len(content) > MAX_TEXT:
        raise UsageError(f"{packed}: unpacks to more than {MAX_TEXT:,} bytes")
    return text.splitlines()


def _sizes(cell: str, where: str) -> list[int]:
    fields.conform(SizeText, cell, f"{where}: sizes")
    return [int(size) for size in cell.split("x")]


def _value(name: str, cell: str) -> Any:
    """A cell as true or false or a finite number, if it is one and its column holds no words; else as it stands."""
    if name in WORDS:
        return cell
    if cell in ("True", "False"):
        return cell == "True"
    for kind in (int, float):
        with suppress(ValueError):
            if math.isfinite(value := kind(cell)):
                return value
    return cell


def _by_run(path: Path, schema: Any) -> dict[str, list[Row]]:
    """A file's rows without the columns that name the run, by its id. Raises UsageError if one does not fit."""
    found: dict[str, list[Row]] = {}
    for row in read_table(path, schema):
        identity = row.pop("id", "")
        for name in ("recipe_name", "train_seed"):
            row.pop(name, None)
        found.setdefault(identity, []).append(row)
    return found
