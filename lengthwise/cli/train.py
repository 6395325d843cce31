"""The command ``train``: train a recipe, then measure it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.text import Text

from lengthwise.api import Recipe, UsageError
from lengthwise.base.errors import Diverged
from lengthwise.base.formatting import format_duration
from lengthwise.base.progress import Progress
from lengthwise.base.ranges import NotNegative, Seed, ThreadCount
from lengthwise.cli import options
from lengthwise.cli.console import err, print_result, warn
from lengthwise.cli.forecast import announce_evaluation, forecast
from lengthwise.cli.measurements import Measurement, has_all_results, plan_measurements, run_measurements
from lengthwise.cli.shared import PlanOptions, RecipeOptions, Texts, TrainingOptions
from lengthwise.jobs.launchers import Launcher, Local
from lengthwise.jobs.pool import JobPool, show_progress
from lengthwise.report import curves
from lengthwise.report.tables import build_score_table
from lengthwise.runs.folder import DIVERGED
from lengthwise.runs.run import Run, choose_device, find_weights_folder, read_recipe
from lengthwise.runs.tracking import check_trackers, send_to_trackers
from lengthwise.training.arithmetic import computation_settings
from lengthwise.training.checkpoint import continue_from
from lengthwise.training.loop import prepare_steps, train
from lengthwise.training.processes import count_processes, is_follower
from lengthwise.training.stacked import prefers_stack, train_stacked
from lengthwise.training.trainer import Trainer, try_training


@dataclass(kw_only=True)
class Options(TrainingOptions, PlanOptions, RecipeOptions):
    """Train a recipe, or continue a run; then evaluate it."""

    seed: Seed | None = None  # N: seed of weights and problems (default: the recipe's)
    # train all seeds together in one process, their weights stacked; by default on a single GPU that has the memory,
    # unless --jobs is given
    stack: bool = False
    no_stack: bool = False  # train seeds separately on a GPU too
    threads: ThreadCount = 1  # N: CPU threads (default: 1, best for small models)
    save_every: NotNegative = 60.0  # S: seconds between checkpoints (default: 60)
    keep_state: bool = False  # keep the optimizer's state after training, so that --from can continue bit for bit
    track: Texts = ()  # NAME: send the run to tensorboard, trackio or wandb too; may be given several times
    from_: str | None = None  # RUN: continue from this run's weights, with changed fields, e.g. steps=600


def run(args: Options) -> int:
    """Train a recipe with one or several seeds; then measure it."""
    recipe = _find_recipe(args)
    check_trackers(args.track)
    if args.stack and args.no_stack:
        raise UsageError("--stack and --no-stack exclude each other: omit one of them")
    launcher = options.parse_launcher(args)
    plan = plan_measurements(args, recipe)
    for part in plan:
        announce_evaluation(recipe, part.sizes, part.samples, part.rules, part.kind)
    recipes = options.replicate_recipe(recipe, args.seed, args.seeds)
    if args.dry_run:
        return forecast(args, [recipes], f"{recipe.name}: nothing is trained")
    if not args.stack:  # --stack checks the engine itself
        launcher.check()
    named_folder = options.find_run_folder(args.recipe)
    own_folder = named_folder if [replicate.id for replicate in recipes] == [recipe.id] and not args.changes else None
    if len(recipes) > 1 and count_processes() > 1:
        raise UsageError(f"{count_processes()} processes train one run together: omit --seeds, or do not use torchrun")
    if args.changes and named_folder and not is_follower():
        _warn_of_new_run(named_folder, recipes)
    if is_follower():
        run = Run.locate(recipes[0]) if own_folder is None else Run(own_folder, recipe)
        _train_run(args, run, Progress(quiet=True))
        return 0
    in_processes = args.jobs is not None or not isinstance(launcher, Local)
    if args.stack and args.keep_state:
        raise UsageError("--stack does not support --keep-state: omit one of them")
    if args.stack and in_processes:
        raise UsageError("--stack trains all seeds in this process: omit --jobs and --on")
    stack = args.stack
    if not (stack or args.no_stack or args.compile or args.keep_state or in_processes or len(recipes) == 1):
        stack = prefers_stack(recipes, choose_device(args.device), args.matmul)
    with Progress(quiet=args.quiet) as progress:
        if own_folder is None and not (Run.locate(recipes[0]).folder / "config.json").exists():
            _check_before_writing(args, recipe, plan, launcher, progress)
        if stack:
            train_stacked(recipes, progress=progress, wait=args.wait, **_select_training_arguments(args))
    runs = [Run.of(recipe, own_folder) for recipe in recipes]
    if not stack and ((len(runs) > 1 and options.resolve_jobs(args.jobs) > 1) or not isinstance(launcher, Local)):
        return _train_in_processes(args, runs, launcher)
    diverged = [run for run in runs if stack and not run.done]
    for run in [run for run in runs if run not in diverged]:
        try:
            _train_and_measure(args, run, plan)
        except Diverged:
            if len(runs) == 1:
                raise
            diverged.append(run)
    if len(diverged) < len(runs):
        _print_runs(args, runs)
    if diverged:
        folders = ", ".join(str(run.folder) for run in diverged)
        raise Diverged(f"{len(diverged)} of {len(runs)} seeds diverged: {folders}")
    return 0


def _check_before_writing(
    args: Options, recipe: Recipe, plan: Sequence[Measurement], launcher: Launcher, progress: Progress
) -> None:
    """Raise UsageError, before any file is written, if this recipe cannot be trained or measured."""
    device, matmul = options.local_device(args)
    try_training(recipe, device, matmul, [size for measurement in plan for size in measurement.sizes])
    if args.compile and isinstance(launcher, Local):
        with computation_settings(args.threads):
            prepare_steps(Trainer(recipe, device, matmul=args.matmul, compile=True), progress)


def _find_recipe(args: Options) -> Recipe:
    """Return the recipe to train. With --from, it is the parent's recipe unless another is named."""
    if (parent := args.from_) is None:
        return options.find_recipe(args.recipe, args.changes)
    if "=" in args.recipe:  # not a name, but a change of the parent's recipe
        recipe = read_recipe(find_weights_folder(parent)).change([args.recipe, *args.changes])
    else:
        recipe = options.find_recipe(args.recipe, args.changes)
    recipe = continue_from(parent, recipe)
    if recipe.parent and not recipe.parent.state and not args.quiet:
        weights = f"the weights of {parent} at step {recipe.start:,}"
        warn(f"continues from {weights}, with a new optimizer state (the old one was not kept, or does not fit)")
    return recipe


