"""Problems for other programs, from Python."""

from __future__ import annotations

from collections.abc import Iterable

from lengthwise.api.arguments import sizes_from, task_from
from lengthwise.base import fields
from lengthwise.base.ranges import Count, Seed
from lengthwise.base.results import AnySize
from lengthwise.base.types import Purpose
from lengthwise.experiment.problem_set import ProblemSet, problem_set
from lengthwise.experiment.resources import estimate_problems
from lengthwise.tasks import Task


@fields.validate_arguments
def problems(
    task: Task | str,
    sizes: AnySize | Iterable[AnySize],
    count: int,
    *,
    split: Purpose | None = None,
    seed: int = 0,
) -> ProblemSet:
    """Draw ``count`` problems of a task, each of a uniform one of the ``sizes``, for other programs.

    ``split`` is "train", "validation" or "test": parts of all prompts of which none is in two, or None for any. The
    result is a sequence of dictionaries that a torch ``DataLoader`` takes; it has ``lines()`` of JSON, ``digest``,
    ``batches(rows, layout)``, and tensors in ``problems``. ``lengthwise sample --jsonl`` writes the same.

    UsageError where the task has no such size.
    """
    chosen = task_from(task)
    fields.validate(Count, count, "count")
    fields.validate(Seed, seed, "seed")
    each = [one if isinstance(one, tuple) else (one,) * len(chosen.axes) for one in sizes_from(sizes, chosen)]
    estimate_problems(count, max(each, key=sum)).check(f"{count:,} problems")
    return problem_set(chosen, each, count, split=split, seed=seed)
