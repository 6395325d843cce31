"""Scores of each family of structured problems, final scores on sealed problems, and the progress of evaluations,
weighted by the cost of sizes."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lengthwise.base.progress import Progress
from lengthwise.base.results import AnySize
from lengthwise.base.rng import derive_seed
from lengthwise.base.score_rows import Sizes, format_size, group_by
from lengthwise.base.types import Problems, Score
from lengthwise.evaluation.scores import Watch, build_score, compute_group_results, evaluate, resolve_rules
from lengthwise.experiment.data import NoProblemsLeft, choose_source, draw_recipe_problems, select_part
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.source import hash_prompts
from lengthwise.experiment.stopping import Stopping
from lengthwise.models.external import read_tensor_bytes
from lengthwise.runs.run import Run, Weights
from lengthwise.tasks.family import choose_families

MAX_ENUMERATED = 2048  # a size with at most this many problems, per 100 samples, is measured on all its problems
MAX_MULTIPLE = 5  # sizes beyond this multiple of the training length are measured only on request


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
    ``names``) that has this size. Without ``names``, a size with few problems is measured on all of them, as the family
    ``every``. ``watch`` and ``rows`` are as in ``evaluate``. Raises UsageError for an unknown name."""
    sizes = list(sizes)
    recipe, rules = weights.recipe, resolve_rules(weights, samples, stopping, sizes)
    families = choose_families(recipe.task.families, names, recipe.task.name)
    for size in map(recipe.sizes, sizes):
        chosen = [family.name for family in families if size[0] >= family.smallest]
        on_progress = partial(watch, [size]) if watch else None
        groups = _draw_family_problems(recipe, size, samples, chosen, seed, bool(names))
        if not groups:
            continue
        if all(rule.together == 1 for rule in rules):  # repeated problems, as small families have, are answered once
            problems = Problems.join([*groups.values()])
            _, inverse = hash_prompts(problems).unique(return_inverse=True)
            first = torch.full((int(inverse.max()) + 1,), len(problems))
            first.scatter_reduce_(0, inverse, torch.arange(len(problems)), "amin")
            distinct = compute_group_results(weights.model, recipe, [problems.take(first)], rules, on_progress)
            results = [rule_results.take(inverse) for rule_results in distinct]
        else:
            results = compute_group_results(weights.model, recipe, [*groups.values()], rules, on_progress)
        for rule, rule_results in zip(rules, results, strict=True):
            start = 0
            for name, group in groups.items():
                part = rule_results.take(slice(start, start + len(group)))
                yield build_score(weights, rule, name, size, group, part, rows=rows)
                start += len(group)


def select_family_rules(rules: Sequence[Stopping]) -> Sequence[Stopping]:
    """Return the rules that choose loops for each row alone, since a family has too few problems for batch-wise rules.
    If all rules are batch-wise, return the first one."""
    return [rule for rule in rules if rule.together == 1] or rules[:1]


