"""Results for others to read: rows, recipes, times, tables and figures in one folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from lengthwise.folder import DIVERGED, InquiryFolder, RunFolder, write_json
from lengthwise.report import ALONE, WORST, Claim, Row, asked_curves, by_recipe, curves
from lengthwise.report.anatomy_figure import anatomy_figure
from lengthwise.report.card import score_card
from lengthwise.report.depth_figure import depth_figure
from lengthwise.report.length_figure import length_figure
from lengthwise.report.loss_figure import loss_figure
from lengthwise.report.map_figure import heat_map
from lengthwise.report.parameter_figure import distribution_figure, parameter_figure, parameter_rows
from lengthwise.report.style import save
from lengthwise.report.tables import write_csv


def publish(
    runs: Sequence[RunFolder],
    folder: Path,
    *,
    asked: Sequence[InquiryFolder] = (),
    title: str | None = None,
    operations: Mapping[str, float] | None = None,
) -> list[Path]:
    """Write what these runs have shown, and language models that were ``asked``; the paths of what was written. Nothing
    but files of theirs is read.

    ``runs.json`` holds recipes, versions and times; ``inquiries.json`` what was asked; ``scores.csv`` every score;
    ``card.json`` the score card (see ``card.score_card``, which ``operations`` are for); ``lengths`` exact match
    against length; ``map-<recipe>`` exact match on two axes, the mean over seeds; ``anatomy-<recipe>`` how answers go
    wrong; ``loss`` the course of training.
    """
    figures = _figures(runs, asked, title)  # first: where they cannot be drawn, nothing is written
    files = _write_data(runs, asked, folder, operations)
    return files + [file for name, figure in figures.items() for file in save(figure, folder / name)]


def _figures(runs: Sequence[RunFolder], asked: Sequence[InquiryFolder], title: str | None) -> dict[str, Figure]:
    """All figures that there are rows for, by name."""
    figures: dict[str, Figure] = {}
    if any(len(set(row["sizes"])) == 1 for row in _rows([*runs, *asked], "scores")):
        lines = (curves(runs) if _rows(runs, "scores") else []) + asked_curves(asked)
        # A rule that was tried at a single size is no line, and natural problems are of many sizes; tables have them.
        # The harder set is one of the families, where these were measured.
        left_out = {"natural", *(["hard"] if any(line.problems == WORST for line in lines) else [])}
        drawn = [line for line in lines if len(line.points()) > 1 and line.problems not in left_out]
        figures["lengths"] = length_figure(drawn or lines, title)
    groups = by_recipe(runs) if runs else {}
    for label, group in groups.items():
        cells = [row for row in _rows(group, "scores") if row["problems"] in ALONE]
        if any(len(set(row["sizes"])) == 2 for row in cells):
            figures[f"map-{label}"] = heat_map(cells, group[0].outline.top, label)
    if any(row.get("loss") is not None for row in _rows(runs, "metrics")):
        figures["loss"] = loss_figure(runs)
    for label, group in groups.items():
        if anatomies := _rows(group, "anatomy"):
            figures[f"anatomy-{label}"] = anatomy_figure(anatomies, label)
    return figures


def _write_data(
    runs: Sequence[RunFolder],
    asked: Sequence[InquiryFolder],
    folder: Path,
    operations: Mapping[str, float] | None,
) -> list[Path]:
    """The rows behind the figures, and where they are from."""
    files = [_write(folder, "runs", [_run_of(run) | _about(run) | {"recipe": run.config()} for run in runs])]
    if asked:
        files.append(_write(folder, "inquiries", [_inquiry_of(one) | one.config() for one in asked]))
    rows = [_run_of(run) | row for run in runs for row in run.rows("scores")]
    replied = [_inquiry_of(one) | row for one in asked for row in one.rows("scores")]
    if rows + replied:
        write_csv(folder / "scores.csv", rows + replied)
        files.append(folder / "scores.csv")
    if rows:
        files.append(_write(folder, "card", score_card(runs, operations)))
    for label, group in (by_recipe(runs) if runs else {}).items():
        if anatomies := _rows(group, "anatomy"):
            files.append(_write(folder, f"anatomy-{label}", anatomies))
    return files


def _write(folder: Path, name: str, tree: object) -> Path:
    """A JSON file of this name; its path."""
    write_json(folder / f"{name}.json", tree)
    return folder / f"{name}.json"


def _rows(folders: Sequence[RunFolder | InquiryFolder], name: str) -> list[Row]:
    return [row for folder in folders for row in folder.rows(name)]


def _run_of(run: RunFolder) -> Row:
    return {"recipe_name": run.outline.name, "id": run.outline.id, "train_seed": run.outline.seed}


def _about(run: RunFolder) -> Row:
    return run.about() | ({"verdict": DIVERGED} if run.diverged else {})


def _inquiry_of(asked: InquiryFolder) -> Row:
    return {"recipe_name": asked.outline.model, "id": asked.outline.id}


# What studies add


def publish_depth(rows: Sequence[Row], title: str, path: Path) -> list[Path]:
    """Accuracy and confidence against loops: the numbers, and their picture."""
    return [_write(path.parent, path.name, rows), *save(depth_figure(rows, title), path)]


def publish_parameters(runs: Sequence[RunFolder], claims: Sequence[Claim], path: Path) -> list[Path]:
    """Accuracy and validation loss against parameters, of runs that have watched such a loss; nothing without any."""
    rows = parameter_rows(runs)
    if not rows:
        return []
    table = path.with_name(path.name + ".csv")
    write_csv(table, rows)
    return [table, *save(parameter_figure(rows, claims), path)]


def publish_distribution(counts: Mapping[int, int], title: str, path: Path) -> list[Path]:
    """How many problems there are of each length: the numbers, and their picture."""
    return [_write(path.parent, path.name, dict(counts)), *save(distribution_figure(counts, title), path)]
