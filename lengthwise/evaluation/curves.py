"""Progress of evaluations, weighted by the cost of sizes."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

import torch

from lengthwise.base.progress import Progress
from lengthwise.base.results import AnySize
from lengthwise.base.score_rows import Sizes, group_by, size_text
from lengthwise.base.types import Score
from lengthwise.evaluation.families import evaluate_families
from lengthwise.evaluation.scores import evaluate
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.stopping import Stopping
from lengthwise.runs.run import Weights


def sizes_without_scores(
    recipe: Recipe, sizes: Iterable[AnySize], rules: Sequence[Stopping], known_scores: Container[tuple[Sizes, str]]
) -> dict[tuple[Stopping, ...], list[AnySize]]:
    """Group sizes by the rules without a known score, so that the model runs once for all rules of a size."""
    missing = group_by(sizes, lambda size: tuple(r for r in rules if (recipe.sizes(size), r.name) not in known_scores))
    missing.pop((), None)
    return missing


def relative_cost(recipe: Recipe, size: AnySize) -> float:
    """Return the relative cost of a problem of this size: positions in its row × loops."""
    sizes = recipe.sizes(size)
    positions = sum(sizes) + int(recipe.task.answer_slots(torch.tensor([sizes])))
    # T(n) follows from problems, which are not drawn here; in all tasks it grows about as the sizes do.
    return float(positions * int(recipe.loops.planned(torch.tensor([max(sizes)]))))


def scores_with_progress(
    weights: Weights,
    sizes: Sequence[AnySize],
    rules: Sequence[Stopping],
    progress: Progress,
    *,
    label: str,
    families: bool = False,
    **options: Any,
) -> Iterator[Score]:
    """Yield scores from ``evaluate`` (with ``families``, from ``evaluate_families``), to which ``options`` are passed,
    and show progress within and between sizes."""
    recipe = weights.recipe
    cost = {recipe.sizes(size): relative_cost(recipe, size) for size in sizes}
    measure, per_rule = (evaluate_families, len(recipe.task.families)) if families else (evaluate, 1)
    line, done = progress.add_line(label, per_rule * len(rules) * sum(cost.values())), 0.0

    def watch(current_sizes: Sequence[Sizes], fraction: float) -> None:
        inside = fraction * per_rule * len(rules) * sum(cost[size] for size in current_sizes)
        line.update(max(line.done, done + inside), f"at {size_text(current_sizes[-1])}")

    for score in measure(weights, sizes, stopping=rules, watch=watch, **options):
        done += cost[score.sizes] * (per_rule if score.problems == "every" else 1)  # one score for all families
        line.update(max(line.done, done), f"at {size_text(score.sizes)}")
        yield score


def sizes_with_progress(progress: Progress, recipe: Recipe, sizes: Sequence[AnySize], *, label: str) -> Iterator[Any]:
    """Yield sizes and show progress; a size counts as done when the next one is requested."""
    total = sum(relative_cost(recipe, size) for size in sizes)
    line, done = progress.add_line(label, total), 0.0
    for size in sizes:
        line.update(done, f"at {size_text(recipe.sizes(size))}")
        yield size
        done += relative_cost(recipe, size)
    line.update(total)
