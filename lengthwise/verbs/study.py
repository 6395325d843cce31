"""Studies and reports."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from itertools import chain, count, takewhile
from pathlib import Path
from typing import Any

from rich.table import Table

from lengthwise import catalog
from lengthwise.ask import Asked
from lengthwise.base.types import UsageError
from lengthwise.evaluation.depth import depth
from lengthwise.evaluation.scores import parse_sizes
from lengthwise.recipe.data import fixed_set
from lengthwise.recipe.recipe import Recipe
from lengthwise.recipe.source import Finite
from lengthwise.report import Claim, asked_curves, curves
from lengthwise.report.card import card_table, score_card
from lengthwise.report.tables import depth_rows, row_table, score_table, summary, summary_table, write_csv
from lengthwise.run import Folder, Run, place_of, write_json
from lengthwise.studies import Panel, Study
from lengthwise.training.cost import cost, operations
from lengthwise.training.loop import computing
from lengthwise.verbs.console import progress, say
from lengthwise.verbs.train import jobs_of, seeds_of, train_together

DEPTH_SAMPLES = 512  # problems on which every loop is looked at: the published code's batch


def reproduce(args: argparse.Namespace) -> int:
    """Train and measure what a study still lacks, then publish it; or say what that would cost."""
    options = {name: getattr(args, name) for name in ("tasks", "methods", "sizes", "scale")}
    chosen = {name: value for name, value in options.items() if value is not None}
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
    """The seeds asked for, and those that follow them where they are trained already."""
    runs = []
    for recipe in panel.recipes:
        runs += [Run.of(one) for one in seeds_of(recipe, 0, args.seeds)]
        following = (place_of(one) for seed in count(args.seeds) for one in seeds_of(recipe, seed, 1))
        runs += takewhile(lambda run: run.done, following)
    return runs


def _plan_of(args: argparse.Namespace, panel: Panel, run: Run) -> list[str]:
    """What a run is measured on, as options of ``train``."""
    sizes = [*map(str, panel.sizes), *(["x".join(map(str, panel.grid))] if panel.grid else [])]
    options = ["--lengths", ",".join(sizes), "--samples", str(args.samples)]
    if panel.curve:
        options += ["--curve", ",".join(map(str, panel.curve)), "--curve-samples", str(args.curve_samples)]
    for rule in panel.rules(run.recipe):
        options += ["--stopping", rule.name]
    return options + ["--hard"] * bool(panel.hard_sizes) + ["--natural"] * panel.natural


def _plan(args: argparse.Namespace, study: Study) -> int:
    table = Table("recipe", "seeds", "to train", "minutes each", title=study.title, title_justify="left", box=None)
    result: list[dict[str, Any]] = []
    for recipe in study.recipes:
        missing = sum(not place_of(one).done for one in seeds_of(recipe, 0, args.seeds))
        minutes = cost(recipe, moments=2, rows=4 if args.scale == "paper" else None).minutes
        result.append({"recipe": recipe.name, "seeds": args.seeds, "missing": missing, "minutes_each": minutes})
        table.add_row(recipe.name, str(args.seeds), str(missing), f"{minutes:.1f}")
    total = sum(row["missing"] * row["minutes_each"] for row in result) / jobs_of(args)
    note = f"about {total:.0f} minutes of training in {jobs_of(args)} processes, evaluation not counted"
    return say(args, result, table, note)


def _publish_study(args: argparse.Namespace, study: Study, runs: dict[str, list[Run]], folder: Path) -> int:
    from lengthwise.report.publish import publish

    files, rows, prices = [], [], {}
    for panel in study.panels:
        group, place = runs[panel.title], folder / panel.name
        prices |= _operations(group)
        files += publish(group, place, title=panel.title, operations=prices)
        if panel.also:
            first = [run for run in group if run.recipe.seed == 0 and run.recipe.loops.adapts]
            for run in first:
                sizes = [run.recipe.lengths.top, *panel.sizes]
                files += _publish_depth(run, sizes, DEPTH_SAMPLES, place / f"stopping-{run.recipe.name}")
        if panel.natural:
            files += _publish_distribution(group[0].recipe, place / "distribution")
        if panel.claims:
            found = summary(panel.title, curves(group), panel.sizes, panel.claims)
            write_csv(place / "summary.csv", found)
            files, rows = [*files, place / "summary.csv"], rows + found
    groups = list(runs.values())
    claims = dict.fromkeys(claim for panel in study.panels for claim in panel.claims)
    files += _publish_parameters(list(chain(*groups)), list(claims), folder / "parameters")
    table = summary_table(rows) if rows else score_table(curves(chain(*groups)))
    cards = score_card(list(chain(*groups)), prices)
    result = {"files": list(map(str, files)), "summary": rows, "scores": _scores(groups), "cards": cards}
    return say(args, result, table, "", card_table(cards), study.note, "\n".join(map(str, files)))


def _publish_parameters(runs: Sequence[Run], claims: Sequence[Claim], path: Path) -> list[Path]:
    """Accuracy and validation loss against parameters, of runs that have watched such a loss."""
    from lengthwise.report.figures import save
    from lengthwise.report.parameter_figure import parameter_figure, parameter_rows

    rows = parameter_rows(runs)
    if not rows:
        return []
    write_csv(path.with_name(path.name + ".csv"), rows)
    return [path.with_name(path.name + ".csv"), *save(parameter_figure(rows, claims), path)]


def _publish_distribution(recipe: Recipe, path: Path) -> list[Path]:
    """How long the problems of a fixed set are."""
    from lengthwise.report.figures import save
    from lengthwise.report.parameter_figure import distribution_figure

    if not isinstance(recipe.source, Finite):
        return []
    with progress.status(f"{recipe.name}: its set"):
        sizes = fixed_set(recipe.task, recipe.lengths, recipe.source).sizes.amax(1)
    counts = {size: count for size, count in enumerate(sizes.bincount().tolist()) if count}
    write_json(path.with_name(path.name + ".json"), counts)
    title = f"{recipe.source.rows:,} problems to train on"
    return [path.with_name(path.name + ".json"), *save(distribution_figure(counts, title), path)]


def _scores(groups: Iterable[Sequence[Folder]]) -> list[dict[str, Any]]:
    return [row for group in groups for run in group for row in run.rows("scores")]


def report(args: argparse.Namespace) -> int:
    """Tables and figures of runs; or what more loops do to them."""
    from lengthwise.report.publish import publish

    found = [Asked.named(name) or Run.open(name) for name in args.runs]
    runs, asked = [one for one in found if isinstance(one, Run)], [one for one in found if isinstance(one, Asked)]
    if args.stopping:
        if asked:
            raise UsageError(f"{asked[0].folder}: a language model that was asked has no loops to look at")
        return _report_stopping(args, runs)
    if args.lengths:
        raise UsageError("--lengths goes with --stopping; `lengthwise evaluate` measures further lengths")
    price = _operations(runs)
    files = publish(runs, Path(args.out or "figures"), asked=asked, operations=price)
    scores, cards = _scores([runs]), score_card(runs, price) if runs else []
    lines = (curves(runs) if scores else []) + asked_curves(asked)
    shown = [*([score_table(lines)] if lines else []), *(["", card_table(cards)] if scores else [])]
    result = {"files": [str(file) for file in files], "scores": scores + _scores([asked]), "cards": cards}
    return say(args, result, *shown, "\n".join(map(str, files)))


def _operations(runs: Iterable[Run]) -> dict[str, float]:
    """Operations of a step, for each recipe by name."""
    return {run.recipe.name: operations(run.recipe) for run in {run.recipe.name: run for run in runs}.values()}


def _report_stopping(args: argparse.Namespace, runs: list[Run]) -> int:
    files, found = [], []
    for run in runs:
        top = run.recipe.lengths.top
        sizes = parse_sizes(args.lengths) if args.lengths else [top, 2 * top]
        files += _publish_depth(run, sizes, args.samples, Path(args.out or "figures") / f"stopping-{run.folder.name}")
        found += [{"recipe": run.recipe.name} | row for row in depth_rows(_depths(run, sizes, args.samples))]
    result = {"files": [str(file) for file in files], "loops": found}
    return say(args, result, row_table(found), "\n".join(map(str, files)))


def _publish_depth(run: Run, sizes: Sequence[Any], samples: int, path: Path) -> list[Path]:
    """Accuracy and confidence against loops: the numbers, and their picture."""
    from lengthwise.report.depth_figure import depth_figure
    from lengthwise.report.figures import save

    measured = _depths(run, sizes, samples)
    write_json(path.with_name(path.name + ".json"), measured)
    return [path.with_name(path.name + ".json"), *save(depth_figure(measured, run.recipe.name), path)]


def _depths(run: Run, sizes: Sequence[Any], samples: int) -> list[dict[str, Any]]:
    """A row per size, measured where the run has none yet on so many problems."""
    known = {tuple(row["sizes"]): row for row in run.rows("depth") if row["count"] == samples}
    wanted = [run.recipe.sizes(size) for size in sizes]
    missing = [size for size in wanted if size not in known]
    if missing:
        weights = run.weights()
        with computing(1), progress.status(f"{run.recipe.name}: every loop"):
            for size in missing:
                known[size] = depth(weights, size, samples=samples)
                run.append("depth", known[size])
    return [known[size] for size in wanted]
