"""Forecast the cost of training and evaluation on each device and engine, before they start."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from lengthwise.base.formatting import format_bytes, format_duration
from lengthwise.base.progress import Progress
from lengthwise.base.results import AnySize
from lengthwise.base.score_rows import Row
from lengthwise.base.types import Kind, UsageError
from lengthwise.cli.console import announce_duration, print_result
from lengthwise.cli.options import parse_launcher, resolve_jobs
from lengthwise.cli.shared import TrainingOptions
from lengthwise.experiment.data import check_test_problems
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.resources import estimate_evaluation
from lengthwise.experiment.stopping import Stopping
from lengthwise.jobs.launchers import Local
from lengthwise.jobs.ray_cluster import Ray
from lengthwise.jobs.slurm import Slurm
from lengthwise.report.fitted_table import FittedTable
from lengthwise.runs.run import Run
from lengthwise.training.cost import look_up_cost, measure_cost, time_gpu_step

COST_SOURCES = {  # the sources of costs, each with an explanation
    "measured": "steps were timed on this machine just now; right within a factor of two under a similar load",
    "stored": "steps were timed on another machine for this version; --measure times some here",
    "estimated": "from the sizes of model and rows; right within a small factor",
}


def announce_evaluation(
    recipe: Recipe, sizes: Sequence[AnySize], samples: int, rules: Sequence[Stopping], kind: Kind = "uniform"
) -> None:
    """Print the estimated duration of an evaluation if it is over a minute. Raises UsageError if this machine has too
    little memory, or the task has no problems of these sizes and this kind."""
    description = f"measuring {len(sizes)} size{'s' * (len(sizes) != 1)}"
    estimate = estimate_evaluation(recipe, sizes, samples, rules)
    estimate.check(description)  # first, since drawing a problem of each size may need much memory
    check_test_problems(recipe, sizes, kind)
    announce_duration(description, estimate)


def forecast(
    args: TrainingOptions,
    plan: Sequence[Sequence[Recipe]],
    title: str,
    batch_size: int | None = None,
    points: Sequence[Mapping[str, str]] = (),
) -> int:
    """Print the cost of a plan, in which each entry is a recipe with all its seeds; ``points`` are the values that a
    sweep gives each entry, by field. Costs are stored or estimated; with ``--measure``, some steps are timed, on
    batches of ``batch_size`` rows if it is not None."""
    gpu = args.measure and torch.cuda.is_available()
    swept = list(points[0]) if points else []
    heads = (*(swept or ["recipe"]), "seeds", "to train", "operations", "memory", "CPU each", *["GPU each"] * gpu)
    table, recipe_rows = FittedTable(*heads, title=title), []
    with Progress(quiet=args.quiet or not args.measure) as progress:
        line = progress.add_line("estimating costs", len(plan))
        for number, seeds in enumerate(plan):
            recipe = seeds[0]
            line.update(number, recipe.name)
            cost = measure_cost(recipe, n_steps=2, rows=batch_size) if args.measure else look_up_cost(recipe)
            gpu_seconds = time_gpu_step(recipe, 2, matmul=args.matmul, compile=args.compile) if gpu else None
            row: Row = {
                "recipe": recipe.name,
                **({"values": points[number]} if points else {}),
                "seeds": len(seeds),
                "missing": sum(not Run.locate(replicate).done for replicate in seeds),
                "operations_each": cost.operations * cost.steps,
                "memory": cost.memory,
                "minutes_each": cost.minutes,
                "source": cost.source,
                "gpu_minutes_each": None if gpu_seconds is None else cost.steps * gpu_seconds / 60,
            }
            recipe_rows.append(row)
            minutes = [row[name] for name in ("minutes_each", *["gpu_minutes_each"] * gpu)]
            times = ["–" if value is None else format_duration(value * 60) for value in minutes]
            size = f"{row['operations_each']:.1e}", format_bytes(row["memory"])
            names = [points[number][path] for path in swept] or [recipe.name]
            table.add_row(*names, str(row["seeds"]), str(row["missing"]), *size, *times)
    engines = _time_by_launcher(args, recipe_rows)
    notes = []
    for row in engines:
        if row["minutes"] is None:
            notes.append(f"--on {row['engine']}: not available")
            continue
        marks = [name for name in ("cheapest", "fastest") if row[name]]
        cores = f", {os.cpu_count()} cores" if row["engine"] == "local" else ""
        text = f"--on {row['engine']}: about {format_duration(row['minutes'] * 60)}, {row['at_once']} at a time{cores}"
        notes.append(text + (f" ({' and '.join(marks)})" if marks else ""))
    if not gpu:
        advice = "none here, so times are unknown; `make gpu` measures one"
        gpu_note = "--measure adds its times" if torch.cuda.is_available() else advice
        notes.append(f"GPU: {gpu_note}")
    for source, meaning in COST_SOURCES.items():
        if count := sum(row["source"] == source for row in recipe_rows):
            notes.append(f"{source}{f' ({count} of {len(recipe_rows)})' * (count < len(recipe_rows))}: {meaning}")
    notes.append("without evaluation")
    return print_result(args, {"recipes": recipe_rows, "engines": engines}, table, "\n".join(notes))


def _time_by_launcher(args: TrainingOptions, recipe_rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return a row for each engine, the requested one first, with the minutes that the plan takes on the engine's CPUs
    (None if the engine is not available)."""
    requested, rows = parse_launcher(args), []
    total = sum(row["missing"] * row["minutes_each"] for row in recipe_rows)
    longest = max((row["minutes_each"] for row in recipe_rows if row["missing"]), default=0.0)
    for launcher in (requested, *(kind() for kind in (Local, Slurm, Ray) if not isinstance(requested, kind))):
        try:
            at_once = launcher.count_parallel_runs(resolve_jobs(args.jobs))
        except UsageError:
            at_once = 0
        minutes = max(total / at_once, longest) if at_once else None
        name = type(launcher).__name__.lower()
        rows.append({"engine": name, "at_once": at_once, "minutes": minutes, "asked": launcher is requested})
    available = [row for row in rows if row["minutes"] is not None]
    # Processor time is the same on all engines, so this machine is the cheapest.
    for name, best in (("cheapest", "local"), ("fastest", min(available, key=lambda row: row["minutes"])["engine"])):
        for row in rows:
            row[name] = row["engine"] == best
    return rows
