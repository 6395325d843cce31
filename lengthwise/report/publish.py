"""Publish results in one folder: rows, recipes, times, tables and figures."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from lengthwise.base.csv_files import write_csv
from lengthwise.base.fields import encode
from lengthwise.base.files import remove, write_json, write_json_rows
from lengthwise.base.formatting import format_task_name
from lengthwise.base.results import Claim
from lengthwise.base.schemas import DepthRow, Distribution, ParameterRow
from lengthwise.base.score_rows import KINDS_WITH_CURVE, Row, group_by
from lengthwise.report import build_all_curves, by_recipe, drop_repeated_folders
from lengthwise.report.card import build_score_card
from lengthwise.report.depth_figure import draw_depth_figure
from lengthwise.report.length_figure import build_title, choose_curves, draw_length_figure, draw_overview_figure
from lengthwise.report.loss_figure import (
    build_parameter_rows,
    draw_length_counts,
    draw_loss_figure,
    draw_parameter_figure,
)
from lengthwise.report.map_figure import draw_heat_map, label_scores
from lengthwise.report.results_folder import (
    read_figures_json,
    read_inquiries,
    read_json,
    read_published_runs,
    read_table,
)
from lengthwise.report.style import COLOURS, PNG_ONLY, Width, save
from lengthwise.runs.folder import DIVERGED, InquiryFolder, RunFolder

# Matches the names of files that only some publications have.
OPTIONAL_FILES_PATTERN = (
    r"(inquiries|card|anatomy-.+)\.json|(scores|metrics)\.csv(\.gz)?|(lengths|loss|(map|anatomy)-.+)\.(png|svg|pdf)"
)
MAX_PLAIN_CSV_BYTES = 8_000  # bytes, two blocks of a disk; larger CSV files are compressed


def publish(
    runs: Sequence[RunFolder],
    folder: Path,
    *,
    inquiries: Sequence[InquiryFolder] = (),
    title: str | None = None,
    operations_per_step: Mapping[str, float] | None = None,
    highlight: str | None = None,
    width: Width = "page",
    formats: Sequence[str] = PNG_ONLY,
) -> list[Path]:
    """Publish the results of runs and of the language models in ``inquiries``. Return the paths written. Data files are
    ``runs.json`` (recipes, versions and times), ``inquiries.json``, ``scores.csv`` and ``metrics.csv`` (compressed to
    .csv.gz above ``MAX_PLAIN_CSV_BYTES``), ``card.json`` (see ``build_score_card``), ``figures.json`` (the title) and
    ``anatomy-<recipe>.json`` (error analyses). Figures are ``lengths``, ``map-<recipe>`` (exact match over two sizes)
    and ``loss``, one file for each of ``formats``. ``highlight`` is the main recipe."""
    runs, inquiries = drop_repeated_folders(runs), drop_repeated_folders(inquiries)
    title = title or build_title([inquiry.outline for inquiry in [*runs, *inquiries]])
    figures = _draw_figures(runs, inquiries, title, highlight, width)  # drawn first, so that an error leaves no files
    groups = by_recipe(runs) if runs else {}
    files, entries = [folder / "runs.json"], []
    old_files = [*folder.glob("*")] if files[0].exists() else []
    for run in runs:
        verdict = {"verdict": DIVERGED} if run.diverged else {}
        recipe = {"outline": encode(run.outline), "recipe": run.config()}
        entries.append(identify_run(run) | run.about() | verdict | recipe)
    write_json_rows(files[0], entries)
    if inquiries:
        outlines = [{"outline": encode(inquiry.outline)} | inquiry.config() for inquiry in inquiries]
        entries = [_identify_inquiry(inquiry) | outline for inquiry, outline in zip(inquiries, outlines, strict=True)]
        files.append(_write_json(folder, "inquiries", entries))
    if rows := collect_scores(runs, inquiries):
        files.append(write_csv(folder / "scores.csv", rows, max_plain_bytes=MAX_PLAIN_CSV_BYTES))
    if metrics := build_metrics_rows(runs):
        files.append(write_csv(folder / "metrics.csv", metrics, max_plain_bytes=MAX_PLAIN_CSV_BYTES))
    if any(run.rows("scores") for run in runs):
        files.append(_write_json(folder, "card", build_score_card(runs, operations_per_step)))
    for label, group in groups.items():
        if anatomies := select_anatomy_rows(group):
            files.append(_write_json(folder, f"anatomy-{label}", anatomies))
    files.append(_write_json(folder, "figures", {"title": title} | ({"strong": highlight} if highlight else {})))
    files += [file for name, figure in figures.items() for file in save(figure, folder / name, formats)]
    for path in old_files:  # an old file would be mistaken for a result of this publication
        if path not in files and re.fullmatch(OPTIONAL_FILES_PATTERN, path.name):
            remove(path)
    return files


def redraw_figures(
    source: Path, folder: Path, *, width: Width = "page", formats: Sequence[str] = PNG_ONLY
) -> list[Path]:
    """Redraw all figures of a folder of results from its rows, into ``folder``; return the paths written."""
    about, runs, inquiries = read_figures_json(source), read_published_runs(source), read_inquiries(source)
    figures: dict[str, Figure] = {}
    if runs or inquiries:
        figures = _draw_figures(runs, inquiries, about.get("title"), about.get("strong"), width)
    for path in sorted(source.glob("stopping-*.json")):
        figures[path.stem] = _draw_depth(path.stem, read_json(path, tuple[DepthRow, ...]), width)
    if (path := source / "distribution.json").exists():
        counts = {int(size): count for size, count in read_json(path, Distribution).items()}
        figures["distribution"] = draw_length_counts(counts, width=width)
    if rows := read_table(source / "parameters.csv", ParameterRow):
        claims = [Claim(claim_row["who"], 0, "", "", claim_row["exact"]) for claim_row in about.get("claims", [])]
        figures["parameters"] = draw_parameter_figure(rows, claims, width=width)
    if len(about.get("panels", [])) > 1:
        figures["overview"] = _draw_overview(source, about, width)
    return [file for name, figure in figures.items() for file in save(figure, folder / name, formats)]


def _draw_figures(
    runs: Sequence[RunFolder],
    inquiries: Sequence[InquiryFolder],
    title: str | None,
    highlight: str | None,
    width: Width,
) -> dict[str, Figure]:
    """Return a figure of each kind for which the runs have rows, by file name without extension."""
    figures: dict[str, Figure] = {}
    lines = build_all_curves(runs, inquiries)
    groups = by_recipe(runs) if runs else {}
    tasks = group_by(runs, lambda run: run.outline.task)
    drawn = choose_curves([curve for curve in lines if curve.diagonal])
    if len(tasks) > 1 and len(groups) > len(COLOURS) and any(curve.problems == "uniform" for curve in drawn):
        # One panel would be unreadable, and its lines not comparable.
        panels = {format_task_name(task): group for task, group in tasks.items()}
        figures["lengths"] = draw_overview_figure(panels, title, width=width)
    elif drawn:
        figures["lengths"] = draw_length_figure(drawn, title, highlight=highlight, width=width)
    for label, group in groups.items():
        cells = [row for row in label_scores(group) if row["problems"] in KINDS_WITH_CURVE]
        unequal = [row["sizes"] for row in cells if len(set(row["sizes"])) == 2]
        if all(len({sizes[axis] for sizes in unequal}) > 1 for axis in (0, 1)):  # a map needs several on both axes
            figures[f"map-{label}"] = draw_heat_map(cells, group[0].outline.tops, label, width=width)
    if any(row.get("loss") is not None for run in runs for row in run.rows("metrics")):
        figures["loss"] = draw_loss_figure(runs, title, highlight=highlight, width=width)
    return figures


def select_anatomy_rows(runs: Sequence[RunFolder]) -> list[Row]:
    """Return error analyses on uniform problems under each recipe's own stopping rule, with the seed of their run."""
    return [
        {"train_seed": run.outline.seed} | row
        for run in runs
        for row in run.rows("anatomy")
        if row["problems"] == "uniform" and row["stopping"] == run.outline.stopping
    ]


