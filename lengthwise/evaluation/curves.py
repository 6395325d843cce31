"""Progress of evaluations, weighted by the cost of sizes."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any

import torch

from lengthwise.base.progress import Progress
from lengthwise.base.results import AnySize
from lengthwise.base.score_rows import Sizes
from lengthwise.base.types import Score
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.stopping import Stopping


def sizes_without_scores(
    recipe: Recipe, sizes: Iterable[AnySize], rules: Sequence[Stopping], known: Container[tuple[Sizes, str]]
) -> dict[tuple[Stopping, ...], list[AnySize]]:
    """Return sizes by the rules whose scores are not ``known``, so that the model runs once for all rules of a size."""
    lacks: dict[tuple[Stopping, ...], list[AnySize]] = {}
    for size in sizes:
        missing = tuple(rule for rule in rules if (recipe.sizes(size), rule.name) not in known)
        lacks.setdefault(missing, []).append(size)
    lacks.pop((), None)
    return lacks


def work(recipe: Recipe, size: AnySize) -> float:
    """Return the relative cost of a problem of this size: the positions of its row, times its loops."""
    sizes = recipe.sizes(size)
    positions = sum(sizes) + int(recipe.task.answer_slots(torch.tensor([sizes])))
    # Only problems have rounds; for all tasks, rounds grow about as the sizes do.
    return float(positions * int(recipe.loops.planned(torch.tensor([max(sizes)]))))


def follow_scores(
    measure: Callable[..., Iterable[Score]],
    progress: Progress,
    recipe: Recipe,
    sizes: Sequence[AnySize],
    *,
    what: str,
    scores_per_rule: int = 1,
    rules: int = 1,
) -> Iterator[Score]:
    """Yield the scores of ``measure`` and show progress within and between sizes. A size and rule has
    ``scores_per_rule`` scores, or one of all problems. ``measure`` takes ``watch`` (see ``evaluate``)."""
    cost = {recipe.sizes(size): work(recipe, size) for size in sizes}
    line, done = progress.line(what, scores_per_rule * rules * sum(cost.values())), 0.0

    def watch(current: Sequence[Sizes], share: float) -> None:
        inside = share * scores_per_rule * rules * sum(cost[size] for size in current)
        line.show(max(line.done, done + inside), _describe_sizes(current[-1]))

    for score in measure(watch=watch):
        done += cost[score.sizes] * (scores_per_rule if score.problems == "every" else 1)
        line.show(max(line.done, done), _describe_sizes(score.sizes))
        yield score


def follow_sizes(progress: Progress, recipe: Recipe, sizes: Sequence[AnySize], *, what: str) -> Iterator[Any]:
    """Yield sizes and show progress; a size counts as done when the next one is requested."""
    total = sum(work(recipe, size) for size in sizes)
    line, done = progress.line(what, total), 0.0
    for size in sizes:
        line.show(done, _describe_sizes(recipe.sizes(size)))
        yield size
        done += work(recipe, size)
    line.show(total)


def _describe_sizes(sizes: tuple[int, ...]) -> str:
    return f"at {'x'.join(map(str, sizes))}"
