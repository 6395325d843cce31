"""The command ``train``: train a recipe, then measure it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from rich.text import Text

from lengthwise.base.errors import Diverged
from lengthwise.base.formatting import duration_text
from lengthwise.base.progress import Progress
from lengthwise.base.ranges import NotNegative, Seed, Size, Threads
from lengthwise.base.results import AnySize
from lengthwise.base.score_rows import ALONE, within_training_sizes
from lengthwise.base.types import Kind, UsageError
from lengthwise.cli.console import err, print_result, warn
from lengthwise.cli.forecast import announce_evaluation, forecast
from lengthwise.cli.options import (
    CALL_OPTIONS,
    check_stack,
    choose_rules,
    find_recipe,
    find_run_folder,
    jobs_or_default,
    local_device,
    option_words,
    parse_launcher,
    parse_sizes,
    replicate_recipe,
    requested_extra_kinds,
)
from lengthwise.cli.shared import MeasurementOptions, RecipeOptions, Texts, TrainingOptions
from lengthwise.evaluation.families import (
    family_rules,
    family_samples,
    scores_with_progress,
    short_sizes,
    sizes_without_scores,
)
from lengthwise.experiment.data import default_sizes
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.stopping import Stopping
from lengthwise.jobs.launchers import Launcher, Local
from lengthwise.jobs.pool import JobPool, show_progress
from lengthwise.report import curves
from lengthwise.report.tables import score_table
from lengthwise.runs.folder import DIVERGED
from lengthwise.runs.run import Run, choose_device, read_recipe, weights_folder
from lengthwise.runs.tracking import check_trackers, send_to_trackers
from lengthwise.training.arithmetic import computation_settings
from lengthwise.training.checkpoint import continue_from
from lengthwise.training.loop import prepare_steps, train
from lengthwise.training.processes import is_follower, process_count
from lengthwise.training.stacked import prefers_stack, train_stacked
from lengthwise.training.trainer import Trainer, rehearse

BEYOND = 2  # times the training length; beyond it, families would dominate the cost
LISTED = 8  # maximum number of sizes with several axes; more form a map, where families would dominate the cost
FURTHER = 1000  # maximum problems per size for stopping rules after the first, which may run many more loops


class Measurement(NamedTuple):
    """What to measure: sizes, number and kind of problems, and stopping rules."""

    sizes: Sequence[AnySize]
    samples: int
    kind: Kind
    rules: Sequence[Stopping]


@dataclass(kw_only=True)
class Options(TrainingOptions, MeasurementOptions, RecipeOptions):
    """Train a recipe, or continue a run; then evaluate it."""

    seed: Seed | None = None  # N: seed of weights and problems (default: the recipe's)
    # train all seeds together in one process, their weights stacked; by default on a single GPU that has the memory,
    # unless --jobs is given
    stack: bool = False
    no_stack: bool = False  # train seeds separately on a GPU too
    samples: Size = 1000  # N: fresh problems per length (default: 1000)
    curve: str | None = None  # SIZES: further lengths, measured on fewer problems
    curve_samples: Size = 128  # N: problems per length of the curve (default: 128)
    far_families: bool = False  # with --families: beyond twice the training length too
    threads: Threads = 1  # N: CPU threads (default: 1, best for small models)
    save_every: NotNegative = 60.0  # S: seconds between checkpoints (default: 60)
    keep_state: bool = False  # keep the optimizer's state after training, so that --from can continue bit for bit
    track: Texts = ()  # NAME: send the run to tensorboard, trackio or wandb too; may be given several times
    from_: str | None = None  # RUN: continue from its weights, with changed fields, e.g. steps=600


def run(args: Options) -> int:
    """Train a recipe with one or several seeds; then measure it."""
    recipe = find_recipe(args.recipe, args.changes) if args.from_ is None else _recipe_to_continue(args, args.from_)
    check_trackers(args.track)
    check_stack(stack=args.stack, compile=args.compile)
    if args.stack and args.no_stack:
        raise UsageError("--stack and --no-stack exclude each other: omit one of them")
    on = parse_launcher(args)
    plan = _plan_measurements(args, recipe)
    recipes = replicate_recipe(recipe, args.seed, args.seeds)
    if args.dry_run:
        return forecast(args, [recipes], f"{recipe.name}: nothing is trained")
    if not args.stack:  # --stack checks the engine itself
        on.check()
    named = find_run_folder(args.recipe)
    own_folder = named if [one.id for one in recipes] == [recipe.id] and not args.changes else None
    if len(recipes) > 1 and process_count() > 1:
        raise UsageError(f"{process_count()} processes train one run together: omit --seeds, or do not use torchrun")
    if args.changes and named and not is_follower():
        _warn_of_new_run(named, recipes)
    if is_follower():
        run = Run.locate(recipes[0]) if own_folder is None else Run(own_folder, recipe)
        _train_run(args, run, Progress(quiet=True))
        return 0
    stack = _uses_stack(args, recipes, on)
    with Progress(quiet=args.quiet) as progress:
        if own_folder is None and not (Run.locate(recipes[0]).folder / "config.json").exists():
            _rehearse(args, recipe, plan, progress)
        if stack:
            how = _training_arguments(args) | {"graphs": not args.no_graphs}
            train_stacked(recipes, progress=progress, wait=args.wait, **how)
    runs = [Run.of(recipe, own_folder) for recipe in recipes]
    if not stack and ((len(runs) > 1 and jobs_or_default(args.jobs) > 1) or not isinstance(on, Local)):
        return _train_in_processes(args, runs, on)
    lost = [one for one in runs if stack and not one.done]
    for one in runs:
        if one not in lost:
            try:
                _train_in_this_process(args, one, plan)
            except Diverged:
                if len(runs) == 1:
                    raise
                lost.append(one)
    if len(lost) < len(runs):
        _print_runs(args, runs)
    if lost:
        raise Diverged(f"{len(lost)} of {len(runs)} seeds diverged: {', '.join(str(one.folder) for one in lost)}")
    return 0


def _recipe_to_continue(args: Options, parent: str) -> Recipe:
    """Return the recipe with which to continue a run: the run's own recipe, unless another is named."""
    if "=" in args.recipe:  # not a name, but a change of the run's own recipe
        recipe = read_recipe(weights_folder(parent)).change([args.recipe, *args.changes])
    else:
        recipe = find_recipe(args.recipe, args.changes)
    recipe = continue_from(parent, recipe)
    if recipe.parent and not recipe.parent.state and not args.quiet:
        why = "its optimizer state was not kept (--keep-state) or does not fit"
        warn(f"continues from the weights of {parent} at step {recipe.start:,}; the optimizer starts anew: {why}")
    return recipe


