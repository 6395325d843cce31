"""Scores of structured problems, family by family."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import torch

from lengthwise.base.results import AnySize
from lengthwise.base.types import Problems, Score
from lengthwise.evaluation.scores import (
    Report,
    RowResults,
    Watch,
    build_score,
    resolve_rules,
    results_by_row,
    results_of_groups,
)
from lengthwise.experiment.data import NoProblemsLeft, evaluation_problems, source_of
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.source import hash_prompts
from lengthwise.experiment.stopping import Stopping
from lengthwise.runs.run import Weights
from lengthwise.tasks.family import choose_families

EVERY = 2048  # a size with at most this number of problems, per 100 of a family, is measured on all of them
FAR = 5  # sizes beyond this multiple of the training length are measured only on request


def evaluate_families(
    weights: Weights,
    sizes: Iterable[AnySize],
    *,
    samples: int = 100,
    stopping: Stopping | Sequence[Stopping] | None = None,
    names: Sequence[str] = (),
    seed: int = 0,
    watch: Watch | None = None,
    rows: bool = False,
) -> Iterator[Score]:
    """Yield one Score per size, family and stopping rule: exact match on fresh problems of each of the task's families
    (or of ``names``) for which the size is large enough. A size with few problems is measured on all of them, as the
    family ``every``. ``watch`` is called after each batch; with ``rows``, scores have ``answers``. Raises UsageError
    for an unknown family."""
    sizes = list(sizes)
    recipe, rules = weights.recipe, resolve_rules(weights, samples, stopping, sizes)
    families = choose_families(recipe.task.families, names, recipe.task.name)
    for size in sizes:
        at = recipe.sizes(size)
        chosen = [family.name for family in families if at[0] >= family.smallest]
        report = partial(watch, [at]) if watch else None
        groups = _problems_by_family(recipe, at, samples, chosen, seed, bool(names))
        if not groups:
            continue
        problems = list(groups.values())
        if all(rule.together == 1 for rule in rules):
            results = _results_of_distinct(weights, problems, rules, report)
        else:
            results = results_of_groups(weights.model, recipe, problems, rules, report)
        for rule, found in zip(rules, results, strict=True):
            start = 0
            for name, group in groups.items():
                part = found.take(slice(start, start + len(group)))
                yield build_score(weights, rule, name, at, group, part, rows=rows)
                start += len(group)


def rules_of_families(rules: Sequence[Stopping]) -> Sequence[Stopping]:
    """Return the stopping rules by which families are measured: those for single rows, as a family has too few problems
    for batch-wise rules; if there are none, the first rule."""
    return [rule for rule in rules if rule.together == 1] or rules[:1]


def samples_of_family(samples: int) -> int:
    """Return the number of problems of each family for ``samples`` uniform ones: a tenth, so that all families take
    about as long as the uniform problems."""
    return max(1, samples // 10)


def short_sizes(recipe: Recipe, samples: int = 100) -> list[int]:
    """Return the shortest sizes, up to the last with few enough problems to measure all of them."""
    sizes: list[int] = []
    smallest = max(recipe.task.smallest, recipe.lengths.bottom)
    for size in recipe.task.listed_sizes or range(smallest, max(smallest, FAR * recipe.lengths.top) + 1):
        same = bool(sizes) and recipe.sizes(size) == recipe.sizes(sizes[-1])  # every axis has its largest size
        if same or all_problems(recipe, recipe.sizes(size), samples) is None:
            break
        sizes.append(size)
    return sizes


def _problems_by_family(
    recipe: Recipe, at: tuple[int, ...], samples: int, names: Sequence[str], seed: int, named: bool
) -> dict[str, Problems]:
    """Return the problems of one size by family. Unless ``named``, families without test problems in a fixed set are
    left out."""
    every = None if named else all_problems(recipe, at, samples)
    if every is not None:
        return {"every": every}
    groups = {}
    for name in names:
        try:
            groups[name] = evaluation_problems(recipe, at, samples, seed=seed, kind=name)
        except NoProblemsLeft:
            if named:
                raise
    return groups


def all_problems(recipe: Recipe, at: tuple[int, ...], samples: int = 100) -> Problems | None:
    """Return all test problems of a size; None if there are too many compared with ``samples`` of a family."""
    problems = recipe.task.part("test").enumerate(at, EVERY * samples // 100)
    if problems is None:
        return None
    problems = problems.take(source_of(recipe.task, recipe.source).of("test", problems))
    return problems if len(problems) else None


def _results_of_distinct(
    weights: Weights, groups: Sequence[Problems], rules: Sequence[Stopping], report: Report
) -> list[RowResults]:
    """Return ``results_by_row`` for each rule; repeated problems, as in families of few problems, are answered once."""
    problems = Problems.join(groups)
    _, inverse = hash_prompts(problems).unique(return_inverse=True)
    first = torch.full((int(inverse.max()) + 1,), len(problems))
    first.scatter_reduce_(0, inverse, torch.arange(len(problems)), "amin")
    results = results_by_row(weights.model, weights.recipe, problems.take(first), rules, report)
    return [rows.take(inverse) for rows in results]