def collect_scores(runs: Sequence[RunFolder], inquiries: Sequence[InquiryFolder]) -> list[Row]:
    """Return the score rows of all runs and inquiries, each with the columns that identify its run or inquiry."""
    named = [(identify_run(run), run) for run in runs] + [(_identify_inquiry(folder), folder) for folder in inquiries]
    return [columns | row for columns, folder in named for row in folder.rows("scores")]


def build_metrics_rows(runs: Sequence[RunFolder]) -> list[Row]:
    """Return the rows of loss, validation loss and exact match during training, with columns that identify the run."""
    rows = []
    for columns, row in ((identify_run(run), row) for run in runs for row in run.rows("metrics")):
        kept_fields = {name: row[name] for name in ("loss", "exact", "validation_loss") if name in row}
        if isinstance(kept_fields.get("loss"), float):
            kept_fields["loss"] = float(f"{kept_fields['loss']:.5g}")
        if kept_fields:
            rows.append(columns | {"step": row["step"]} | kept_fields)
    return rows


def _write_json(folder: Path, name: str, content: object) -> Path:
    write_json(folder / f"{name}.json", content)
    return folder / f"{name}.json"


def identify_run(run: RunFolder) -> Row:
    """Return the columns that identify a run in a folder of results."""
    return {"recipe_name": run.outline.name, "id": run.outline.id, "train_seed": run.outline.seed}


