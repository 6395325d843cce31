"""Measure whether states settle in loops beyond T(n), and whether the answers are then right."""

from __future__ import annotations

import math
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from lengthwise.base.results import AnySize, Fate
from lengthwise.base.types import Batch, UsageError, to_device
from lengthwise.evaluation.answers import answer_mask, gather_slots
from lengthwise.experiment.data import evaluation_problems
from lengthwise.models import Model
from lengthwise.runners.plain import PERIODS, Movements, Plain, flatten_state, unroll
from lengthwise.runs.run import Weights


@torch.no_grad()
def measure_fate(weights: Weights, size: AnySize | None, *, more: int, samples: int, seed: int) -> Fate:
    """Return the ``Fate`` of one set of weights. The model runs twice, to compare each state with the last one."""
    model, recipe = weights.model.eval(), weights.recipe
    if recipe.layout.decodes:
        raise UsageError(
            f"{weights.name}: its inputs hold the right answer, which loops do not change; use another layout"
        )
    if int(recipe.loops.planned(torch.tensor([9]))) < 2:
        raise UsageError(f"{weights.name}: it runs a single loop; `depth` needs looped weights")
    sizes = recipe.tops if size is None else recipe.sizes(size)
    batch = recipe.layout.write(evaluation_problems(recipe, sizes, samples, seed=seed), recipe.task)
    planned = recipe.loops.planned(batch.rounds)
    _, last_state = Plain(model).carry(batch.inputs, planned + more, batch.answer_slots)
    last = flatten_state(model.answer_state(last_state), batch.inputs.padding_mask.shape[1])
    before, shape = int(planned.min()), (int(planned.max()) + more, len(batch))
    exact = torch.zeros(shape, dtype=torch.bool)
    moved_one, moved_two, cosine = (torch.full(shape, torch.nan) for _ in range(3))
    first_row, first_map, movements = [], [], Movements(model, batch.inputs)
    for loop, rows, state in unroll(model, batch.inputs, planned + more):
        moved = movements.after_loop(rows, state).cpu()
        current = flatten_state(model.answer_state(state), batch.inputs.padding_mask.shape[1])
        real = batch.inputs.padding_mask[rows]
        count = real.sum(1)
        exact[loop - 1, rows] = _find_right_rows(model, recipe.layout.end(recipe.task), batch, rows, state)
        means = ((moved[..., period] * real).sum(1) / count for period in range(PERIODS))
        moved_one[loop - 1, rows], moved_two[loop - 1, rows] = means
        similarity = F.cosine_similarity(current, last[to_device(rows, last.device)], dim=-1).cpu()
        cosine[loop - 1, rows] = (similarity * real).sum(1) / count
        if (first := (rows == 0).nonzero()[:, 0]).numel():
            first_row.append(current[first[0]][real[first[0]]].flatten().float().cpu())
            first_map.append(_round_finite(moved[first[0], :, 0][real[first[0]]].tolist()))
    names = {"exact": exact.float(), "moved": moved_one, "moved_over_two": moved_two, "cosine": cosine}
    return Fate(
        weights=weights.name,
        recipe=recipe.name,
        trained_seed=recipe.seed,
        task=recipe.task.name,
        sizes=tuple(sizes),
        count=samples,
        seed=seed,
        planned=float(planned.float().mean()),
        after=list(range(1 - before, more + 1)),
        **{name: _average_by_distance(values, planned, before, more) for name, values in names.items()},
        map=first_map,
        path=_project_states(torch.stack(first_row)),
        map_planned=int(planned[0]),
    )


def _find_right_rows(
    model: Model, end_id: int | None, batch: Batch, rows: Int[Tensor, " r"], state: Any
) -> Bool[Tensor, " r"]:
    """Return which rows' answers are right."""
    part = batch.take(rows)
    answer = gather_slots(model.read(state).argmax(-1).cpu(), part.answer_slots)
    wanted = gather_slots(part.targets, part.answer_slots)
    return ((answer == wanted) | ~answer_mask(wanted, part.answer_slots, end_id)).all(1)


def _average_by_distance(
    values: Float[Tensor, "k b"], planned: Int[Tensor, " b"], loops_before: int, more: int
) -> list[float | None]:
    """Return means over rows, aligned by the number of loops before or after each row's T(n)."""
    index = planned[:, None] + torch.arange(1 - loops_before, more + 1) - 1
    means = values.T.gather(1, index).double().mean(0)
    return _round_finite(means.tolist())


def _project_states(states: Float[Tensor, "k n"]) -> list[list[float]]:
    """Return one problem's states on their first two principal components, "k 2"."""
    centred = states - states.mean(0)
    sizes, vectors = torch.linalg.eigh(centred @ centred.T)  # there are fewer loops than numbers
    path = vectors[:, [-1, -2]] * sizes[[-1, -2]].clamp(min=0).sqrt()
    return [[float(f"{x:.4g}") for x in point] for point in path.tolist()]


def _round_finite(values: list[float]) -> list[float | None]:
    """Round to four digits; None for values that are not finite."""
    return [float(f"{value:.4g}") if math.isfinite(value) else None for value in values]
