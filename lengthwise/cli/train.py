"""The command ``train``: train a recipe, then measure it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from rich.text import Text

from lengthwise.base.errors import Diverged
from lengthwise.base.files import is_folder
from lengthwise.base.progress import Progress
from lengthwise.base.quantities import duration
from lengthwise.base.ranges import NotNegative, Seed, Size, Threads
from lengthwise.base.results import AnySize
from lengthwise.base.score_rows import ALONE, trained_on
from lengthwise.base.types import Kind, UsageError
from lengthwise.cli import console
from lengthwise.cli.console import print_result
from lengthwise.cli.forecast import announce_scores, forecast
from lengthwise.cli.options import (
    OF_THE_CALL,
    check_stack,
    further_kinds,
    jobs_of,
    local_device,
    parse_engine,
    parse_sizes,
    recipe_of,
    rules_of,
    seeds_of,
    to_words,
)
from lengthwise.cli.shared import MeasurementOptions, RecipeOptions, Texts, TrainingOptions
from lengthwise.evaluation.curves import follow_scores, follow_sizes
from lengthwise.evaluation.families import evaluate_families, rules_of_families, samples_of_family, short_sizes
from lengthwise.evaluation.scores import evaluate
from lengthwise.experiment.data import default_sizes
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.stopping import Stopping
from lengthwise.jobs.launchers import Launcher, Local
from lengthwise.jobs.live import follow
from lengthwise.jobs.pool import JobPool
from lengthwise.report import curves
from lengthwise.report.tables import score_table
from lengthwise.runs.folder import DIVERGED
from lengthwise.runs.run import Run, choose_device, read_recipe, weights_folder
from lengthwise.runs.tracking import check, send_to_trackers
from lengthwise.training.arithmetic import computation_settings
from lengthwise.training.lineage import continue_from
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
    """Train a recipe, or go on with a run; then evaluate it."""

    seed: Seed | None = None  # N: seed of weights and problems (default: the recipe's)
    # train all seeds together in one process, their weights stacked; by default on a single GPU that has the memory,
    # unless --jobs is given
    stack: bool = False
    no_stack: bool = False  # train each seed by itself on a GPU too
    samples: Size = 1000  # N: fresh problems per length (default: 1000)
    curve: str | None = None  # SIZES: further lengths, measured on fewer problems
    curve_samples: Size = 128  # N: problems per length there (default: 128)
    far_families: bool = False  # with --families: beyond twice the training length too
    threads: Threads = 1  # N: CPU threads (default: 1, best for small models)
    save_every: NotNegative = 60.0  # S: seconds between checkpoints (default: 60)
    keep_state: bool = False  # keep the optimizer's state at the end of training, so that --from can go on to the bit
    track: Texts = ()  # NAME: send the run to tensorboard, trackio or wandb too; may be given several times
    from_: str | None = None  # RUN: go on from its weights, with changed fields, e.g. steps=600


def run(args: Options) -> int:
    """Train a recipe with one or several seeds; then measure it."""
    recipe = recipe_of(args.recipe, args.changes) if args.from_ is None else _continued_recipe(args, args.from_)
    check(args.track)
    check_stack(stack=args.stack, compile=args.compile)
    if args.stack and args.no_stack:
        raise UsageError("--stack and --no-stack exclude each other: omit one of them")
    on = parse_engine(args)
    plan = _plan_measurements(args, recipe)
    recipes = seeds_of(recipe, args.seed, args.seeds)
    if args.dry_run:
        return forecast(args, [recipes], f"{recipe.name}: nothing is trained")
    if not args.stack:  # --stack checks the engine itself
        on.check()
    itself = is_folder(Path(args.recipe)) and [one.id for one in recipes] == [recipe.id]  # a run's folder was named
    own_folder = Path(args.recipe) if itself and not args.changes else None
    if len(recipes) > 1 and process_count() > 1:
        raise UsageError(f"{process_count()} processes train one run together: omit --seeds, or do not use torchrun")
    if args.changes and is_folder(Path(args.recipe)) and not is_follower():
        _warn_of_new_run(Path(args.recipe), recipes)
    if is_follower():
        _train(args, Run.locate(recipes[0]) if own_folder is None else Run(own_folder, recipe), Progress(quiet=True))
        return 0
    stack = args.stack or _prefers_stack(args, recipes, on)
    if stack:
        _train_stacked(args, recipes, on)
    elif own_folder is None and not (Run.locate(recipes[0]).folder / "config.json").exists():
        _rehearse(args, recipe)
    runs = [Run.of(recipe, own_folder) for recipe in recipes]
    if not stack and ((len(runs) > 1 and jobs_of(args.jobs) > 1) or not isinstance(on, Local)):
        return _train_in_processes(args, runs, on)
    lost = [one for one in runs if stack and not one.done]
    for one in runs:
        if one not in lost:
            try:
                _train_here(args, one, plan)
            except Diverged:
                if len(runs) == 1:
                    raise
                lost.append(one)
    if len(lost) < len(runs):
        _print_runs(args, runs)
    if lost:
        raise Diverged(f"{len(lost)} of {len(runs)} seeds diverged: {', '.join(str(one.folder) for one in lost)}")
    return 0


def _continued_recipe(args: Options, parent: str) -> Recipe:
    """Return the recipe of a training that continues a run: that run's own, unless another is named."""
    if "=" in args.recipe:  # not a name, but a change of the run's own recipe
        recipe = read_recipe(weights_folder(parent)).change([args.recipe, *args.changes])
    else:
        recipe = recipe_of(args.recipe, args.changes)
    recipe = continue_from(parent, recipe)
    if recipe.parent and not recipe.parent.state and not args.quiet:
        why = "it kept no state (--keep-state), or its optimizer is another"
        console.err.print(
            f"lengthwise: goes on from the weights of {parent} at step {recipe.start:,}; the optimizer starts "
            f"anew: {why}",
            highlight=False,
            markup=False,
            soft_wrap=True,
        )
    return recipe


