"""The command ``sweep``: train a recipe with several values of its fields; choose the best by exact match near the
training lengths."""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lengthwise.base import fields
from lengthwise.base.csv_files import write_csv
from lengthwise.base.errors import UsageError
from lengthwise.base.files import format_json, read_json_object, write, write_json
from lengthwise.base.ranges import Count, Size
from lengthwise.base.results import AnySize
from lengthwise.base.score_rows import Row, format_size, select_reported_rows
from lengthwise.cli import options
from lengthwise.cli.console import err, print_files
from lengthwise.cli.forecast import announce_evaluation, forecast
from lengthwise.cli.shared import RecipeOptions, TrainingOptions
from lengthwise.experiment.recipe import ChosenOn, Recipe, change_recipe, check_sweep_sizes, largest_size_for_choosing
from lengthwise.jobs.pool import JobPool, show_progress
from lengthwise.jobs.search import Axis, Point, Search, generate_grid_points, load_optuna, parse_axes
from lengthwise.report.style import save
from lengthwise.report.sweep import (
    build_importance_table,
    build_trials_table,
    compute_importances,
    draw_sweep_figure,
    rank_trials,
)
from lengthwise.runs.folder import Folder, get_runs_folder
from lengthwise.runs.run import Run
from lengthwise.training.trainer import try_training


@dataclass(frozen=True)
class Sweep:
    """The values to try, and the measurement that compares them."""

    recipe: Recipe
    axes: tuple[Axis, ...]
    sizes: tuple[AnySize, ...]
    samples: int
    seeds: int
    trials: int | None  # None: the whole grid


@dataclass(kw_only=True)
class Options(TrainingOptions, RecipeOptions):
    """Train a recipe with several values of its fields; choose the best by exact match near the training lengths."""

    samples: Size = 1000  # N: fresh problems per length (default: 1000)
    out: str | None = None  # FOLDER: where tables and figures go
    lengths: str | None = None  # SIZES: where recipes are compared (default: 1 and 1.3 times the training length)
    trials: Count | None = None  # N: search with Optuna, N trials in all, instead of a grid


def run(args: Options) -> int:
    """Train a recipe over a grid or by a search; report which fields matter, and save the best recipe."""
    sweep = _parse_sweep(args)
    if args.dry_run and sweep.trials is None:
        points = list(generate_grid_points(sweep.axes))
        plan = [_list_replicates(sweep, point) for point in points]
        return forecast(args, plan, f"{len(plan)} trials: nothing is trained", points=points)
    if args.dry_run:  # the maximum cost, if each trial costs the same as the recipe
        plan = [options.replicate_recipe(sweep.recipe, sweep.recipe.seed, sweep.seeds * (sweep.trials or 0))]
        return forecast(args, plan, f"at most {sweep.trials} trials, as {sweep.recipe.name}: nothing is trained")
    options.parse_launcher(args).check()
    # These values identify the sweep. The number of trials is left out, so that a search can be extended.
    axes = [vars(axis) | {"values": list(axis.values)} for axis in sweep.axes]
    values = {"recipe": fields.encode(sweep.recipe), "axes": axes, "sizes": [*map(sweep.recipe.sizes, sweep.sizes)]}
    values |= {"samples": sweep.samples, "seeds": sweep.seeds, "search": sweep.trials is not None}
    text = format_json(values)
    digest = hashlib.blake2b(text.encode(), digest_size=5).hexdigest()
    folder = Path(args.out) if args.out else get_runs_folder() / f"sweep-{sweep.recipe.name}-{digest}"
    if sweep.trials is not None:
        load_optuna()
    _record_sweep(folder, text)
    with Folder(folder).lock(folder_kind="sweep"):
        if sweep.trials is None:
            points = list(generate_grid_points(sweep.axes))
            recipes = [recipe for point in points for recipe in _list_replicates(sweep, point)]
            errors = _train_runs(args, sweep, [Run.of(recipe) for recipe in recipes])
        else:
            search = Search(folder, sweep.axes, sweep.recipe.seed)
            errors = _run_search(args, sweep, search, sweep.trials)
            points = search.list_points()
        trials = [row for point in points if (row := _build_trial_row(sweep, point))["seeds"]]
        if not trials:
            raise UsageError("; ".join(errors) or "no trial has finished")
        status = _report_trials(args, sweep, folder, trials)
    if errors:
        raise UsageError(f"{len(errors)} run{'s' * (len(errors) > 1)} failed: {'; '.join(errors)}")
    return status


