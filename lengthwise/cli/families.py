"""Measure families of structured problems in addition to uniform problems."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from rich.table import Table

from lengthwise.base.progress import Progress
from lengthwise.base.results import AnySize
from lengthwise.base.score_rows import ALONE, Row, Sizes, trained_on
from lengthwise.evaluation.curves import follow_scores, follow_sizes
from lengthwise.evaluation.families import evaluate_families, rules_of_families, samples_of_family, short_sizes
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.stopping import Stopping
from lengthwise.report.families import family_table, worst_table
from lengthwise.runs.run import Run, Weights, choose_device
from lengthwise.training.arithmetic import computing

BEYOND = 2  # times the training length; beyond it, families would dominate the cost
LISTED = 8  # maximum number of sizes with several axes; more form a map, where families would dominate the cost


def with_families(args: argparse.Namespace) -> bool:
    """Return True if families are to be measured too: on request, or unless other options exclude them."""
    other = args.uniform_only or args.grid or args.hard or args.natural or args.family
    return args.families or not other


@dataclass(frozen=True)
class Work:
    """The task of ``evaluate``: weights, sizes and stopping rules."""

    args: argparse.Namespace
    weights: Weights
    own: Run | None  # the run of these weights; scores are saved in its folder
    sizes: Sequence[AnySize]
    rules: Sequence[Stopping]
    progress: Progress

    @property
    def recipe(self) -> Recipe:
        return self.weights.recipe

    @property
    def seed(self) -> int:
        """The seed of the problems."""
        return self.args.seed or 0

    def what(self, measured: str) -> str:
        """Return the label of a progress line."""
        return f"{self.weights.name}: {measured}"

    def keep(self, name: str, *rows: Row) -> None:
        """Save rows in the run's folder, if there is one."""
        if self.own:
            self.own.keep(name, *rows)


def families_of(work: Work) -> list[Row]:
    """Return a row per size, family and stopping rule; and the scores on all problems of the shortest sizes."""
    recipe, count = work.recipe, samples_of_family(work.args.samples)
    rules = rules_of_families(work.rules)
    everywhere = list(dict.fromkeys([*map(recipe.sizes, short_sizes(recipe, count)), *map(recipe.sizes, work.sizes)]))
    scores = partial(evaluate_families, work.weights, everywhere, samples=count, stopping=rules, seed=work.seed)
    each = {"each": len(recipe.task.families), "rules": len(rules)}
    found = follow_scores(scores, work.progress, recipe, everywhere, what=work.what("families"), **each)
    rows: list[Row] = []
    # Saved per complete size, since the worst family needs all families.
    for _, of_size in groupby(found, key=lambda score: score.sizes):
        complete = [score.row() | {"seed": work.seed} for score in of_size]
        work.keep("scores", *complete)
        rows += complete
    return rows


def after_training(
    args: argparse.Namespace, run: Run, sizes: Sequence[AnySize], also: Sequence[Stopping], progress: Progress
) -> None:
    """Measure what a trained run lacks: families at the shortest sizes, and at the requested sizes up to twice the
    training length on each axis (with ``--far-families``, at all of them), except those of a map; under the recipe's
    own rule and the rules ``also``. A size is measured again if more problems of each family are requested than before.
    """
    weights, recipe, count = run.weights(choose_device(args.device)), run.recipe, samples_of_family(args.samples)
    rules = rules_of_families(list(dict.fromkeys([recipe.stopping, *also])))
    known = {
        (at, stopping)
        for (at, problems, stopping), done in run.measured().items()
        if problems not in ALONE and (done >= count or problems == "every")
    }
    wanted = [
        *short_sizes(recipe, count),
        *(
            size
            for size in _outside_map(sizes)
            if args.far_families or trained_on(recipe.sizes(size), [BEYOND * top for top in recipe.tops])
        ),
    ]
    missing = {
        at: lacking
        for at in map(recipe.sizes, wanted)
        if (lacking := [rule for rule in rules if (at, rule.name) not in known])
    }
    with computing(args.threads):
        # One size at a time, so that a repeated command resumes where it was interrupted.
        for at in follow_sizes(progress, recipe, list(missing), what=f"{recipe.name}: families"):
            found = evaluate_families(weights, [at], samples=count, stopping=missing[at])
            run.append("scores", *(score.row() | {"seed": 0} for score in found))


def _outside_map(sizes: Sequence[AnySize]) -> Sequence[AnySize]:
    """Return the sizes without those of a map."""
    alone = [size for size in sizes if isinstance(size, int)]
    return sizes if len(sizes) - len(alone) <= LISTED else alone


def family_tables(uniform: Sequence[Row], rows: Sequence[Row], tops: Sizes, *, whole: bool) -> list[Table]:
    """Return tables for each rule that measured families: uniform problems and the worst family at each size; with
    ``whole``, all families too."""
    tables: list[Table] = []
    rules = list(dict.fromkeys(row["stopping"] for row in rows))
    for rule in rules:
        by_rule = [[row for row in found if row["stopping"] == rule] for found in (uniform, rows)]
        named = whole and any(row["problems"] != "every" for row in by_rule[1])  # a task may have no families
        both = [worst_table([*by_rule[0], *by_rule[1]], tops), *([family_table(by_rule[1], tops)] if named else [])]
        for table in both if len(rules) > 1 else ():
            table.title = rule
        tables += both
    return tables
