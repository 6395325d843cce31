"""Scores of structured problems, family by family."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import torch

from lengthwise.base.results import AnySize
from lengthwise.base.types import Problems, Score
from lengthwise.evaluation.scores import (
    OnProgress,
    RowResults,
    Watch,
    build_score,
    resolve_rules,
    results_by_row,
    results_of_groups,
)
from lengthwise.experiment.data import NoProblemsLeft, effective_source, evaluation_problems
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.source import hash_prompts
from lengthwise.experiment.stopping import Stopping
from lengthwise.runs.run import Weights
from lengthwise.tasks.family import choose_families

MAX_ENUMERATED = 2048  # a size with at most this number of problems, per 100 of a family, is measured on all of them
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
    """Yield one Score per size, family and stopping rule: exact match on fresh problems of each family (all, or
    ``names``) that has this size. A size with few problems is measured on all of them, as the family ``every``.
    ``watch`` is called after batches; with ``rows``, scores have ``answers``. Raises UsageError for an unknown name."""
    sizes = list(sizes)
    recipe, rules = weights.recipe, resolve_rules(weights, samples, stopping, sizes)
    families = choose_families(recipe.task.families, names, recipe.task.name)
    for size in map(recipe.sizes, sizes):
        chosen = [family.name for family in families if size[0] >= family.smallest]
        on_progress = partial(watch, [size]) if watch else None
        groups = _problems_by_family(recipe, size, samples, chosen, seed, bool(names))
        if not groups:
            continue
        problems = list(groups.values())
        if all(rule.together == 1 for rule in rules):
            results = _results_of_distinct(weights, problems, rules, on_progress)
        else:
            results = results_of_groups(weights.model, recipe, problems, rules, on_progress)
        for rule, found in zip(rules, results, strict=True):
            start = 0
            for name, group in groups.items():
                part = found.take(slice(start, start + len(group)))
                yield build_score(weights, rule, name, size, group, part, rows=rows)
                start += len(group)


def family_rules(rules: Sequence[Stopping]) -> Sequence[Stopping]:
    """Return the stopping rules for families: the rules for single rows, as a family has too few problems for
    batch-wise rules; if there are none, the first rule."""
    return [rule for rule in rules if rule.together == 1] or rules[:1]


def family_samples(samples: int) -> int:
    """Return the number of problems per family for ``samples`` uniform problems: a tenth, so that all families together
    take about as long."""
    return max(1, samples // 10)


def short_sizes(recipe: Recipe, samples: int = 100) -> list[int]:
    """Return the shortest sizes, up to the last size that has few enough problems to measure all."""
    sizes: list[int] = []
    smallest = max(recipe.task.smallest, recipe.lengths.bottom)
    for size in recipe.task.listed_sizes or range(smallest, max(smallest, FAR * recipe.lengths.top) + 1):
        same = bool(sizes) and recipe.sizes(size) == recipe.sizes(sizes[-1])  # every axis has its largest size
        if same or all_problems(recipe, recipe.sizes(size), samples) is None:
            break
        sizes.append(size)
    return sizes


def _problems_by_family(
    recipe: Recipe, size: tuple[int, ...], samples: int, names: Sequence[str], seed: int, by_name: bool
) -> dict[str, Problems]:
    """Return the problems of one size by family. Families without test problems in a fixed set are left out, or raise
    NoProblemsLeft if requested ``by_name``."""
    every = None if by_name else all_problems(recipe, size, samples)
    if every is not None:
        return {"every": every}
    groups = {}
    for name in names:
        try:
            groups[name] = evaluation_problems(recipe, size, samples, seed=seed, kind=name)
        except NoProblemsLeft:
            if by_name:
                raise
    return groups


def all_problems(recipe: Recipe, size: tuple[int, ...], samples: int = 100) -> Problems | None:
    """Return all test problems of a size; None if there are more than about 20 for each of a family's ``samples``."""
    problems = recipe.task.part("test").enumerate(size, MAX_ENUMERATED * samples // 100)
    if problems is None:
        return None
    problems = problems.take(effective_source(recipe.task, recipe.source).mask_part("test", problems))
    return problems if len(problems) else None


def _results_of_distinct(
    weights: Weights, groups: Sequence[Problems], rules: Sequence[Stopping], on_progress: OnProgress
) -> list[RowResults]:
    """Return ``results_by_row`` for each rule. Repeated problems, as small families have, are answered once."""
    problems = Problems.join(groups)
    _, inverse = hash_prompts(problems).unique(return_inverse=True)
    first = torch.full((int(inverse.max()) + 1,), len(problems))
    first.scatter_reduce_(0, inverse, torch.arange(len(problems)), "amin")
    results = results_by_row(weights.model, weights.recipe, problems.take(first), rules, on_progress)
    return [rows.take(inverse) for rows in results]
