"""Measuring weights on fresh problems."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.table import Table

from lengthwise.base.progress import Progress
from lengthwise.base.types import UsageError
from lengthwise.evaluation.anatomy import anatomy
from lengthwise.evaluation.follow import followed, followed_sizes
from lengthwise.evaluation.scores import MOST, SAMPLES, default_sizes, evaluate
from lengthwise.recipe.demand import of_measuring
from lengthwise.recipe.recipe import check_stopping
from lengthwise.recipe.stopping import Stopping
from lengthwise.report import Row, latest
from lengthwise.report.tables import BLOCKS, anatomy_table, detail_table, map_table
from lengthwise.run import Run, Weights, load
from lengthwise.training.loop import choose_device, computing
from lengthwise.verbs.console import foresee, say
from lengthwise.verbs.families import families_of, family_tables, with_families
from lengthwise.verbs.options import Size, after, folder_of, kind_of, parse_sizes, stoppings


def run(args: argparse.Namespace) -> int:
    """Measure weights on fresh problems."""
    most = args.samples or (MOST if args.precision else SAMPLES)
    args.samples = args.samples or SAMPLES  # of families and anatomies, which have no precision
    weights = load(folder_of(args.weights), choose_device(args.device))
    if args.lengths and args.grid:
        raise UsageError("give --lengths or --grid, not both")
    sizes = parse_sizes(args.grid or args.lengths) if args.grid or args.lengths else default_sizes(weights.recipe)
    folder = Path(folder_of(args.weights))
    own = Run.open(folder) if (folder / "metrics.jsonl").exists() else None
    rules = stoppings(args.stopping) + after(args.loops) or [weights.recipe.stopping]
    for rule in rules:
        check_stopping(weights.recipe.layout, rule)
    foresee(f"measuring {len(sizes)} sizes", of_measuring(weights.recipe, sizes, most, rules))
    alone = own.locked(wait=args.wait) if own else nullcontext()  # two that measure the same would both keep it
    with alone, computing(args.threads), Progress(quiet=args.quiet) as progress:
        asked: dict[str, Any] = {"samples": most, "precision": args.precision, "kind": kind_of(args)}
        return _measure(args, weights, own, sizes, rules, asked, progress)


def _measure(
    args: argparse.Namespace,
    weights: Weights,
    own: Run | None,
    sizes: Sequence[Size],
    rules: Sequence[Stopping],
    asked: dict[str, Any],
    progress: Progress,
) -> int:
    """Measure, keep what a run shows in its folder, and print it."""
    rows = _scores(args, weights, own, sizes, rules, asked, progress)
    top = weights.recipe.lengths.top
    tables: list[Any] = (_maps(rows, top) if args.grid else []) or [detail_table(rows, top)]
    if with_families(args):
        structured = families_of(args, weights, own, sizes, rules[0], progress)
        tables += family_tables(rows, structured, top, whole=args.families)
        rows = rows + structured
    if not args.anatomy:
        return say(args, rows, *tables)
    parts = _anatomies(args, weights, own, sizes, rules[0], progress)
    return say(args, {"scores": rows, "anatomy": parts}, *tables, "", anatomy_table(parts))


def _scores(
    args: argparse.Namespace,
    weights: Weights,
    own: Run | None,
    sizes: Sequence[Size],
    rules: Sequence[Stopping],
    asked: dict[str, Any],
    progress: Progress,
) -> list[Row]:
    """A row per size and rule; what a run measures is kept in its folder."""
    seed = args.seed or 0
    rows = _measured(args, own, rules) if args.grid and own else []
    known = Counter(tuple(row["sizes"]) for row in rows)
    missing = [size for size in sizes if known[weights.recipe.sizes(size)] < len(rules)]
    what = f"{weights.name}: exact match"
    scores = evaluate(weights, missing, stopping=rules, seed=seed, **asked)
    for score in followed(scores, progress, weights.recipe, missing, what=what, each=len(rules)):
        rows.append(score.row() | {"seed": seed})
        if own:
            own.keep("scores", rows[-1])
    return rows


def _measured(args: argparse.Namespace, run: Run, rules: Sequence[Stopping]) -> list[Row]:
    """The cells of a grid that an earlier call has measured: they are not measured again."""
    names, cells = {rule.name for rule in rules}, set(parse_sizes(args.grid))
    asked = kind_of(args), args.samples, args.seed or 0
    return [
        row
        for row in latest(run.rows("scores"))
        if row["stopping"] in names and tuple(row["sizes"]) in cells
        if (row["problems"], row["count"], row.get("seed")) == asked
    ]


def _anatomies(
    args: argparse.Namespace,
    weights: Weights,
    own: Run | None,
    sizes: Sequence[Size],
    rule: Stopping,
    progress: Progress,
) -> list[Row]:
    """How the same answers go wrong, under the first of the rules asked for."""
    asked: dict[str, Any] = {"samples": args.samples, "stopping": rule, "kind": kind_of(args), "seed": args.seed or 0}
    rows = []
    for size in followed_sizes(progress, weights.recipe, sizes, what=f"{weights.name}: how answers go wrong"):
        rows.append(anatomy(weights, size, **asked))
        if own:
            own.keep("anatomy", rows[-1])
    return rows


def _maps(rows: Sequence[Row], top: int) -> list[Table]:
    """Of a large map, a table of blocks for each rule; of a small one, none."""
    by_rule: dict[str, list[Row]] = {}
    for row in rows:
        by_rule.setdefault(row["stopping"], []).append(row)
    return [map_table(found, top) for found in by_rule.values() if len(found) > BLOCKS**2]
