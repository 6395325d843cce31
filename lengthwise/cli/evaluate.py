"""The command ``evaluate``: measure weights on fresh problems."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

from rich.table import Table

from lengthwise.api import Restarts, Score, Stopping, UsageError, Weights
from lengthwise.base.files import check_writable, format_json, write
from lengthwise.base.progress import Progress
from lengthwise.base.ranges import Seed, Size
from lengthwise.base.results import AnySize
from lengthwise.base.score_rows import Row, Sizes, group_by, select_reported_rows
from lengthwise.cli.console import has_code_changed, print_result
from lengthwise.cli.forecast import announce_evaluation
from lengthwise.cli.options import choose_kind, choose_rules, parse_grid, parse_sizes
from lengthwise.cli.shared import Argument, ComputeOptions, MeasurementOptions, OutputOptions, ProgressOptions
from lengthwise.evaluation import families
from lengthwise.evaluation.attack import measure_anatomy
from lengthwise.evaluation.scores import MAX_SAMPLES, SAMPLES, check_precision
from lengthwise.experiment.data import choose_default_sizes
from lengthwise.report.tables import (
    MAX_BLOCKS_PER_SIDE,
    build_anatomy_table,
    build_detail_table,
    build_family_table,
    build_map_table,
    build_worst_table,
)
from lengthwise.runs.folder import RunFolder
from lengthwise.runs.hub import HUB_PREFIX
from lengthwise.runs.run import Run, choose_device, find_weights_folder, load
from lengthwise.training.arithmetic import computation_settings


@dataclass(kw_only=True)
class Options(MeasurementOptions, ComputeOptions, OutputOptions, ProgressOptions):
    """Measure exact match on fresh problems, length by length."""

    weights: Argument  # RUN: a run's folder, any folder of weights, shipped weights by name, or hf:user/name
    seed: Seed | None = None  # N: seed of the problems (default: 0)
    grid: str | None = None  # NxM: every pair of sizes, for a task of two sizes
    samples: Size | None = None  # N: fresh problems per length (default: 1000)
    loops: str | None = None  # N,N: loops after which to measure: --loops 1,8 is short for After(loops=…)
    restarts: Size | None = None  # N: answer from N initial states, all but one random; keep the best
    # the answer that --restarts keeps: the most confident (default), or the one whose state moved least
    pick: Literal["confidence", "residual"] | None = None
    family: str | None = None  # NAME: one of the task's families of structured problems, e.g. palindrome
    uniform_only: bool = False  # leave families of structured problems out
    precision: float | None = None  # H: stop sampling a length once its 95 % interval is within ±H, e.g. 0.01
    # FILE: write each problem, the model's answer, right or wrong, loops and confidence (mean log probability of the
    # answer's symbols; `solve --json` prints its exponential) as JSON Lines; missing folders are created
    rows: str | None = None
    anatomy: bool = False  # analyse how answers go wrong: where, and on which problems

    def __post_init__(self) -> None:
        if self.pick and not self.restarts:
            raise UsageError("--pick works only with --restarts: add it, e.g. --restarts 8")


def run(args: Options) -> int:
    """Measure weights on fresh problems."""
    max_samples = args.samples or (MAX_SAMPLES if args.precision else SAMPLES)
    weights = load(args.weights, choose_device(args.device))
    if args.lengths and args.grid:
        raise UsageError("give --lengths or --grid, not both")
    if args.families and args.uniform_only:
        raise UsageError("give --families or --uniform-only, not both")
    if args.rows:
        check_writable("--rows", Path(args.rows))
    requested = parse_grid(args.grid) if args.grid else parse_sizes(args.lengths) if args.lengths else []
    sizes = requested or choose_default_sizes(weights.recipe)
    # Scores of weights from the Hub are not saved, since they belong to no run.
    folder = None if args.weights.startswith(HUB_PREFIX) else find_weights_folder(args.weights)
    own_run = Run.open(folder) if folder and RunFolder(folder).is_run else None
    if own_run and has_code_changed(own_run, weights.model):
        own_run = None
    if own_run and not os.access(own_run.folder, os.W_OK):
        advice = "copy it, or measure without saving, in Python: lw.evaluate"
        raise UsageError(f"{own_run.folder} is read-only, and scores are saved in it: {advice}({args.weights!r})")
    rules = choose_rules(args, weights.recipe)
    if args.restarts:
        rules = [Restarts(rule, args.restarts, args.pick or "confidence") for rule in rules]
    check_precision(args.precision)
    announce_evaluation(weights.recipe, sizes, max_samples, rules, choose_kind(args, weights.recipe.task))
    # Locked, or two concurrent calls would save the same scores twice.
    lock = own_run.lock(wait=args.wait) if own_run else nullcontext()
    with lock, computation_settings(args.threads), Progress(quiet=args.quiet) as progress:
        return _measure_and_print(args, weights, own_run, sizes, rules, max_samples, progress)


def _measure_and_print(
    args: Options,
    weights: Weights,
    run_folder: Run | None,
    sizes: Sequence[AnySize],
    rules: Sequence[Stopping],
    max_samples: int,
    progress: Progress,
) -> int:
    """Measure weights, save the scores in ``run_folder``, if there is one, and print them; ``max_samples`` is the
    maximum number of uniform problems per size."""
    recipe, tops, seed = weights.recipe, weights.recipe.tops, args.seed or 0
    kind = choose_kind(args, recipe.task)
    samples = args.samples or SAMPLES  # for families and error analyses, to which --precision does not apply
    options: dict[str, Any] = {"seed": seed, "rows": bool(args.rows)}
    answers: list[Row] = []
    measure = partial(families.evaluate_with_progress, weights, progress=progress)

    def save_scores(scores: Iterable[Score]) -> list[Row]:
        rows = []
        for score in scores:
            rows.append(score.row() | {"seed": seed})
            answers.extend(score.answers)
        if run_folder:
            run_folder.append_new("scores", *rows)
        return rows

    rows: list[Row] = []
    if run_folder and args.grid and not args.rows and args.precision is None:  # reuse cells that were measured earlier
        names, cells = {rule.name for rule in rules}, set(sizes)
        for row in select_reported_rows(run_folder.rows("scores")):
            is_same = (row["problems"], row["count"], row.get("seed")) == (kind, samples, seed)
            if is_same and row["stopping"] in names and tuple(row["sizes"]) in cells:
                rows.append(row)
    measured = {(tuple(row["sizes"]), row["stopping"]) for row in rows}
    uniform = options | {"samples": max_samples, "precision": args.precision, "kind": kind}
    for missing_rules, missing_sizes in families.find_unscored_sizes(recipe, sizes, rules, measured).items():
        label = f"{weights.name}: exact match"
        for score in measure(missing_sizes, missing_rules, label=label, **uniform):
            rows += save_scores([score])
    by_rule = group_by(rows, lambda row: row["stopping"]).values() if args.grid else []
    large = [cells for cells in by_rule if len(cells) > MAX_BLOCKS_PER_SIDE**2]  # shown in blocks
    maps = [build_map_table(cells, tops) for cells in large]
    tables: list[Any] = maps or [build_detail_table(rows, tops)]
    other = args.uniform_only or args.grid or args.hard or args.natural or args.family
    if args.families or (recipe.task.families and not other):
        count = options["samples"] = families.count_family_samples(samples)
        all_sizes = [*dict.fromkeys(map(recipe.sizes, [*families.find_short_sizes(recipe, count), *sizes]))]
        chosen, label = families.select_family_rules(rules), f"{weights.name}: families"
        found = measure(all_sizes, chosen, label=label, families=True, **options)
        # Saved per complete size, since the worst family needs all families.
        groups = groupby(found, lambda score: score.sizes)
        structured = [row for _, size_scores in groups for row in save_scores(size_scores)]
        tables += _build_family_tables(rows, structured, tops, all_families=args.families)
        rows = rows + structured
    if args.rows:
        write(Path(args.rows), "".join(format_json(row) + "\n" for row in answers).encode())
    if not args.anatomy:
        return print_result(args, rows, *tables)
    parts = []
    for size in families.show_size_progress(progress, recipe, sizes, label=f"{weights.name}: how answers go wrong"):
        parts.append(measure_anatomy(weights, size, stopping=rules[0], samples=samples, kind=kind, seed=seed))
        if run_folder:
            run_folder.append_new("anatomy", parts[-1])
    return print_result(args, {"scores": rows, "anatomy": parts}, *tables, "", build_anatomy_table(parts))


def _build_family_tables(
    uniform_rows: Sequence[Row], rows: Sequence[Row], tops: Sizes, *, all_families: bool
) -> list[Table]:
    """Return a table of uniform problems and the worst family per rule; with ``all_families``, of all families too."""
    tables: list[Table] = []
    rules = list(dict.fromkeys(row["stopping"] for row in rows))
    for rule in rules:
        by_rule = [[row for row in kind_rows if row["stopping"] == rule] for kind_rows in (uniform_rows, rows)]
        rule_tables = [build_worst_table([*by_rule[0], *by_rule[1]], tops)]
        if all_families and any(row["problems"] != "every" for row in by_rule[1]):  # a task may have no families
            rule_tables.append(build_family_table(by_rule[1], tops))
        for table in rule_tables if len(rules) > 1 else ():
            table.title = rule
        tables += rule_tables
    return tables