def count_family_samples(samples: int) -> int:
    """Return the number of problems per family: a tenth of ``samples``, so that measuring all families takes about as
    long as measuring uniform problems."""
    return max(1, samples // 10)


def find_short_sizes(recipe: Recipe, samples: int = 100) -> list[int]:
    """Return the smallest sizes, at which there are few enough problems to measure them all."""
    sizes: list[int] = []
    smallest = max(recipe.task.smallest, recipe.lengths.bottom)
    for size in recipe.task.listed_sizes or range(smallest, max(smallest, MAX_MULTIPLE * recipe.lengths.top) + 1):
        is_limited = bool(sizes) and recipe.sizes(size) == recipe.sizes(sizes[-1])  # every axis has its largest size
        if is_limited or enumerate_problems(recipe, recipe.sizes(size), samples) is None:
            break
        sizes.append(size)
    return sizes


def _draw_family_problems(
    recipe: Recipe, size: tuple[int, ...], samples: int, names: Sequence[str], seed: int, are_requested: bool
) -> dict[str, Problems]:
    """Return the problems of one size by family. If the size has few problems and the user requested no families, the
    only family is ``every``, with all problems. A family without test problems raises NoProblemsLeft if requested;
    otherwise it is left out."""
    every = None if are_requested else enumerate_problems(recipe, size, samples)
    if every is not None:
        return {"every": every}
    groups = {}
    for name in names:
        try:
            groups[name] = draw_recipe_problems(recipe, size, samples, seed=seed, kind=name)
        except NoProblemsLeft:
            if are_requested:
                raise
    return groups


def enumerate_problems(recipe: Recipe, size: tuple[int, ...], samples: int = 100) -> Problems | None:
    """Return all test problems of a size; None if the size has no problems, or more than ``MAX_ENUMERATED`` allows."""
    problems = recipe.task.select_part("test").enumerate(size, MAX_ENUMERATED * samples // 100)
    if problems is None:
        return None
    problems = select_part(choose_source(recipe.task, recipe.source), "test", problems)
    return problems if len(problems) else None


def find_unscored_sizes(
    recipe: Recipe, sizes: Iterable[AnySize], rules: Sequence[Stopping], known_scores: Container[tuple[Sizes, str]]
) -> dict[tuple[Stopping, ...], list[AnySize]]:
    """Return sizes that lack scores, grouped by the rules whose scores they lack, so that the model runs once for all
    these rules."""
    missing = group_by(sizes, lambda size: tuple(r for r in rules if (recipe.sizes(size), r.name) not in known_scores))
    missing.pop((), None)
    return missing


def estimate_relative_cost(recipe: Recipe, size: AnySize) -> float:
    """Return the relative cost of answering a problem of this size: positions in its row × loops."""
    sizes = recipe.sizes(size)
    positions = sum(sizes) + int(recipe.task.answer_slots(torch.tensor([sizes])))
    # T(n) follows from problems, which are not drawn here; in all tasks it grows roughly like the sizes.
    return float(positions * int(recipe.loops.planned(torch.tensor([max(sizes)]))))


def evaluate_with_progress(
    weights: Weights,
    sizes: Sequence[AnySize],
    rules: Sequence[Stopping],
    progress: Progress,
    *,
    label: str,
    families: bool = False,
    **options: Any,
) -> Iterator[Score]:
    """Yield scores from ``evaluate`` or, with ``families``, ``evaluate_families``, and show the progress."""
    recipe = weights.recipe
    distinct = {recipe.sizes(size): size for size in sizes}  # a size may be given twice
    cost = {key: estimate_relative_cost(recipe, size) for key, size in distinct.items()}
    measure, per_rule = (evaluate_families, len(recipe.task.families)) if families else (evaluate, 1)
    line, done = progress.add_line(label, per_rule * len(rules) * sum(cost.values())), 0.0

    def update_line(current_sizes: Sequence[Sizes], fraction: float) -> None:
        inside = fraction * per_rule * len(rules) * sum(cost[size] for size in current_sizes)
        line.update(max(line.done, done + inside), f"at {format_size(current_sizes[-1])}")

    for score in measure(weights, [*distinct.values()], stopping=rules, watch=update_line, **options):
        done += cost[score.sizes] * (per_rule if score.problems == "every" else 1)  # one score for all families
        line.update(max(line.done, done), f"at {format_size(score.sizes)}")
        yield score


def show_size_progress(progress: Progress, recipe: Recipe, sizes: Sequence[AnySize], *, label: str) -> Iterator[Any]:
    """Yield ``sizes`` and show the progress; a size counts as done when the next size is requested."""
    total = sum(estimate_relative_cost(recipe, size) for size in sizes)
    line, done = progress.add_line(label, total), 0.0
    for size in sizes:
        line.update(done, f"at {format_size(recipe.sizes(size))}")
        yield size
        done += estimate_relative_cost(recipe, size)
    line.update(total)


# Sealed scores: final scores of a set of weights, on problems that were never used before


def compute_weights_digest(tensors: dict[str, Tensor]) -> str:
    """Return a hash of weights in ten hexadecimal digits."""
    state = hashlib.blake2b(digest_size=5)
    for name in sorted(tensors):
        state.update(name.encode())
        state.update(read_tensor_bytes(tensors[name]))
    return state.hexdigest()


def derive_sealed_seed(weights: Weights) -> int:
    """Return the seed of the problems for the final scores of these weights; other weights get other problems."""
    return derive_seed(0, "sealed", weights.recipe.id, compute_weights_digest(weights.model.state_dict()))


def measure_sealed(
    run: Run,
    sizes: Sequence[int],
    *,
    samples: int,
    family_samples: int,
    rules: Sequence[Stopping] = (),
    kinds: Sequence[str] = ("uniform",),
    device: str | torch.device = "cpu",
) -> list[dict[str, Any]]:
    """Measure a run at ``sizes``, on ``samples`` problems of each kind and ``family_samples`` problems of each family.
    The scores are stored in rows whose field ``sealed`` is a digest of the weights; return all such rows. Scores that
    are stored already are not measured again."""
    weights, recipe = run.weights(device), run.recipe
    name, seed = compute_weights_digest(weights.model.state_dict()), derive_sealed_seed(weights)
    earlier = [row for row in run.rows("scores") if row.get("sealed") == name]
    measurements = {(tuple(row["sizes"]), row["problems"], row["stopping"]) for row in earlier}
    family_kinds = {"every", *(family.name for family in recipe.task.families)} - {*kinds}
    families = {tuple(row["sizes"]) for row in earlier if row["problems"] in family_kinds}
    chosen = list(rules) or [recipe.stopping]
    all_sizes = list(dict.fromkeys(map(recipe.sizes, sizes)))

    def store_scores(*scores: Score) -> None:
        run.append("scores", *(score.row() | {"seed": seed, "sealed": name} for score in scores))

    for kind in kinds:
        measured = {(size, rule) for size, problems, rule in measurements if problems == kind}
        for missing, unmeasured in find_unscored_sizes(recipe, all_sizes, chosen, measured).items():
            for score in evaluate(weights, unmeasured, samples=samples, stopping=missing, kind=kind, seed=seed):
                store_scores(score)
    short = [recipe.sizes(size) for size in find_short_sizes(recipe, family_samples)]
    for size in dict.fromkeys([*short, *all_sizes]):
        if size not in families:  # all families of a size are stored together
            store_scores(*evaluate_families(weights, [size], samples=family_samples, stopping=chosen[0], seed=seed))
    return [row for row in run.rows("scores") if row.get("sealed") == name]
