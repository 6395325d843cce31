"""Results for others to read: rows, recipes, times, tables and figures in one folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from lengthwise.ask import Asked
from lengthwise.base import fields
from lengthwise.report import Row, asked_curves, by_recipe, curves
from lengthwise.report.anatomy_figure import anatomy_figure
from lengthwise.report.card import score_card
from lengthwise.report.figures import heat_map, length_figure, loss_figure, save
from lengthwise.report.tables import write_csv
from lengthwise.run import Run, write_json


def publish(
    runs: Sequence[Run],
    folder: Path,
    *,
    asked: Sequence[Asked] = (),
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
    figures = {}
    rows: list[Row] = [_origin(run) | row for run in runs for row in run.rows("scores")]
    replied: list[Row] = [_inquirer(one) | row for one in asked for row in one.rows("scores")]
    if any(len(set(row["sizes"])) == 1 for row in rows + replied):
        lines = (curves(runs) if rows else []) + asked_curves(asked)
        # A rule that was tried at a single size is no line, and natural problems are of many sizes; tables have them.
        drawn = [line for line in lines if len(line.points()) > 1 and line.problems != "natural"]
        figures["lengths"] = length_figure(drawn or lines, title)
    groups = by_recipe(runs) if runs else {}
    for label, group in groups.items():
        cells = [row for run in group for row in run.rows("scores")]
        if any(len(set(row["sizes"])) == 2 for row in cells):
            figures[f"map-{label}"] = heat_map(cells, group[0].recipe.lengths.top, label)
    if any("loss" in row for run in runs for row in run.rows("metrics")):
        figures["loss"] = loss_figure(runs)
    about = [_origin(run) | run.about() | {"recipe": json.loads(run.recipe.json())} for run in runs]
    write_json(folder / "runs.json", about)
    files = [folder / "runs.json"]
    if asked:
        write_json(folder / "inquiries.json", [_inquirer(one) | fields.encode(one.inquiry) for one in asked])
        files.append(folder / "inquiries.json")
    if rows + replied:
        write_csv(folder / "scores.csv", rows + replied)
        files.append(folder / "scores.csv")
    if rows:
        write_json(folder / "card.json", score_card(runs, operations))
        files.append(folder / "card.json")
    for label, group in groups.items():
        if anatomies := [row for run in group for row in run.rows("anatomy")]:
            write_json(folder / f"anatomy-{label}.json", anatomies)
            files.append(folder / f"anatomy-{label}.json")
            figures[f"anatomy-{label}"] = anatomy_figure(anatomies, label)
    return files + [file for name, figure in figures.items() for file in save(figure, folder / name)]


def _inquirer(asked: Asked) -> Row:
    return {"recipe_name": asked.inquiry.model, "id": asked.inquiry.id}


def _origin(run: Run) -> Row:
    return {"recipe_name": run.recipe.name, "id": run.recipe.id, "train_seed": run.recipe.seed}
