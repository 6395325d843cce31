"""Training and evaluating."""

from __future__ import annotations

import argparse
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from rich.table import Table

from lengthwise import catalog
from lengthwise.base import fields
from lengthwise.base.types import Kind, UsageError
from lengthwise.evaluation.anatomy import anatomy
from lengthwise.evaluation.scores import default_sizes, evaluate, parse_sizes
from lengthwise.recipe.recipe import Recipe, check_stopping
from lengthwise.recipe.stopping import After, Stopping
from lengthwise.report import Row, curves, latest, size_text
from lengthwise.report.tables import BLOCKS, anatomy_table, detail_table, map_table, score_table
from lengthwise.run import Run, Weights, load, runs_folder
from lengthwise.training.fleet import Fleet
from lengthwise.training.live import follow
from lengthwise.training.loop import choose_device, computing, train
from lengthwise.verbs.console import progress, say


def train_(args: argparse.Namespace) -> int:
    """Train a recipe, with one seed or several; then measure it."""
    recipe = recipe_of(args.recipe, args.changes)
    rules, plan = stoppings(args.stopping), _measurements(args, recipe)
    for rule in rules:
        check_stopping(recipe.layout, rule)  # now, not after hours of training
    recipes = seeds_of(recipe, args.seed, args.seeds)
    own_folder = Path(args.recipe) if Path(args.recipe).is_dir() and not args.changes and len(recipes) == 1 else None
    runs = [Run.of(recipe, own_folder) for recipe in recipes]
    if len(runs) > 1 and jobs_of(args) > 1:
        train_together(args, runs, lambda _: _passed_on(args))
    else:
        for one in runs:
            train(
                one.recipe,
                one.folder,
                device=args.device,
                threads=args.threads,
                save_every=args.save_every,
                quiet=args.quiet,
            )
            _measure(args, one, plan, rules)
    result = [{"run": str(run.folder), "about": run.about(), "scores": run.rows("scores")} for run in runs]
    where = "\n".join(f"[dim]{run.folder}[/]  {run.about()['wall_s']:.0f} s" for run in runs)
    return say(args, result, score_table(curves(runs)), where)


def evaluate_(args: argparse.Namespace) -> int:
    """Measure weights on fresh problems."""
    weights = load(folder_of(args.weights), choose_device(args.device))
    if args.lengths and args.grid:
        raise UsageError("give --lengths or --grid, not both")
    sizes = parse_sizes(args.grid or args.lengths) if args.grid or args.lengths else default_sizes(weights.recipe)
    seed = args.seed or 0
    folder = Path(folder_of(args.weights))
    run = Run.open(folder) if (folder / "metrics.jsonl").exists() else None
    rules = stoppings(args.stopping) + after(args.loops) or [weights.recipe.stopping]
    asked = {"samples": args.samples, "stopping": rules, "kind": kind_of(args), "seed": seed}
    rows = _measured(args, run, rules) if args.grid and run else []
    known = Counter(tuple(row["sizes"]) for row in rows)
    missing = [size for size in sizes if known[weights.recipe.sizes(size)] < len(rules)]
    with computing(args.threads), progress.status("") as status:
        for number, score in enumerate(evaluate(weights, missing, **asked), 1):
            status.update(f"measured {size_text(score.sizes)}: {number} of {len(missing) * len(rules)}")
            rows.append(score.row() | {"seed": seed})
            if run:
                run.append("scores", rows[-1])
    top = weights.recipe.lengths.top
    tables = (_maps(rows, top) if args.grid else []) or [detail_table(rows, top)]
    if not args.anatomy:
        return say(args, rows, *tables)
    parts = _anatomies(args, weights, run, sizes, rules[0])
    return say(args, {"scores": rows, "anatomy": parts}, *tables, "", anatomy_table(parts))


def _maps(rows: Sequence[Row], top: int) -> list[Table]:
    """Of a large map, a table of blocks for each rule; of a small one, none."""
    by_rule: dict[str, list[Row]] = {}
    for row in rows:
        by_rule.setdefault(row["stopping"], []).append(row)
    return [map_table(found, top) for found in by_rule.values() if len(found) > BLOCKS**2]


def after(loops: str | None) -> list[Stopping]:
    """A rule for each number of ``1,8,16``."""
    if not loops:
        return []
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", loops):
        raise UsageError(f"--loops: numbers from 1 up with commas, e.g. 1,8,16, not {loops!r}")
    return [After(int(count)) for count in loops.split(",")]


def _measured(args: argparse.Namespace, run: Run, rules: Sequence[Stopping]) -> list[Row]:
    """The cells of a grid that an earlier call has measured: they are not measured again."""
    names, cells = {rule.name for rule in rules}, set(parse_sizes(args.grid))
    asked = kind_of(args), args.samples, args.seed or 0
    return [
        row
        for row in latest(run.rows("scores"))
        if row["stopping"] in names and tuple(row["sizes"]) in cells
        if (row["problems"], row["count"], row["seed"]) == asked
    ]


def _anatomies(
    args: argparse.Namespace, weights: Weights, run: Run | None, sizes: Sequence[Any], rule: Stopping
) -> list[Row]:
    """How the same answers go wrong, under the first of the rules asked for."""
    asked = {"samples": args.samples, "stopping": rule, "kind": kind_of(args), "seed": args.seed or 0}
    rows = []
    with computing(args.threads), progress.status("") as status:
        for size in sizes:
            status.update(f"looking into answers at {size}")
            rows.append(anatomy(weights, size, **asked))
            if run:
                run.append("anatomy", rows[-1])
    return rows


