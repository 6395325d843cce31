"""How answers go wrong: where the first wrong symbol stands, whether they end in time, and which problems are hard."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lengthwise.base.types import Kind, UsageError
from lengthwise.evaluation.scores import answers, in_parts, slots
from lengthwise.recipe.data import unseen
from lengthwise.recipe.layout import up_to_end
from lengthwise.recipe.recipe import check_stopping
from lengthwise.recipe.stopping import Stopping
from lengthwise.run import Weights

GROUPS = 6  # into which problems are put by how hard they are, at most


def anatomy(
    weights: Weights,
    size: int | tuple[int, ...],
    *,
    samples: int = 1000,
    stopping: Stopping | None = None,
    kind: Kind = "uniform",
    seed: int = 0,
) -> dict[str, Any]:
    """A row of what is wrong with the answers to fresh problems of one size, the same as ``evaluate`` takes.

    ``ends`` counts wrong answers by where they end: ``early``, ``late`` (or not at all), or ``right``, so that a symbol
    is wrong; ``first_wrong`` by the answer's place, from 1, at which they first go wrong. ``by`` has, for each of the
    task's traits, groups of problems of about the same number, ordered by it: its lowest and highest value there, how
    many they are, and the share that is right.
    """
    recipe = weights.recipe
    rule = stopping or recipe.stopping
    check_stopping(recipe.layout, rule)
    if samples < 1:
        raise UsageError(f"samples must be 1 or more, not {samples}")
    at, end = recipe.sizes(size), recipe.layout.end(recipe.task)
    problems = unseen(recipe, at, samples, seed=seed, kind=kind)
    wrong, early, late = [], [], []
    for _, batch in in_parts(recipe, problems):
        (predicted,) = answers(weights.model, recipe, batch, [rule])
        wanted, answer_slots = slots(batch.targets, batch.answer_slots), slots(batch.answer_slots, batch.answer_slots)
        answer = answer_slots & up_to_end(wanted, end)
        wrong.append((predicted.symbols != wanted) & answer)
        length = (answer_slots & up_to_end(predicted.symbols, end)).sum(1)
        # One that never ends fills its room, as the longest possible answer does; it then lacks the end symbol.
        open_ended = (
            ~((predicted.symbols == end) & answer_slots).any(1) if end is not None else torch.zeros_like(length) > 0
        )
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
        "sizes": list(at),
        "count": samples,
        "seed": seed,
        "exact": _share(~missed),
        "ends": ends | {"right": int(missed.sum()) - sum(ends.values())},
        "first_wrong": {str(position): int((first == position).sum()) for position in sorted(set(first.tolist()))},
        "by": {name: _grouped(values, ~missed) for name, values in recipe.task.traits(problems).items()},
    }


def _grouped(values: Int[Tensor, " n"], right: Bool[Tensor, " n"]) -> list[dict[str, Any]]:
    """Problems of equal value stay together; a group ends where it has its share of them all."""
    kinds, counts = values.unique(return_counts=True)
    # A group's number is how many shares have been filled before the middle of a value's problems.
    middle = counts.cumsum(0) - counts / 2
    numbers = (middle * min(GROUPS, len(kinds)) / len(values)).long()
    groups = []
    for number in numbers.unique():
        low, high = kinds[numbers == number][[0, -1]].tolist()
        inside = (values >= low) & (values <= high)
        groups.append({"low": low, "high": high, "count": int(inside.sum()), "exact": _share(right[inside])})
    return groups


def _share(flags: Bool[Tensor, " n"]) -> float:
    return float(f"{float(flags.float().mean()):.6g}")