def _parse_sweep(args: Options) -> Sweep:
    """Parse the sweep. Raises UsageError for a sweep that cannot work, before anything is trained."""
    axes, changes = parse_axes(args.changes)
    recipe = options.find_recipe(args.recipe, changes)
    options.check_data_seed(recipe)
    recipe = recipe.with_seed(recipe.seed)  # as in training
    limit = largest_size_for_choosing(recipe)
    sizes = options.parse_sizes(args.lengths) if args.lengths else [recipe.lengths.top, limit]
    check_sweep_sizes(recipe, sizes)
    announce_evaluation(recipe, sizes, args.samples, [recipe.stopping])
    if args.trials is None:
        points = [change_recipe(recipe, point) for point in generate_grid_points(axes)]
        try_training(points[0], *options.local_device(args))
    return Sweep(recipe, tuple(axes), tuple(sizes), args.samples, args.seeds, args.trials)


def _record_sweep(folder: Path, text: str) -> None:
    """Record the sweep in its folder. Raises UsageError if the folder holds another sweep."""
    path = folder / "sweep.json"
    if path.exists() and format_json(read_json_object(path)) != text:
        raise UsageError(f"{folder}: holds another sweep; choose another folder")
    write(path, (text + "\n").encode())


# Trials


def _run_search(args: Options, sweep: Sweep, search: Search, trial_count: int) -> list[str]:
    """Search with one trial per job at a time; trials below the median get no more seeds. Return the error lines."""
    faults: list[str] = []
    waiting, jobs = search.list_unfinished_trials(), options.resolve_jobs(args.jobs)
    retried = {trial.number for trial in waiting}
    while waiting or search.count_finished() < trial_count:
        remaining = trial_count - search.count_finished() - len(waiting)
        active = waiting + [search.ask() for _ in range(min(remaining, max(0, jobs - len(waiting))))]
        new_faults, failed = _run_trials(args, sweep, search, active)
        faults, waiting = faults + new_faults, []
        # A full disk, for example, or a run that another process trains. The next call retries such a trial once.
        for trial in failed:
            if trial.number in retried:
                search.tell(trial, None)
        if failed:
            break
    return faults


def _run_trials(args: Options, sweep: Sweep, search: Search, open_trials: Sequence[Any]) -> tuple[list[str], list[Any]]:
    """Train each trial seed by seed, until the search ends it; return the errors and the failed trials."""
    faults: list[str] = []
    failed: list[Any] = []
    trials = {trial.number: (trial, search.suggest_point(trial)) for trial in open_trials}
    for seed in range(sweep.seeds):
        runs = {}
        for number, (trial, point) in [*trials.items()]:
            try:
                runs[number] = Run.of(_list_replicates(sweep, point)[seed])
            except UsageError as error:  # incompatible values
                faults.append(str(error))
                search.tell(trial, None)
                trials.pop(number)
        faults += _train_runs(args, sweep, list(runs.values()))
        for number, (trial, point) in [*trials.items()]:
            row = _build_trial_row(sweep, point, seed + 1)
            if row["seeds"] <= seed:
                failed.append(trial)
            elif seed + 1 == sweep.seeds or not search.should_continue(trial, seed, row["exact"]):
                search.tell(trial, row["exact"])
            else:
                continue
            trials.pop(number)
    return faults, failed


def _list_replicates(sweep: Sweep, point: Point) -> list[Recipe]:
    recipe = change_recipe(sweep.recipe, point)
    return options.replicate_recipe(recipe, recipe.seed, sweep.seeds)