def _warn_of_new_run(folder: Path, recipes: Sequence[Recipe]) -> None:
    """Warn that changing a run's recipe starts another run, which does not continue from that run's weights."""
    old = Run.open(folder)
    new = [Run.locate(one).folder for one in recipes if one.id != old.recipe.id]
    new = [path for path in new if not (path / "config.json").exists()]
    if not new:
        return
    advice = f"to continue from its weights: lengthwise train --from {folder} …"
    if not old.done:
        advice = f"to finish it, omit the changes: lengthwise train {folder}"
    warn(f"with these changes {folder} is another recipe, trained from step 0 in {new[0]}{', …' * (len(new) > 1)}; "
         f"{folder} is not changed: {advice}")  # fmt: skip


def _train_in_processes(args: Options, runs: Sequence[Run], launcher: Launcher) -> int:
    options = option_words(args, CALL_OPTIONS | {"recipe", "changes", "from_", "seed", "stack", "no_stack"})
    with JobPool(runs, lambda _: options, jobs=jobs_or_default(args.jobs), launcher=launcher) as fleet:
        show_progress(fleet, runs, err, quiet=args.quiet)
    left = [one for one in runs if one.folder not in fleet.failed or one.diverged]
    if any(one.done for one in left) or not fleet.failed:
        _print_runs(args, left)
    fleet.check()
    return 0


def _train_in_this_process(args: Options, run: Run, plan: Sequence[Measurement]) -> None:
    with run.lock(wait=args.wait), Progress(quiet=args.quiet) as progress:
        _train_run(args, run, progress)
        with send_to_trackers(run, args.track, progress.note), computation_settings(args.threads):
            _run_measurements(args, run, plan, progress)
            if args.families:
                _measure_families(args, run, plan[0].sizes, plan[0].rules, progress)
        run.clear_failure()


def _print_runs(args: Options, runs: Sequence[Run]) -> None:
    result, where = [], []
    for run in runs:
        about = run.about()
        result.append({"run": str(run.folder), "about": about, "scores": run.rows("scores")})
        seconds = duration_text(about["wall_s"]) if "wall_s" in about else "unknown time"
        matmul = about.get("matmul", "fp32")
        time = seconds + f", products in {matmul}" * (matmul != "fp32") if run.done else DIVERGED
        where.append(Text.assemble((str(run.folder), "dim"), f"  {time}"))
    print_result(args, result, score_table(curves(runs)), *where)


def _plan_measurements(args: Options, recipe: Recipe) -> list[Measurement]:
    """Return all measurements. Raises UsageError for invalid options now, not after hours of training."""
    rules = choose_rules(args, recipe)
    sizes = parse_sizes(args.lengths) if args.lengths else default_sizes(recipe)
    kinds: list[Kind] = ["uniform", *requested_extra_kinds(args)]
    plan = [Measurement(sizes, args.samples, kind, rules) for kind in kinds]
    if args.curve:
        only = rules if args.curve_samples == args.samples else rules[:1]
        plan.append(Measurement(parse_sizes(args.curve), args.curve_samples, "uniform", only))
    for part in plan:
        announce_evaluation(recipe, part.sizes, part.samples, part.rules, part.kind)
    return plan


