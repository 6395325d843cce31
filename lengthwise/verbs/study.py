"""Studies and reports."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from lengthwise import catalog
from lengthwise.cost import cost
from lengthwise.depth import depth
from lengthwise.evaluation import parse_sizes
from lengthwise.report import curves
from lengthwise.report.tables import row_table, score_table, summary, summary_table, write_csv
from lengthwise.run import Run, runs_folder, write_json
from lengthwise.studies import Panel, Study
from lengthwise.training import computing
from lengthwise.verbs.console import progress, say
from lengthwise.verbs.train import jobs_of, seeds_of, train_together


def reproduce(args: argparse.Namespace) -> int:
    """Train and measure what a study still lacks, then publish it; or say what that would cost."""
    chosen = {name: getattr(args, name) for name in ("tasks", "methods", "scale") if getattr(args, name) is not None}
    study = catalog.study(args.study, **chosen)
    if args.dry_run:
        return _plan(args, study)
    if args.samples is None:
        args.samples = study.samples
    runs = {panel.title: _runs(args, panel) for panel in study.panels}
    plans = {run.folder: _plan_of(args, panel, run) for panel in study.panels for run in runs[panel.title]}
    train_together(args, [run for group in runs.values() for run in group], lambda run: plans[run.folder])
    return _publish_study(args, study, runs, Path(args.out or Path("results") / args.study))


def _runs(args: argparse.Namespace, panel: Panel) -> list[Run]:
    return [Run.of(one) for recipe in panel.recipes for one in seeds_of(recipe, 0, args.seeds)]


def _plan_of(args: argparse.Namespace, panel: Panel, run: Run) -> list[str]:
    """What a run is measured on, as options of ``train``."""
    options = ["--lengths", ",".join(map(str, panel.sizes)), "--samples", str(args.samples)]
    if panel.curve:
        options += ["--curve", ",".join(map(str, panel.curve)), "--curve-samples", str(args.curve_samples)]
    for rule in panel.rules(run.recipe):
        options += ["--stopping", rule.name]
    return options + ["--hard"] * bool(panel.hard_sizes)


def _plan(args: argparse.Namespace, study: Study) -> int:
    table = Table("recipe", "seeds", "to train", "minutes each", title=study.title, title_justify="left", box=None)
    result: list[dict[str, Any]] = []
    for recipe in study.recipes:
        runs = [Run(runs_folder() / f"{r.name}-{r.id}", r) for r in seeds_of(recipe, 0, args.seeds)]
        missing = sum(not run.done for run in runs)
        minutes = cost(recipe, moments=2, rows=4 if args.scale == "paper" else None).minutes
        result.append({"recipe": recipe.name, "seeds": args.seeds, "missing": missing, "minutes_each": minutes})
        table.add_row(recipe.name, str(args.seeds), str(missing), f"{minutes:.1f}")
    total = sum(row["missing"] * row["minutes_each"] for row in result) / jobs_of(args)
    note = f"about {total:.0f} minutes of training in {jobs_of(args)} processes, evaluation not counted"
    return say(args, result, table, note)


def _publish_study(args: argparse.Namespace, study: Study, runs: dict[str, list[Run]], folder: Path) -> int:
    from lengthwise.report.publish import publish

    files, rows = [], []
    for panel in study.panels:
        group = runs[panel.title]
        files += publish(group, folder / panel.name, title=panel.title)
        rows += summary(panel.title, curves(group), panel.sizes, panel.claims)
    result = {"files": list(map(str, files)), "summary": rows, "scores": _scores(runs.values())}
    if len(study.panels) > 1 or study.panels[0].claims:
        write_csv(folder / "summary.csv", rows)
        return say(args, result, summary_table(rows), study.note, "\n".join(map(str, files)))
    return say(args, result, score_table(curves(*runs.values())), study.note, "\n".join(map(str, files)))


def _scores(groups: Iterable[Sequence[Run]]) -> list[dict[str, Any]]:
    return [row for group in groups for run in group for row in run.rows("scores")]


def report(args: argparse.Namespace) -> int:
    """Tables and figures of runs; or what more loops do to them."""
    from lengthwise.report.publish import publish

    runs = [Run.open(name) for name in args.runs]
    if args.stopping:
        return _report_stopping(args, runs)
    files = publish(runs, Path(args.out or "figures"))
    result = {"files": [str(file) for file in files], "scores": _scores([runs])}
    shown = [score_table(curves(runs))] if result["scores"] else []
    return say(args, result, *shown, "\n".join(map(str, files)))


def _report_stopping(args: argparse.Namespace, runs: list[Run]) -> int:
    from lengthwise.report.depth_figure import depth_figure, depth_rows
    from lengthwise.report.figures import save

    folder, files, found = Path(args.out or "figures"), [], []
    for run in runs:
        weights, top = run.weights(), run.recipe.lengths.top
        sizes = parse_sizes(args.lengths) if args.lengths else [top, 2 * top]
        with computing(1), progress.status(f"{run.recipe.name}: every loop at {', '.join(map(str, sizes))}"):
            measured = [depth(weights, size, samples=args.samples) for size in sizes]
        name = f"stopping-{run.folder.name}"
        write_json(folder / f"{name}.json", measured)
        files += [folder / f"{name}.json", *save(depth_figure(measured, run.recipe.name), folder / name)]
        found += [{"recipe": run.recipe.name} | row for row in depth_rows(measured)]
    result = {"files": [str(file) for file in files], "loops": found}
    return say(args, result, row_table(found), "\n".join(map(str, files)))
