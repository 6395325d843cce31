"""Error analysis: the position of the first wrong symbol, answers of wrong length, and features of hard problems."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lengthwise.base.results import AnySize
from lengthwise.base.types import Kind
from lengthwise.evaluation.answers import answer_mask, decode, gather_slots, predict_by_rules
from lengthwise.evaluation.scores import SAMPLES, resolve_rules, split_batches
from lengthwise.experiment.data import evaluation_problems
from lengthwise.experiment.stopping import Stopping
from lengthwise.runs.run import Weights

GROUPS = 6  # largest number of groups of problems per feature


def measure_anatomy(
    weights: Weights,
    size: AnySize,
    *,
    samples: int = SAMPLES,
    stopping: Stopping | None = None,
    kind: Kind = "uniform",
    seed: int = 0,
) -> dict[str, Any]:
    """Analyse the wrong answers to new problems of one size, the same problems as ``evaluate`` uses.

    ``ends`` counts wrong answers by their length: ``early``, ``late`` (or without an end), or ``right``, with a wrong
    symbol. ``first_wrong`` counts them by the index in the answer, from 1, of the first wrong symbol. ``by`` has, for
    each difficulty feature of the task, groups of about equally many problems ordered by the feature: its lowest and
    highest value, the number of problems, and the fraction answered correctly. Raises UsageError if ``samples`` is
    below 1, or if size, problems or stopping rule do not fit the recipe.
    """
    recipe = weights.recipe
    (rule,) = resolve_rules(weights, samples, stopping)
    sizes, end = recipe.sizes(size), recipe.layout.end(recipe.task)
    problems = evaluation_problems(recipe, sizes, samples, seed=seed, kind=kind)
    wrong, early, late = [], [], []
    for _, batch in split_batches(recipe, problems, batch_rows=rule.together):
        (predicted,) = predict_by_rules(weights.model, recipe, batch, [rule])
        wanted = gather_slots(batch.targets, batch.answer_slots)
        answer = answer_mask(wanted, batch.answer_slots, end)
        wrong.append((predicted.symbols != wanted) & answer)
        # If the answer is fed in, the symbols after a wrong one differ when the model reads its own answer.
        own = decode(weights.model, recipe, batch, rule) if recipe.layout.decodes else predicted
        answered = answer_mask(own.symbols, batch.answer_slots, end)
        length = answered.sum(1)
        # An answer without an end fills all slots; a complete one may too, but has an end symbol.
        open_ended = ~((own.symbols == end) & answered).any(1) if end is not None else torch.zeros_like(length) > 0
        early.append((length < answer.sum(1)) & ~open_ended)
        late.append((length > answer.sum(1)) | open_ended)
    missed = torch.cat([part.any(1) for part in wrong])
    first = torch.cat([part.long().argmax(1) + 1 for part in wrong])[missed]
    ended = {"early": torch.cat(early) & missed, "late": torch.cat(late) & missed}
    ends = {name: int(flags.sum()) for name, flags in ended.items()}
    return {
        "task": recipe.task.name,
        "stopping": rule.name,
        "problems": kind,
        "sizes": list(sizes),
        "count": samples,
        "seed": seed,
        "exact": _fraction_true(~missed),
        "ends": ends | {"right": int(missed.sum()) - sum(ends.values())},
        "first_wrong": {str(position): int((first == position).sum()) for position in sorted(set(first.tolist()))},
        "by": {
            name: _group_values(values, ~missed) for name, values in recipe.task.difficulty_features(problems).items()
        },
    }


def _group_values(values: Int[Tensor, " n"], is_right: Bool[Tensor, " n"]) -> list[dict[str, Any]]:
    """Return the fraction correct in groups of about equal size; problems with equal values share a group."""
    kinds, counts = values.unique(return_counts=True)
    # A value belongs to the group of its middle problem, in sorted order.
    middle = counts.cumsum(0) - counts / 2
    numbers = (middle * min(GROUPS, len(kinds)) / len(values)).long()
    groups = []
    for number in numbers.unique():
        low, high = kinds[numbers == number][[0, -1]].tolist()
        inside = (values >= low) & (values <= high)
        groups.append({"low": low, "high": high, "count": int(inside.sum()), "exact": _fraction_true(is_right[inside])})
    return groups


def _fraction_true(flags: Bool[Tensor, " n"]) -> float:
    return float(f"{float(flags.float().mean()):.6g}")
