"""Results for others to read: rows, recipes, times, tables and figures in one folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from lengthwise.report import curves
from lengthwise.report.figures import heat_map, length_figure, loss_figure
from lengthwise.report.figures import save as save_figure
from lengthwise.report.tables import write_csv
from lengthwise.run import Run, write


def publish(runs: Sequence[Run], folder: Path, *, title: str | None = None) -> list[Path]:
    """Write what these runs have shown; the paths of what was written. Nothing but files of the runs is read."""
    files = [folder / "scores.csv", folder / "runs.json"]
    rows = [_origin(run) | row for run in runs for row in run.rows("scores")]
    write_csv(files[0], rows)
    about = [_origin(run) | run.about() | {"recipe": json.loads(run.recipe.json())} for run in runs]
    write(files[1], (json.dumps(about, indent=1) + "\n").encode())
    one_axis = [run for run in runs if len(run.recipe.task.axes) == 1]
    if any(run.rows("scores") for run in one_axis):
        files += save_figure(length_figure(curves(one_axis), title), folder / "lengths")
    for run in runs:
        squares = [row for row in run.rows("scores") if len(row["sizes"]) == 2]
        if squares:
            figure = heat_map(squares, run.recipe.lengths.top, run.recipe.name)
            files += save_figure(figure, folder / f"map-{run.folder.name}")
    if any(run.rows("metrics") for run in runs):
        files += save_figure(loss_figure(runs), folder / "loss")
    return files


def _origin(run: Run) -> dict[str, object]:
    return {"recipe_name": run.recipe.name, "id": run.recipe.id, "train_seed": run.recipe.seed}