def _warn_of_new_run(folder: Path, recipes: Sequence[Recipe]) -> None:
    """Warn that changing a run's recipe starts a new run, which does not continue from the old run's weights."""
    new = [Run.locate(recipe).folder for recipe in recipes if recipe.id != Run.open(folder).recipe.id]
    if new := [path for path in new if not (path / "config.json").exists()]:
        warn(f"with these changes {folder} is another recipe, trained from step 0 in {new[0]}; {folder} is not changed:"
             f" to continue from its weights: lengthwise train --from {folder} …")  # fmt: skip


def _train_in_processes(args: Options, runs: Sequence[Run], launcher: Launcher) -> int:
    own_options = {"recipe", "changes", "from_", "seed", "stack", "no_stack"}  # not for the training processes
    words = options.format_option_words(args, options.CALL_OPTIONS | own_options)
    pending = [run for run in runs if args.track or not has_all_results(args, run)]
    with JobPool(pending, lambda _: words, jobs=options.resolve_jobs(args.jobs), launcher=launcher) as pool:
        show_progress(pool, runs, err, quiet=args.quiet)
    finished = [run for run in runs if run.folder not in pool.failed or run.diverged]
    if any(run.done for run in finished) or not pool.failed:
        _print_runs(args, finished)
    pool.raise_failures()
    return 0


def _print_runs(args: Options, runs: Sequence[Run]) -> None:
    result, lines = [], []
    for run in runs:
        about = run.about()
        result.append({"run": str(run.folder), "about": about, "scores": run.rows("scores")})
        seconds = format_duration(about["wall_s"]) if "wall_s" in about else "unknown time"
        matmul = about.get("matmul", "fp32")
        time = seconds + f", products in {matmul}" * (matmul != "fp32") if run.done else DIVERGED
        lines.append(Text.assemble((str(run.folder), "dim"), f"  {time}"))
    has_scores = any(entry["scores"] for entry in result)  # none with --samples 0
    table = [build_score_table(curves(runs))] if has_scores else []
    print_result(args, result, *table, *lines)


def _train_run(args: Options, run: Run, progress: Progress) -> None:
    arguments = _select_training_arguments(args) | {"compile": args.compile, "keep_state": args.keep_state}
    train(run.recipe, run.folder, progress=progress, **arguments)


def _train_and_measure(args: Options, run: Run, plan: Sequence[Measurement]) -> None:
    with run.lock(wait=args.wait), Progress(quiet=args.quiet) as progress:
        _train_run(args, run, progress)
        with send_to_trackers(run, args.track, progress.note), computation_settings(args.threads):
            run_measurements(args, run, run.weights(choose_device(args.device)), plan, progress)
        run.clear_failure()


def _select_training_arguments(args: Options) -> dict[str, Any]:
    """Return the training options that are not part of a recipe."""
    names = ("device", "threads", "save_every", "allow_divergence", "matmul", "track")
    return {name: getattr(args, name) for name in names} | {"graphs": not args.no_graphs}
