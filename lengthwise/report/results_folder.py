"""Read folders of results. Their runs and inquiries have the published rows, but no weights or replies."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any

from lengthwise.base import fields
from lengthwise.base.csv_files import read_csv
from lengthwise.base.errors import UsageError
from lengthwise.base.files import format_error, read_json_object, read_text
from lengthwise.base.results import RunOutline
from lengthwise.base.schemas import (
    AboutFile,
    AnatomyRow,
    DepthRow,
    FiguresFile,
    MetricsRow,
    PublishedEntry,
    ScoreRow,
    validate_row,
)
from lengthwise.base.score_rows import Row
from lengthwise.report import by_recipe
from lengthwise.runs.folder import DIVERGED, InquiryFolder, RunFolder, check_axes


class PublishedRun(RunFolder):
    """A run in a folder of results. It has rows and an outline, but no weights."""

    def __init__(self, folder: Path, entry: Row, rows: dict[str, list[Row]]) -> None:
        super().__init__(folder / f"{entry['recipe_name']}-{entry['id']}")
        self._entry, self.rows_by_kind = entry, rows

    def rows(self, name: str) -> list[Row]:
        """Return all published rows of the kind ``name``, such as ``scores``; empty if there are none."""
        return self.rows_by_kind.get(name, [])

    @cached_property
    def outline(self) -> RunOutline:
        """The facts about the recipe that reports show."""
        if "outline" not in self._entry:
            raise UsageError(f"{self.folder.parent / 'runs.json'}: {self.folder.name} has no outline")
        return fields.decode(RunOutline, self._entry["outline"], f"{self.folder.parent / 'runs.json'}: outline")

    def config(self) -> Row:
        """Return the recipe as plain values."""
        return self._entry["recipe"]

    @property
    def diverged(self) -> bool:
        """True if the loss became NaN or infinite in training."""
        return self._entry.get("verdict") == DIVERGED or bool(self._entry.get("diverged"))

    def about(self) -> Row:
        """Return versions, commit, device and time; empty if training did not finish."""
        if not AboutFile.__required_keys__ <= self._entry.keys():
            return {}
        return {name: value for name, value in self._entry.items() if name not in ("recipe", "outline")}


class PublishedInquiry(InquiryFolder):
    """A language model's scores in a folder of results."""

    def __init__(self, folder: Path, entry: Row, scores: list[Row]) -> None:
        super().__init__(folder / f"{entry['recipe_name']}-{entry['id']}")
        self._entry, self._scores = entry, scores

    def rows(self, name: str) -> list[Row]:
        """Return the published scores if ``name`` is ``scores``; otherwise an empty list."""
        return self._scores if name == "scores" else []

    def _read_inquiry(self) -> Row:
        if "outline" not in self._entry:
            raise UsageError(f"{self.folder.parent / 'inquiries.json'}: {self.folder.name} has no outline")
        return self._entry


def is_results_folder(folder: Path) -> bool:
    """Return True if this is a folder of results."""
    return any((folder / name).exists() for name in ("runs.json", "parameters.csv", "overview.png"))


def read_published_runs(folder: Path) -> list[PublishedRun]:
    """Return the runs in a folder of results; empty if it has none. Raises UsageError if a file is damaged."""
    if not (folder / "runs.json").exists():
        return []
    scores = _read_rows_by_run(folder / "scores.csv", ScoreRow)
    metrics = _read_rows_by_run(folder / "metrics.csv", MetricsRow)
    runs = []
    for entry in read_json(folder / "runs.json", tuple[PublishedEntry, ...]):
        rows = {"scores": scores.get(entry["id"], []), "metrics": metrics.get(entry["id"], [])}
        runs.append(PublishedRun(folder, entry, rows))
    by_folder = {run.folder: run for run in runs}
    for label, group in (by_recipe(runs) if runs else {}).items():
        owners = {run.outline.seed: run for run in reversed(group)}
        for kind, schema, name in (
            ("anatomy", AnatomyRow, f"anatomy-{label}"),
            ("depth", DepthRow, f"stopping-{label}"),
            ("depth", DepthRow, f"stopping-{group[0].folder.name}"),
        ):
            path = folder / f"{name}.json"
            for row in read_json(path, tuple[schema, ...]) if path.exists() else []:
                owner = owners.get(row.get("train_seed"), group[0])
                by_folder[owner.folder].rows_by_kind.setdefault(kind, []).append(row)
    for run in runs:
        for name, rows in run.rows_by_kind.items():
            check_axes(rows, run.axes, f"{run.folder}: {name}: row")
    return runs


def read_inquiries(folder: Path) -> list[PublishedInquiry]:
    """Return the language models' scores in a folder of results. Raises UsageError if a file is damaged."""
    if not (folder / "inquiries.json").exists():
        return []
    entries = read_json(folder / "inquiries.json", tuple[PublishedEntry, ...])
    scores = _read_rows_by_run(folder / "scores.csv", ScoreRow)
    inquiries = [PublishedInquiry(folder, entry, scores.get(entry["id"], [])) for entry in entries]
    for inquiry in inquiries:
        check_axes(inquiry.rows("scores"), inquiry.axes, f"{inquiry.folder}: scores: row")
    return inquiries


def read_json(path: Path, schema: Any) -> Any:
    """Read a JSON file of results and validate it against ``schema``. Raises UsageError if the file is damaged."""
    try:
        tree = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON ({format_error(error)})") from None
    if not isinstance(tree, (list, dict)):
        raise UsageError(f"{path}: must be a JSON list or object")
    return fields.validate(schema, tree, str(path))


def read_figures_json(folder: Path) -> Row:
    """Return figures.json, or an empty row: ``title``, ``strong`` (the main recipe), ``claims`` and ``panels``."""
    path = folder / "figures.json"
    return fields.validate(FiguresFile, read_json_object(path), str(path)) if path.exists() else {}


def read_table(path: Path, schema: Any) -> list[Row]:
    """Read the rows of a CSV file and validate them. Raises UsageError with the number of the first invalid row."""
    return [validate_row(schema, row, f"{path}: row {number}") for number, row in enumerate(read_csv(path), 1)]


def _read_rows_by_run(path: Path, schema: Any) -> dict[str, list[Row]]:
    """Return a CSV file's rows by run id, without the columns that identify the run."""
    rows_by_id: dict[str, list[Row]] = {}
    for row in read_table(path, schema):
        identity = row.pop("id", "")
        for name in ("recipe_name", "train_seed"):
            row.pop(name, None)
        rows_by_id.setdefault(identity, []).append(row)
    return rows_by_id