def _identify_inquiry(inquiry: InquiryFolder) -> Row:
    return {"recipe_name": inquiry.outline.model, "id": inquiry.outline.id}


# Figures for studies


def publish_depth(
    rows: Sequence[Row], path: Path, *, width: Width = "page", formats: Sequence[str] = PNG_ONLY
) -> list[Path]:
    """Write accuracy and confidence after each loop: all rows as JSON, and a figure of the first seed's rows. ``path``
    is ``<folder>/stopping-<run>``. Return the paths written."""
    figure = _draw_depth(path.name, rows, width)
    return [_write_json(path.parent, path.name, rows), *save(figure, path, formats)]


def _draw_depth(name: str, rows: Sequence[Row], width: Width) -> Figure:
    seeds = group_by(rows, lambda row: row.get("train_seed"))
    first = next(iter(seeds))
    which = f", seed {first}" if len(seeds) > 1 else ""
    return draw_depth_figure(seeds[first], f"{name.removeprefix('stopping-')}{which}: after each loop", width=width)


def publish_parameters(runs: Sequence[RunFolder], claims: Sequence[Claim], folder: Path) -> list[Path]:
    """Write a table and a figure of accuracy and validation loss against parameters, if any run logged this loss. Keep
    published rows unless their run is measured again or their recipe has changed. Return the paths written."""
    new = build_parameter_rows(runs)
    if not new:
        return []
    measured, ids = {(row["recipe"], row["seed"]) for row in new}, {row["recipe"]: row["id"] for row in new}
    for row in reversed(read_table(folder / "parameters.csv", ParameterRow)):
        own_id = ids.get(row["recipe"], row.get("id"))
        if (row["recipe"], row["seed"]) not in measured and row.get("id", own_id) == own_id:
            new.insert(0, row)
    figure = draw_parameter_figure(new, claims)
    write_csv(folder / "parameters.csv", new)
    drawn = [{"who": claim.system, "exact": claim.exact} for claim in claims if claim.exact is not None]
    about = _write_json(folder, "figures", read_figures_json(folder) | {"claims": drawn})
    return [folder / "parameters.csv", about, *save(figure, folder / "parameters")]


def publish_overview(panels: Sequence[str], folder: Path, *, title: str, highlight: str) -> list[Path]:
    """Add panels to those published before, and draw all panels in one figure. Return the paths written. A panel is
    the name of a folder of results within ``folder``. A single panel is recorded but not drawn. ``highlight`` is the
    main method."""
    all_panels = list(dict.fromkeys([*read_figures_json(folder).get("panels", []), *panels]))
    about = read_figures_json(folder) | {"title": title, "panels": all_panels, "strong": highlight}
    files = [_write_json(folder, "figures", about)]
    return files if len(all_panels) < 2 else [*files, *save(_draw_overview(folder, about), folder / "overview")]


def _draw_overview(folder: Path, about: Row, width: Width = "page") -> Figure:
    groups = {format_task_name(name): read_published_runs(folder / name) for name in about["panels"]}
    return draw_overview_figure(groups, about.get("title"), highlight=about.get("strong", ""), width=width)


def publish_distribution(counts_by_length: Mapping[int, int], path: Path) -> list[Path]:
    """Write the number of training problems of each length, as JSON and as a figure; return the paths written."""
    figure = draw_length_counts(counts_by_length)
    return [_write_json(path.parent, path.name, dict(counts_by_length)), *save(figure, path)]
