"""How far an evaluation is: scores as they come, on a line of progress, by what sizes cost."""

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


def lacking(
    recipe: Recipe, sizes: Iterable[AnySize], rules: Sequence[Stopping], known: Container[tuple[Sizes, str]]
) -> dict[tuple[Stopping, ...], list[AnySize]]:
    """Sizes by all the rules, if any, whose scores there are not ``known``: the model runs once for all of these."""
    found: dict[tuple[Stopping, ...], list[AnySize]] = {}
    for size in sizes:
        missing = tuple(rule for rule in rules if (recipe.sizes(size), rule.name) not in known)
        found.setdefault(missing, []).append(size)
    found.pop((), None)
    return found


def work(recipe: Recipe, size: AnySize) -> float:
    """What a problem of this size costs, relative to other sizes: the positions of its row, in every loop."""
    at = recipe.sizes(size)
    sizes = torch.tensor([at])
    positions = sum(at) + int(recipe.task.answer_slots(sizes))
    # Rounds are known of problems alone; for all tasks they grow about as the sizes do.
    return float(positions * int(recipe.loops.planned(torch.tensor([max(at)]))))


def follow_scores(
    measure: Callable[..., Iterable[Score]],
    progress: Progress,
    recipe: Recipe,
    sizes: Sequence[AnySize],
    *,
    what: str,
    each: int = 1,
    rules: int = 1,
) -> Iterator[Score]:
    """Yield the scores of ``measure``, and show progress within and between sizes. There are ``each`` scores per size
    and rule, or one of every problem. ``measure`` takes ``watch`` (see ``evaluate``)."""
    cost = {recipe.sizes(size): work(recipe, size) for size in sizes}
    line, done = progress.line(what, each * rules * sum(cost.values())), 0.0

    def watch(now: Sequence[Sizes], share: float) -> None:
        inside = share * each * rules * sum(cost[size] for size in now)
        line.show(max(line.done, done + inside), _at(now[-1]))

    for score in measure(watch=watch):
        done += cost[score.sizes] * (each if score.problems == "every" else 1)
        line.show(max(line.done, done), _at(score.sizes))
        yield score


def follow_sizes(progress: Progress, recipe: Recipe, sizes: Sequence[AnySize], *, what: str) -> Iterator[Any]:
    """Sizes one after the other; the next is asked for when one is done."""
    total = sum(work(recipe, size) for size in sizes)
    line, done = progress.line(what, total), 0.0
    for size in sizes:
        line.show(done, _at(recipe.sizes(size)))
        yield size
        done += work(recipe, size)
    line.show(total)


def _at(sizes: tuple[int, ...]) -> str:
    return f"at {'x'.join(map(str, sizes))}"
