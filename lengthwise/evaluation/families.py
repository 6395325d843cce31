"""Structured problems, family by family: what uniform problems hide."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import torch
from jaxtyping import Int
from torch import Tensor

from lengthwise.base.results import AnySize
from lengthwise.base.types import Problems, Score
from lengthwise.evaluation.scores import Watch, hits_by_row, hits_of_groups, resolve_rules, score_of
from lengthwise.experiment.data import NoneLeft, evaluation_problems, source_of
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.source import hash_prompts
from lengthwise.experiment.stopping import Stopping
from lengthwise.runs.run import Weights
from lengthwise.tasks.family import choose_families

EVERY = 2048  # problems, where each family has a hundred: a size that has no more is measured on all of them
FAR = 5  # times the training length: no size is measured beyond, unless it is asked for


def evaluate_families(
    weights: Weights,
    sizes: Iterable[AnySize],
    *,
    samples: int = 100,
    stopping: Stopping | Sequence[Stopping] | None = None,
    names: Sequence[str] = (),
    seed: int = 0,
    watch: Watch | None = None,
) -> Iterator[Score]:
    """One Score per size, family and stopping rule: exact match on fresh problems of each of the task's families that
    the size is large enough for, or of those named. A size that has few problems is measured on all of them, which a
    Score calls ``every``. ``watch`` is called after each batch. UsageError where there is no such family."""
    recipe, rules = weights.recipe, resolve_rules(weights, samples, stopping)
    families = choose_families(recipe.task.families, names, recipe.task.name)
    for size in sizes:
        at = recipe.sizes(size)
        wanted = [family.name for family in families if at[0] >= family.smallest]
        inside = partial(watch, [at]) if watch else None
        yield from _scores(weights, at, _groups(recipe, at, samples, wanted, seed, bool(names)), rules, inside)


def rules_of_families(rules: Sequence[Stopping]) -> Sequence[Stopping]:
    """Those of some stopping rules by which families are measured: a family has too few problems for a rule that looks
    at many at once, so such a rule measures families only where it comes first and there is no other."""
    return [rule for rule in rules if rule.together == 1] or rules[:1]


def samples_of_family(samples: int) -> int:
    """How many problems of each family beside so many uniform ones: a tenth, so that all families take about as long
    as the uniform problems."""
    return max(1, samples // 10)


def short_sizes(recipe: Recipe, samples: int = 100) -> list[int]:
    """The shortest sizes, as far as each has so few problems that all are measured beside ``samples`` of a family."""
    found: list[int] = []
    smallest = max(recipe.task.smallest, recipe.lengths.bottom)
    for size in range(smallest, max(smallest, FAR * recipe.lengths.top) + 1):
        same = bool(found) and recipe.sizes(size) == recipe.sizes(found[-1])  # every axis is as long as it can be
        if same or all_of(recipe, recipe.sizes(size), samples) is None:
            break
        found.append(size)
    return found


def _groups(
    recipe: Recipe, at: tuple[int, ...], samples: int, names: Sequence[str], seed: int, named: bool
) -> dict[str, Problems]:
    """The problems of one size, by what a Score calls them. Without those of which a fixed set leaves none to test
    with, if they are not asked for by name."""
    every = None if named else all_of(recipe, at, samples)
    if every is not None:
        return {"every": every}
    found = {}
    for name in names:
        try:
            found[name] = evaluation_problems(recipe, at, samples, seed=seed, kind=name)
        except NoneLeft:
            if named:
                raise
    return found


def all_of(recipe: Recipe, at: tuple[int, ...], samples: int = 100) -> Problems | None:
    """All problems of a size that may be used for tests, if they are few beside ``samples`` of a family."""
    problems = recipe.task.part("test").enumerate(at, EVERY * samples // 100)
    if problems is None:
        return None
    problems = problems.take(source_of(recipe.task, recipe.source).of("test", problems))
    return problems if len(problems) else None


def _scores(
    weights: Weights,
    at: tuple[int, ...],
    groups: Mapping[str, Problems],
    rules: Sequence[Stopping],
    watch: Callable[[float], None] | None,
) -> Iterator[Score]:
    if not groups:
        return
    problems = list(groups.values())
    alone = all(rule.together == 1 for rule in rules)
    found = (
        _each_once(weights, problems, rules, watch)
        if alone
        else hits_of_groups(weights.model, weights.recipe, problems, rules, watch)
    )
    for rule, rows in zip(rules, found, strict=True):
        parts = rows.split([len(group) for group in problems])
        for (name, group), part in zip(groups.items(), parts, strict=True):
            yield score_of(weights, rule, name, at, group, part)


def _each_once(
    weights: Weights, groups: Sequence[Problems], rules: Sequence[Stopping], watch: Callable[[float], None] | None
) -> list[Int[Tensor, "b 7"]]:
    """Hits row by row for each rule. Problems that stand there several times, as they do in families of few problems,
    are answered once."""
    problems = Problems.join(groups)
    _, inverse = hash_prompts(problems).unique(return_inverse=True)
    first = torch.full((int(inverse.max()) + 1,), len(problems))
    first.scatter_reduce_(0, inverse, torch.arange(len(problems)), "amin")
    hits = hits_by_row(weights.model, weights.recipe, problems.take(first), rules, watch)
    return [rows[inverse] for rows in hits]
