"""Measurements of a looped model after every loop: accuracy, confidence, the movement of its state, and recordings of
single problems."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from torch.nn import functional as F

from lengthwise.base.progress import Progress
from lengthwise.base.results import AnySize, Fate
from lengthwise.base.types import UsageError, to_device
from lengthwise.evaluation.answers import gather_slots, mask_answers, predict
from lengthwise.evaluation.families import show_size_progress
from lengthwise.evaluation.scores import trace_answers
from lengthwise.evaluation.solver import parse_prompt
from lengthwise.experiment.data import draw_recipe_problems
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.stopping import MaxConfidence, Oracle, Restarts, choose_loops, compute_loop_limits
from lengthwise.runners.plain import PERIOD_COUNT, Movements, Plain, flatten_state, unroll
from lengthwise.runs.run import Run, Weights

LOOPS_AFTER_STOP = 20  # number of loops recorded after the recipe's own rule has stopped
MAX_LOOPS = 500  # largest number of loops of one recording
MAX_CELLS = 1_000_000  # answer slots times loops of recordings
SMALLEST_MOVEMENT = 1e-4  # smaller movements are recorded as this


def measure_depth(weights: Weights, size: AnySize, *, samples: int = 512, seed: int = 0) -> dict[str, Any]:
    """Measure the answers to new problems of one size after each loop, and return a row: per loop, ``exact`` is the
    fraction correct and ``confidence`` the mean log probability. ``chosen`` describes the loops that rules choose: the
    oracle, ``MaxConfidence`` for all problems as one batch (512 problems, as published) and per problem, and the
    recipe's ``own`` rule, if it differs from these. Raises UsageError for a layout that decodes, or if problems take
    different numbers of loops."""
    recipe = weights.recipe
    if recipe.layout.decodes:
        raise UsageError(f"{weights.name}: its inputs hold the right answer; to measure confidence, use another layout")
    sizes = recipe.sizes(size)
    batch = recipe.layout.write(draw_recipe_problems(recipe, sizes, samples, seed=seed), recipe.task)
    planned = recipe.loops.planned(batch.rounds)
    if len(planned.unique()) > 1:  # then loop k means different things for different problems
        raise UsageError(
            f"{recipe.task.name}: problems of one size take different numbers of loops, so no curve can be drawn"
        )
    own_rule = recipe.stopping
    confidence_rule = own_rule if isinstance(own_rule, MaxConfidence) else MaxConfidence()
    rules = {
        "oracle": Oracle(),
        "batch": MaxConfidence(confidence_rule.extra, per="batch"),
        "example": MaxConfidence(confidence_rule.extra, per="example"),
        **({} if own_rule == Oracle() or isinstance(own_rule, MaxConfidence) else {"own": own_rule}),
    }
    limits = {name: compute_loop_limits(rule, planned) for name, rule in rules.items()}
    movement, limit = own_rule.needs_movement, torch.stack([*limits.values()]).amax(0)
    traced, right = trace_answers(weights.model, recipe, batch, limit, with_movement=movement)
    chosen = {}
    for name, rule in rules.items():
        loops = choose_loops(rule, replace(traced, loops=limits[name]), planned, limits[name])
        low, high = loops.float().quantile(torch.tensor((0.1, 0.9))).tolist()
        exact = float(right[loops - 1, torch.arange(samples)].float().mean())
        chosen[name] = {"mean": float(loops.float().mean()), "low": low, "high": high, "exact": exact}
    return {
        "task": recipe.task.name,
        "sizes": list(sizes),
        "count": samples,
        "seed": seed,
        "planned": int(planned[0]),
        "exact": [float(f"{value:.6g}") for value in right.float().mean(1).tolist()],
        "confidence": [float(f"{value:.6g}") for value in traced.confidence.mean(1).tolist()],
        "chosen": chosen,
    }


def measure_depths(
    run: Run,
    sizes: Iterable[AnySize],
    samples: int,
    progress: Progress | None = None,
    device: str | torch.device = "cpu",
) -> list[dict[str, Any]]:
    """Return the row of ``measure_depth`` for each size. Stored rows that count ``samples`` problems are read from the
    run's folder. All other sizes are measured and, for a trained run, their rows are stored there. If the user's own
    code has changed since training, all sizes are measured and no row is stored."""
    changed = bool(run.list_changed_classes())
    rows = [] if changed else run.rows("depth")
    rows_by_size = {tuple(row["sizes"]): row for row in rows if row["count"] == samples}
    all_sizes = [run.recipe.sizes(size) for size in sizes]
    if missing := [size for size in all_sizes if size not in rows_by_size]:
        weights, shown = run.weights(device), progress or Progress(quiet=True)
        for size in show_size_progress(shown, run.recipe, missing, label=f"{run.recipe.name}: every loop"):
            rows_by_size[size] = measure_depth(weights, size, samples=samples)
            if run.is_run and not changed:
                run.append("depth", rows_by_size[size])
    return [rows_by_size[size] for size in all_sizes]


@torch.no_grad()
def measure_fate(weights: Weights, size: AnySize | None, *, extra_loops: int, samples: int, seed: int) -> Fate:
    """Return the ``Fate`` of one set of weights: how answers and states change over T(n) + ``extra_loops`` loops. The
    model runs twice, to compare each state with the final state."""
    model, recipe = weights.model.eval(), weights.recipe
    if int(recipe.loops.planned(torch.tensor([9]))) < 2:
        raise UsageError(f"{weights.name}: the model runs a single loop; `depth` needs looped weights")
    if recipe.layout.decodes:
        raise UsageError(
            f"{weights.name}: its inputs hold the right answer, which loops do not change; use another layout"
        )
    sizes = recipe.tops if size is None else recipe.sizes(size)
    batch = recipe.layout.write(draw_recipe_problems(recipe, sizes, samples, seed=seed), recipe.task)
    planned, mask = recipe.loops.planned(batch.rounds), batch.inputs.padding_mask
    right_symbols = gather_slots(batch.targets, batch.answer_slots)
    ignored = ~mask_answers(right_symbols, batch.answer_slots, recipe.layout.end_id(recipe.task))
    _, last_state = Plain(model).carry(batch.inputs, planned + extra_loops, batch.answer_slots)
    last = flatten_state(model.answer_state(last_state), mask.shape[1])
    smallest_planned, shape = int(planned.min()), (int(planned.max()) + extra_loops, len(batch))
    exact, moved_one, moved_two, cosine = (torch.full(shape, torch.nan) for _ in range(4))
    first_row, first_map, movements = [], [], Movements(model, batch.inputs)
    for loop, rows, state in unroll(model, batch.inputs, planned + extra_loops):
        moved = movements.measure(rows, state).cpu()
        current = flatten_state(model.answer_state(state), mask.shape[1])
        real = mask[rows]
        count = real.sum(1)
        answer = gather_slots(model.read(state).argmax(-1).cpu(), batch.answer_slots[rows])
        slots = slice(answer.shape[1])  # all slots of these rows; other rows may have more
        exact[loop - 1, rows] = ((answer == right_symbols[rows, slots]) | ignored[rows, slots]).all(1).float()
        means = ((moved[..., period] * real).sum(1) / count for period in range(PERIOD_COUNT))
        moved_one[loop - 1, rows], moved_two[loop - 1, rows] = means
        similarity = F.cosine_similarity(current, last[to_device(rows, last.device)], dim=-1).cpu()
        cosine[loop - 1, rows] = (similarity * real).sum(1) / count
        if (first := (rows == 0).nonzero()[:, 0]).numel():
            first_row.append(current[first[0]][real[first[0]]].flatten().float().cpu())
            first_map.append(_round_finite(moved[first[0], :, 0][real[first[0]]].tolist()))
    # Means over rows, aligned by the number of loops before or after each row's T(n).
    aligned = planned[:, None] + torch.arange(1 - smallest_planned, extra_loops + 1) - 1
    courses = {"exact": exact, "moved": moved_one, "moved_over_two": moved_two, "cosine": cosine}
    means_of = {name: values.T.gather(1, aligned).double().mean(0).tolist() for name, values in courses.items()}
    # The first problem's states on their first two principal components; there are fewer loops than numbers.
    states = torch.stack(first_row)
    centred = states - states.mean(0)
    variances, vectors = torch.linalg.eigh(centred @ centred.T)
    path = vectors[:, [-1, -2]] * variances[[-1, -2]].clamp(min=0).sqrt()
    return Fate(
        weights=weights.name,
        recipe=recipe.name,
        trained_seed=recipe.seed,
        task=recipe.task.name,
        sizes=tuple(sizes),
        count=samples,
        seed=seed,
        planned=float(planned.float().mean()),
        after=list(range(1 - smallest_planned, extra_loops + 1)),
        **{name: _round_finite(values) for name, values in means_of.items()},
        map=first_map,
        path=[[float(f"{x:.4g}") for x in point] for point in path.tolist()],
        map_planned=int(planned[0]),
    )


def _round_finite(values: list[float]) -> list[float | None]:
    """Round values to four significant digits; values that are not finite become None."""
    return [float(f"{value:.4g}") if math.isfinite(value) else None for value in values]


def find_recording_obstacle(recipe: Recipe) -> str:
    """Return why a recipe's answers after each loop cannot be recorded; empty if they can."""
    if recipe.layout.decodes:
        return "its inputs hold the right answer"
    return "it has one loop" if int(recipe.loops.planned(torch.tensor([9]))) < 2 else ""