def _warn_of_new_run(folder: Path, recipes: Sequence[Recipe]) -> None:
    """Warn that changing a run's recipe starts another run, which does not continue from that run's weights."""
    old = Run.open(folder)
    new = [Run.locate(one).folder for one in recipes if one.id != old.recipe.id]
    new = [path for path in new if not (path / "config.json").exists()]
    if not new:
        return
    rest = f"to go on from its weights: lengthwise train --from {folder} …"
    if not old.done:
        rest = f"to finish it, leave the changes out: lengthwise train {folder}"
    console.err.print(
        f"lengthwise: with these changes {folder} is another recipe, trained from step 0 in {new[0]}"
        f"{', …' * (len(new) > 1)}; {folder} stays as it is: {rest}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )


def _train_in_processes(args: Options, runs: Sequence[Run], on: Launcher) -> int:
    """Train and measure in separate processes, on this machine or elsewhere."""
    options = to_words(args, OF_THE_CALL | {"recipe", "changes", "from_", "seed", "stack", "no_stack"})
    with JobPool(runs, lambda _: options, jobs=jobs_of(args.jobs), on=on) as fleet:
        follow(fleet, runs, console.err, quiet=args.quiet)
    left = [one for one in runs if one.folder not in fleet.failed or one.diverged]
    if any(one.done for one in left) or not fleet.failed:
        _print_runs(args, left)
    fleet.check()
    return 0


def _train_here(args: Options, run: Run, plan: Sequence[Measurement]) -> None:
    """Train and measure what is missing, in this process."""
    with run.locked(wait=args.wait), Progress(quiet=args.quiet) as progress:
        _train(args, run, progress)
        with send_to_trackers(run, args.track, progress.note):
            _measure(args, run, plan, progress)
            if args.families:
                _measure_families(args, run, plan[0].sizes, plan[0].rules, progress)
        run.clear_failure()


def _print_runs(args: Options, runs: Sequence[Run]) -> None:
    result = [{"run": str(run.folder), "about": run.about(), "scores": run.rows("scores")} for run in runs]
    where = [Text.assemble((str(run.folder), "dim"), f"  {_describe_time(run)}") for run in runs]
    print_result(args, result, score_table(curves(runs)), *where)


def _describe_time(run: Run) -> str:
    if not run.done:
        return DIVERGED
    about = run.about()
    matmul = about.get("matmul", "fp32")
    seconds = duration(about["wall_s"]) if "wall_s" in about else "nobody knows in what time"
    return seconds + ("" if matmul == "fp32" else f", products in {matmul}")


def _plan_measurements(args: Options, recipe: Recipe) -> list[Measurement]:
    """Return all measurements. Raises UsageError for invalid options now, not after hours of training."""
    rules = rules_of(args, recipe)
    sizes = parse_sizes(args.lengths) if args.lengths else default_sizes(recipe)
    kinds: list[Kind] = ["uniform", *further_kinds(args)]
    plan = [Measurement(sizes, args.samples, kind, rules) for kind in kinds]
    if args.curve:
        only = rules if args.curve_samples == args.samples else rules[:1]
        plan.append(Measurement(parse_sizes(args.curve), args.curve_samples, "uniform", only))
    for part in plan:
        announce_scores(recipe, part.sizes, part.samples, part.rules, part.kind)
    return plan


def _rehearse(args: Options, recipe: Recipe) -> None:
    """Raise UsageError for what cannot work, before anything is written."""
    device, matmul = local_device(args)
    rehearse(recipe, device, matmul)
    if args.compile and isinstance(parse_engine(args), Local):
        with Progress(quiet=args.quiet) as progress, computation_settings(args.threads):
            prepare_steps(Trainer(recipe, device, matmul=args.matmul, compile=True), progress)


def _train(args: Options, run: Run, progress: Progress) -> None:
    how = _training_arguments(args) | {
        "compile": args.compile,
        "graphs": not args.no_graphs,
        "keep_state": args.keep_state,
    }
    train(run.recipe, run.folder, progress=progress, **how)


def _prefers_stack(args: Options, recipes: Sequence[Recipe], on: Launcher) -> bool:
    """Return whether seeds train as a stack without --stack."""
    if args.no_stack or args.compile or args.keep_state or args.jobs is not None or not isinstance(on, Local):
        return False
    return len(recipes) > 1 and prefers_stack(recipes, choose_device(args.device), args.matmul)


def _train_stacked(args: Options, recipes: Sequence[Recipe], on: Launcher) -> None:
    if args.keep_state:
        raise UsageError("--stack does not support --keep-state: omit one of them")
    if args.jobs is not None or not isinstance(on, Local):
        raise UsageError("--stack trains all seeds in this process: omit --jobs and --on")
    with Progress(quiet=args.quiet) as progress:
        how = _training_arguments(args) | {"graphs": not args.no_graphs}
        train_stacked(recipes, progress=progress, wait=args.wait, **how)


def _training_arguments(args: Options) -> dict[str, Any]:
    """Return the training options that are not part of a recipe."""
    names = ("device", "threads", "save_every", "allow_divergence", "matmul", "track")
    return {name: getattr(args, name) for name in names}


def _measure(args: Options, run: Run, plan: Sequence[Measurement], progress: Progress) -> None:
    """Run the measurements that a run still lacks, so that a repeated command resumes where it was interrupted."""
    weights = run.weights(choose_device(args.device))
    for asked in plan:
        for sizes, samples, rules in _missing_measurements(run, asked):
            what = f"{run.recipe.name}: exact match, {asked.kind}"
            with computation_settings(args.threads):
                scores = partial(evaluate, weights, sizes, samples=samples, stopping=rules, kind=asked.kind)
                for score in follow_scores(scores, progress, run.recipe, sizes, what=what, rules=len(rules)):
                    run.append("scores", score.row() | {"seed": 0})


def _missing_measurements(
    run: Run, asked: Measurement
) -> Iterator[tuple[list[tuple[int, ...]], int, Sequence[Stopping]]]:
    """Yield the parts of a measurement that the run's scores lack; rules on the same number of problems share an
    evaluation."""
    known = run.measured()
    missing: dict[tuple[tuple[Stopping, ...], int], list[tuple[int, ...]]] = {}
    for at in dict.fromkeys(run.recipe.sizes(size) for size in asked.sizes):
        lacking: dict[int, tuple[Stopping, ...]] = {}
        for rule in asked.rules:
            count = asked.samples if rule is asked.rules[0] else min(asked.samples, FURTHER)
            if known.get((at, asked.kind, rule.name), 0) < count:
                lacking[count] = (*lacking.get(count, ()), rule)
        for count, rules in lacking.items():
            missing.setdefault((rules, count), []).append(at)
    for (rules, count), sizes in missing.items():
        yield sizes, count, rules


def _measure_families(
    args: Options, run: Run, sizes: Sequence[AnySize], extra_rules: Sequence[Stopping], progress: Progress
) -> None:
    """Measure what a trained run lacks: families at the shortest sizes, and at the requested sizes up to twice the
    training length on each axis (with ``--far-families``, at all of them), except those of a map; under the recipe's
    own rule and ``extra_rules``. A size is measured again if more problems of each family are requested than before.
    """
    weights, recipe, count = run.weights(choose_device(args.device)), run.recipe, samples_of_family(args.samples)
    rules = rules_of_families(list(dict.fromkeys([recipe.stopping, *extra_rules])))
    known = {
        (at, stopping)
        for (at, problems, stopping), done in run.measured().items()
        if problems not in ALONE and (done >= count or problems == "every")
    }
    wanted = [
        *short_sizes(recipe, count),
        *(
            size
            for size in _drop_map_sizes(sizes)
            if args.far_families or trained_on(recipe.sizes(size), [BEYOND * top for top in recipe.tops])
        ),
    ]
    missing = {
        at: lacking
        for at in map(recipe.sizes, wanted)
        if (lacking := [rule for rule in rules if (at, rule.name) not in known])
    }
    with computation_settings(args.threads):
        # One size at a time, so that a repeated command resumes where it was interrupted.
        for at in follow_sizes(progress, recipe, list(missing), what=f"{recipe.name}: families"):
            found = evaluate_families(weights, [at], samples=count, stopping=missing[at])
            run.append("scores", *(score.row() | {"seed": 0} for score in found))


def _drop_map_sizes(sizes: Sequence[AnySize]) -> Sequence[AnySize]:
    """Return the sizes without those of a map."""
    alone = [size for size in sizes if isinstance(size, int)]
    return sizes if len(sizes) - len(alone) <= LISTED else alone