def _uses_stack(args: Options, recipes: Sequence[Recipe], launcher: Launcher) -> bool:
    """Return whether seeds train as a stack: on request, or if a stack is faster. Raises UsageError for options that
    --stack does not support."""
    in_processes = args.jobs is not None or not isinstance(launcher, Local)
    if args.stack and args.keep_state:
        raise UsageError("--stack does not support --keep-state: omit one of them")
    if args.stack and in_processes:
        raise UsageError("--stack trains all seeds in this process: omit --jobs and --on")
    if args.no_stack or args.compile or args.keep_state or in_processes:
        return False
    return args.stack or (len(recipes) > 1 and prefers_stack(recipes, choose_device(args.device), args.matmul))


def _rehearse(args: Options, recipe: Recipe, plan: Sequence[Measurement], progress: Progress) -> None:
    """Raise UsageError for a training or a measurement that cannot work, before anything is written."""
    device, matmul = local_device(args)
    rehearse(recipe, device, matmul, [size for part in plan for size in part.sizes])
    if args.compile and isinstance(parse_launcher(args), Local):
        with computation_settings(args.threads):
            prepare_steps(Trainer(recipe, device, matmul=args.matmul, compile=True), progress)


def _train_run(args: Options, run: Run, progress: Progress) -> None:
    how = _training_arguments(args) | {
        "compile": args.compile,
        "graphs": not args.no_graphs,
        "keep_state": args.keep_state,
    }
    train(run.recipe, run.folder, progress=progress, **how)


def _training_arguments(args: Options) -> dict[str, Any]:
    """Return the training options that are not part of a recipe."""
    names = ("device", "threads", "save_every", "allow_divergence", "matmul", "track")
    return {name: getattr(args, name) for name in names}


def _run_measurements(args: Options, run: Run, plan: Sequence[Measurement], progress: Progress) -> None:
    """Measure only where a run has no scores yet, so that a repeated command resumes where it was interrupted."""
    weights, recipe = run.weights(choose_device(args.device)), run.recipe
    for asked in plan:
        counts = {
            rule: asked.samples if rule is asked.rules[0] else min(asked.samples, FURTHER) for rule in asked.rules
        }
        sizes = dict.fromkeys(map(recipe.sizes, asked.sizes))
        for count in dict.fromkeys(counts.values()):  # rules on the same number of problems share an evaluation
            rules = [rule for rule in asked.rules if counts[rule] == count]
            known = {
                (at, rule)
                for (at, problems, rule), done in run.measured_counts().items()
                if problems == asked.kind and done >= count
            }
            for missing, lacks in sizes_without_scores(recipe, sizes, rules, known).items():
                what, options = f"{recipe.name}: exact match, {asked.kind}", {"samples": count, "kind": asked.kind}
                for score in scores_with_progress(weights, lacks, missing, progress, label=what, **options):
                    run.append("scores", score.row() | {"seed": 0})


def _measure_families(
    args: Options, run: Run, sizes: Sequence[AnySize], extra_rules: Sequence[Stopping], progress: Progress
) -> None:
    """Measure families where a trained run has no scores yet: at the shortest sizes, and at the requested sizes up to
    twice the training length on each axis (with ``--far-families``, at all of them), except those of a map; with the
    recipe's stopping rule and ``extra_rules``. A size is measured again if more problems are requested than before.
    """
    weights, recipe, count = run.weights(choose_device(args.device)), run.recipe, family_samples(args.samples)
    rules = family_rules(list(dict.fromkeys([recipe.stopping, *extra_rules])))
    alone = [size for size in sizes if isinstance(size, int)]
    shown = sizes if len(sizes) - len(alone) <= LISTED else alone
    reach = [BEYOND * top for top in recipe.tops]
    wanted = [size for size in shown if args.far_families or within_training_sizes(recipe.sizes(size), reach)]
    wanted = [*dict.fromkeys(map(recipe.sizes, [*short_sizes(recipe, count), *wanted]))]
    known = {
        (at, rule)
        for (at, problems, rule), done in run.measured_counts().items()
        if problems not in ALONE and (done >= count or problems == "every")
    }
    for missing, lacks in sizes_without_scores(recipe, wanted, rules, known).items():
        what = f"{recipe.name}: families"
        found = scores_with_progress(weights, lacks, missing, progress, label=what, families=True, samples=count)
        # Saved per complete size, so that a repeated command resumes where it was interrupted.
        for _, of_size in groupby(found, lambda score: score.sizes):
            run.append("scores", *(score.row() | {"seed": 0} for score in of_size))