@torch.no_grad()
def record_problem(weights: Weights, prompt: str, max_cells: int = MAX_CELLS) -> dict[str, Any] | None:
    """Record a model's answer to one problem after every loop. Each entry of ``loops`` has, per answer slot, the
    likeliest symbol's id (``said``) and probability in percent (``sure``), and the largest relative movement of a
    position's state (``moved``; None in the first loop). ``stop`` is the loop at which the recipe's rule stops or, if
    ``stopped`` is False, the rule's limit; ``right`` is True if the answer after ``stop`` loops is right. Return None
    if the recording needs more than MAX_LOOPS loops or ``max_cells`` slots × loops. Raises UsageError if the task
    cannot parse the prompt, or if the right answer is unknown."""
    model, recipe = weights.model.eval(), weights.recipe
    problems, is_known = parse_prompt(recipe.task, prompt)
    if not is_known:
        raise UsageError(f"{recipe.task.name}: the answer to {prompt} is unknown; use a problem from the task's file")
    batch = recipe.layout.write(problems, recipe.task)
    rule = recipe.stopping.rule if isinstance(recipe.stopping, Restarts) else recipe.stopping
    predictions = predict(model, recipe, batch, rule)
    stop, slots = int(predictions.loops[0]), int(batch.answer_slots.sum())
    if stop + LOOPS_AFTER_STOP > MAX_LOOPS or (stop + LOOPS_AFTER_STOP) * slots > max_cells:
        return None
    loops, movements = [], Movements(model, batch.inputs)
    for _, rows, state in unroll(model, batch.inputs, torch.tensor([stop + LOOPS_AFTER_STOP])):
        probability = model.read(state).softmax(-1).cpu()
        best = probability.max(-1)
        said, sure = (gather_slots(values, batch.answer_slots)[0] for values in (best.indices, best.values))
        moved = float(movements.measure(rows, state)[..., 0].max())
        loops.append(
            {
                "said": said.tolist(),
                "sure": (100 * sure).floor().int().tolist(),
                "moved": float(f"{max(moved, SMALLEST_MOVEMENT):.3g}") if loops else None,
            }
        )
    length = int(problems.answer_length[0]) + (recipe.layout.end_id(recipe.task) is not None)
    right_symbols = batch.targets[batch.answer_slots][:length].tolist()
    return {
        "prompt": prompt,
        "shape": recipe.task.shape(problems.sizes[0].tolist()),
        "planned": int(recipe.loops.planned(batch.rounds)[0]),
        "stop": stop,
        "stopped": predictions.stopped_by_rule is None or bool(predictions.stopped_by_rule[0]),
        "right": loops[stop - 1]["said"][:length] == right_symbols,
        "wanted": right_symbols,
        "loops": loops,
    }
