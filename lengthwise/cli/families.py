"""Measuring families of structured problems, beside uniform ones."""

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
from lengthwise.evaluation.curves import followed, followed_sizes
from lengthwise.evaluation.families import evaluate_families, rules_of_families, samples_of_family, short_sizes
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.stopping import Stopping
from lengthwise.report.families import family_table, worst_table
from lengthwise.run import Run, Weights, choose_device
from lengthwise.training.arithmetic import computing

BEYOND = 2  # times the training length: farther out, families would cost more than all else
LISTED = 8  # sizes of several numbers: more of them are a map, on which families would cost more than all else too


def with_families(args: argparse.Namespace) -> bool:
    """Are families measured too? Unless something else was asked for."""
    other = args.uniform_only or args.grid or args.hard or args.natural or args.family
    return args.families or not other


@dataclass(frozen=True)
class Work:
    """What ``evaluate`` measures: weights, at some sizes, by some stopping rules."""

    args: argparse.Namespace
    weights: Weights
    own: Run | None  # the run whose weights they are: what is measured is kept in its folder
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
        """What a line of progress says."""
        return f"{self.weights.name}: {measured}"

    def keep(self, name: str, *rows: Row) -> None:
        """Keep rows, if there is a folder for them."""
        if self.own:
            self.own.keep(name, *rows)


def families_of(work: Work) -> list[Row]:
    """A row per size, family and stopping rule; and all problems of the shortest sizes."""
    recipe, count = work.recipe, samples_of_family(work.args.samples)
    rules = rules_of_families(work.rules)
    everywhere = list(dict.fromkeys([*map(recipe.sizes, short_sizes(recipe, count)), *map(recipe.sizes, work.sizes)]))
    scores = partial(evaluate_families, work.weights, everywhere, samples=count, stopping=rules, seed=work.seed)
    each = {"each": len(recipe.task.families), "rules": len(rules)}
    found = followed(scores, work.progress, recipe, everywhere, what=work.what("families"), **each)
    rows: list[Row] = []
    for _, of_size in groupby(found, key=lambda score: score.sizes):  # whole sizes: the worst family is among all
        there = [score.row() | {"seed": work.seed} for score in of_size]
        work.keep("scores", *there)
        rows += there
    return rows


def after_training(
    args: argparse.Namespace, run: Run, sizes: Sequence[AnySize], also: Sequence[Stopping], progress: Progress
) -> None:
    """Measure what a trained run lacks: families up to twice the training length on each axis, or at all sizes with
    ``--far-families``, but for the sizes of a map, and at the shortest sizes, by the recipe's own rule and those asked
    for. A size is measured again for more problems of each family than before."""
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
        # A size at a time, so that a command given again goes on where it was cut.
        for at in followed_sizes(progress, recipe, list(missing), what=f"{recipe.name}: families"):
            found = evaluate_families(weights, [at], samples=count, stopping=missing[at])
            run.append("scores", *(score.row() | {"seed": 0} for score in found))


def _outside_map(sizes: Sequence[AnySize]) -> Sequence[AnySize]:
    """Sizes without those of a map."""
    alone = [size for size in sizes if isinstance(size, int)]
    return sizes if len(sizes) - len(alone) <= LISTED else alone


def family_tables(uniform: Sequence[Row], rows: Sequence[Row], tops: Sizes, *, whole: bool) -> list[Table]:
    """For each rule that measured families, uniform problems and the worst family at each size; all families where
    they are asked for."""
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