def kind_of(args: argparse.Namespace) -> Kind:
    """Which problems are asked for, where they are of one kind."""
    kinds = _further(args)
    if len(kinds) > 1:
        raise UsageError("give --hard or --natural, not both")
    return kinds[0] if kinds else "uniform"


def _further(args: argparse.Namespace) -> list[Kind]:
    """The kinds that have an option of their own, of those asked for."""
    return [kind for kind in get_args(Kind)[1:] if getattr(args, kind)]


def recipe_of(name: str, changes: Sequence[str]) -> Recipe:
    """A recipe by name, or of a run, or from a JSON file."""
    path = Path(name)
    if path.is_dir():
        return Run.open(path).recipe.change(changes)
    if path.suffix == ".json":
        try:
            return Recipe.read(path.read_text()).change(changes)
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    return catalog.recipe(name, changes)


def seeds_of(recipe: Recipe, first: int | None, count: int) -> list[Recipe]:
    """Replicates that share neither weights nor problems."""
    if count < 1:
        raise UsageError(f"--seeds must be 1 or more, not {count}")
    if first is None and count == 1:
        return [recipe]
    start = recipe.seed if first is None else first
    return [replace(recipe, seed=seed, data_seed=seed) for seed in range(start, start + count)]


def _measurements(args: argparse.Namespace, recipe: Recipe) -> list[tuple[list[Any], int, Kind]]:
    """What to measure: sizes, how many problems per size, and which."""
    sizes = parse_sizes(args.lengths) if args.lengths else list(default_sizes(recipe))
    kinds: list[Kind] = ["uniform", *_further(args)]
    plan: list[tuple[list[Any], int, Kind]] = [(sizes, args.samples, kind) for kind in kinds]
    if args.curve:
        plan.append((parse_sizes(args.curve), args.curve_samples, "uniform"))
    return plan


def _passed_on(args: argparse.Namespace) -> list[str]:
    """The options of ``train`` that its processes are given too."""
    options = []
    for name in ("lengths", "samples", "curve", "curve_samples", "threads", "save_every"):
        if getattr(args, name) is not None:
            options += [f"--{name.replace('_', '-')}", str(getattr(args, name))]
    for rule in args.stopping:
        options += ["--stopping", rule]
    return options + [f"--{kind}" for kind in _further(args)]


def jobs_of(args: argparse.Namespace) -> int:
    """Processes at a time."""
    if args.jobs is not None and args.jobs < 1:
        raise UsageError(f"--jobs must be 1 or more, not {args.jobs}")
    return min(2, os.cpu_count() or 1) if args.jobs is None else args.jobs


def train_together(args: argparse.Namespace, runs: list[Run], options: Callable[[Run], Sequence[str]]) -> None:
    """Train and measure runs in processes of their own; ``options`` are what ``train`` is told of each."""
    shared = ["--device", args.device, *(word for name in vars(args)["import"] for word in ("--import", name))]
    with Fleet(runs, lambda run: [*shared, *options(run)], jobs=jobs_of(args)) as fleet:
        follow(fleet, runs, progress, quiet=args.quiet)


FURTHER = 1000  # problems per size, at most, for stopping rules after the first: those look at many more loops


def _measure(
    args: argparse.Namespace, run: Run, plan: Sequence[tuple[Sequence[Any], int, Kind]], rules: Sequence[Stopping]
) -> None:
    """Evaluate a run where it has not been, so that a command given again goes on where it was cut."""
    weights, recipe = run.weights(choose_device(args.device)), run.recipe
    rules = rules or [recipe.stopping]
    known: dict[tuple[Any, ...], int] = {}
    for row in run.rows("scores"):
        if row["seed"] == 0:
            key = tuple(row["sizes"]), row["problems"], row["stopping"]
            known[key] = max(known.get(key, 0), row["count"])
    for sizes, samples, kind in plan:
        missing: dict[tuple[tuple[Stopping, ...], int], list[tuple[int, ...]]] = {}
        for at in dict.fromkeys(recipe.sizes(size) for size in sizes):
            lacking: dict[int, tuple[Stopping, ...]] = {}  # rules on equally many problems share a run of the model
            for rule in rules if samples == args.samples else rules[:1]:
                count = samples if rule is rules[0] else min(samples, FURTHER)
                if known.get((at, kind, rule.name), 0) < count:
                    lacking[count] = (*lacking.get(count, ()), rule)
            for count, asked in lacking.items():
                missing.setdefault((asked, count), []).append(at)
        for (asked, count), where in missing.items():
            with computing(args.threads):
                for score in evaluate(weights, where, samples=count, stopping=asked, kind=kind):
                    run.append("scores", score.row() | {"seed": 0})
                    known[score.sizes, kind, score.stopping] = count


def stoppings(texts: Sequence[str]) -> list[Stopping]:
    """Stopping rules as they are typed. UsageError where one is wrong."""
    return [fields.decode(Stopping, fields.parse(text, "--stopping"), "--stopping") for text in texts]


def folder_of(name: str) -> str:
    """A run may be called by its folder's name alone."""
    inside = runs_folder() / name
    return str(inside) if not Path(name).is_dir() and inside.is_dir() else name