def _train_runs(args: Options, sweep: Sweep, runs: Sequence[Run]) -> list[str]:
    """Train and measure the runs that have no scores yet; return a line for each error."""
    # A search may try the same point twice.
    missing = list({run.folder: run for run in runs if _compute_mean_exact_match(sweep, run) is None}.values())
    sizes = ",".join(format_size(s) if isinstance(s, tuple) else str(s) for s in sweep.sizes)
    words = [*options.list_training_options(args), "--lengths", sizes, "--samples", str(sweep.samples)]
    jobs, launcher = options.resolve_jobs(args.jobs), options.parse_launcher(args)
    with JobPool(missing, lambda _: words, jobs=jobs, launcher=launcher) as pool:
        show_progress(pool, missing, err, quiet=args.quiet)
    return [f"{folder}: {reason}" for folder, reason in pool.failed.items() if not Run.open(folder).diverged]


def _compute_mean_exact_match(sweep: Sweep, run: Run) -> float | None:
    """Return a run's mean exact match over the sizes; 0 if it diverged, None if it has not been measured."""
    if run.folder.exists() and run.diverged:
        return 0.0
    all_sizes = {run.recipe.sizes(size) for size in sweep.sizes}
    rows = [row for row in run.rows("scores") if "sealed" not in row]  # sealed scores are not used to choose recipes
    by_size = {}
    for row in select_reported_rows(rows):
        is_own = (row["problems"], row["stopping"]) == ("uniform", run.recipe.stopping.name)
        if is_own and row["count"] >= sweep.samples:
            by_size[tuple(row["sizes"])] = row["exact"]
    return statistics.fmean(by_size[size] for size in all_sizes) if all_sizes <= by_size.keys() else None


def _build_trial_row(sweep: Sweep, point: Point, seeds: int | None = None) -> Row:
    """Return a trial's row: its values, and the mean and worst exact match of its first ``seeds`` runs, or of all."""
    try:
        runs = [Run.locate(replicate) for replicate in _list_replicates(sweep, point)][:seeds]
    except UsageError:  # incompatible values
        runs = []
    exact = [share for replicate in runs if (share := _compute_mean_exact_match(sweep, replicate)) is not None]
    sizes = [about["parameters"] for replicate in runs if replicate.done and (about := replicate.about())]
    row = {"values": point, "exact": statistics.fmean(exact or [0.0]), "worst": min(exact, default=0.0)}
    return row | {"seeds": len(exact), "parameters": sizes[0] if sizes else None}


# Results


def _report_trials(args: Options, sweep: Sweep, folder: Path, trials: Sequence[Row]) -> int:
    ranges = {axis.path: axis.log for axis in sweep.axes if not axis.values}
    best, parts = rank_trials(trials)[0], compute_importances(trials, list(ranges))
    recipe, earlier = change_recipe(sweep.recipe, best["values"]), sweep.recipe.chosen_on
    sizes = {max(recipe.sizes(size)) for size in sweep.sizes}
    # The recipe records the sizes it was chosen on, with those of earlier choices.
    chosen = replace(recipe, chosen_on=ChosenOn(tuple(sorted({*earlier.sizes, *sizes})), earlier.problems))
    flat = [row["values"] | {name: value for name, value in row.items() if name != "values"} for row in trials]
    write_csv(folder / "trials.csv", flat)
    write_json(folder / "mattered.json", {"fields": parts})
    write(folder / "best.json", (chosen.json() + "\n").encode())
    title = f"{sweep.recipe.name}: {len(trials)} trials, chosen on {', '.join(map(str, sweep.sizes))}"
    files = save(draw_sweep_figure(trials, ranges, title), folder / "sweep")
    files += [folder / name for name in ("trials.csv", "mattered.json", "best.json")]
    result = {"best": fields.encode(chosen), "trials": trials, "mattered": parts}
    changes = " ".join(f"{path}={value}" for path, value in best["values"].items())
    note = f"best: {changes}  (lengthwise train {folder / 'best.json'})"
    return print_files(args, files, build_trials_table(trials), "", build_importance_table(parts), note, **result)
