"""The command ``evaluate``: measure weights on fresh problems."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from lengthwise.base.files import check_file, json_text, write
from lengthwise.base.progress import Progress
from lengthwise.base.score_rows import Row, Sizes, latest
from lengthwise.base.types import UsageError
from lengthwise.cli.console import code_changed, say
from lengthwise.cli.families import Work, families_of, family_tables, with_families
from lengthwise.cli.forecast import foresee_scores
from lengthwise.cli.options import kind_of, parse_grid, parse_sizes, rules_of
from lengthwise.evaluation.anatomy import anatomy
from lengthwise.evaluation.answer_rows import answer_rows
from lengthwise.evaluation.curves import follow_scores, follow_sizes, sizes_without_scores
from lengthwise.evaluation.precision import check_precision
from lengthwise.evaluation.scores import MOST, SAMPLES, evaluate
from lengthwise.experiment.data import default_sizes
from lengthwise.report.tables import BLOCKS, anatomy_table, detail_table, map_table
from lengthwise.runs.folder import RunFolder
from lengthwise.runs.hub import PREFIX
from lengthwise.runs.run import Run, choose_device, load, weights_folder
from lengthwise.training.arithmetic import computing


def run(args: argparse.Namespace) -> int:
    """Measure weights on fresh problems."""
    most = args.samples or (MOST if args.precision else SAMPLES)
    args.samples = args.samples or SAMPLES  # for families and error analyses, which have no precision
    weights = load(args.weights, choose_device(args.device))
    if args.lengths and args.grid:
        raise UsageError("give --lengths or --grid, not both")
    if args.families and args.uniform_only:
        raise UsageError("give --families or --uniform-only, not both")
    if args.rows:
        check_file("--rows", Path(args.rows))
    given = parse_grid(args.grid) if args.grid else parse_sizes(args.lengths) if args.lengths else []
    sizes = given or default_sizes(weights.recipe)
    # Scores of weights from the Hub are not saved, since they belong to no run.
    folder = None if args.weights.startswith(PREFIX) else weights_folder(args.weights)
    own = Run.open(folder) if folder and RunFolder(folder).trained_here else None
    if own and code_changed(own, weights.model):
        own = None
    rules = rules_of(args, weights.recipe)
    check_precision(args.precision)
    foresee_scores(weights.recipe, sizes, most, rules, kind_of(args))
    # Locked, or two concurrent calls would save the same scores twice.
    lock = own.locked(wait=args.wait) if own else nullcontext()
    with lock, computing(args.threads), Progress(quiet=args.quiet) as progress:
        return _measure(Work(args, weights, own, sizes, rules, progress), most)


def _measure(work: Work, most: int) -> int:
    """Measure, save the scores in the run's folder, and print them; ``most`` is the maximum number of uniform problems
    per size."""
    args, tops = work.args, work.recipe.tops
    rows = _scores(work, most)
    tables: list[Any] = (_maps(rows, tops) if args.grid else []) or [detail_table(rows, tops)]
    if with_families(args) and (args.families or work.recipe.task.families):
        structured = families_of(work)
        tables += family_tables(rows, structured, tops, whole=args.families)
        rows = rows + structured
    if args.rows:
        found = answer_rows(work.weights, rows, work.rules, seed=work.seed)
        write(Path(args.rows), "".join(json_text(row) + "\n" for row in found).encode())
    if not args.anatomy:
        return say(args, rows, *tables)
    parts = _anatomies(work)
    return say(args, {"scores": rows, "anatomy": parts}, *tables, "", anatomy_table(parts))


def _scores(work: Work, most: int) -> list[Row]:
    """Return a row per size and rule; scores of a run are saved in its folder."""
    rows = _read_measured(work) if work.args.grid and work.own and work.args.precision is None else []
    known = {(tuple(row["sizes"]), row["stopping"]) for row in rows}
    options = {"samples": most, "precision": work.args.precision, "kind": kind_of(work.args), "seed": work.seed}
    what = work.what("exact match")
    for rules, sizes in sizes_without_scores(work.recipe, work.sizes, work.rules, known).items():
        scores = partial(evaluate, work.weights, sizes, stopping=rules, **options)
        for score in follow_scores(scores, work.progress, work.recipe, sizes, what=what, rules=len(rules)):
            rows.append(score.row() | {"seed": work.seed})
            work.keep("scores", rows[-1])
    return rows


def _read_measured(work: Work) -> list[Row]:
    """Return the cells of a grid that an earlier call has measured."""
    names, cells = {rule.name for rule in work.rules}, set(work.sizes)
    requested = kind_of(work.args), work.args.samples, work.seed
    return [
        row
        for row in latest(work.own.rows("scores") if work.own else [])
        if row["stopping"] in names and tuple(row["sizes"]) in cells
        if (row["problems"], row["count"], row.get("seed")) == requested
    ]


def _anatomies(work: Work) -> list[Row]:
    """Analyse the errors in the same answers, under the first of the requested rules."""
    options = {"samples": work.args.samples, "kind": kind_of(work.args), "seed": work.seed}
    rows = []
    for size in follow_sizes(work.progress, work.recipe, work.sizes, what=work.what("how answers go wrong")):
        rows.append(anatomy(work.weights, size, stopping=work.rules[0], **options))
        work.keep("anatomy", rows[-1])
    return rows


def _maps(rows: Sequence[Row], tops: Sizes) -> list[Table]:
    """Return a table of blocks for each rule, if the map is large."""
    by_rule: dict[str, list[Row]] = {}
    for row in rows:
        by_rule.setdefault(row["stopping"], []).append(row)
    return [map_table(found, tops) for found in by_rule.values() if len(found) > BLOCKS**2]
