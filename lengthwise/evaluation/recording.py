"""Recordings of what a looped model does with a problem, loop by loop, as plain numbers and text."""

from __future__ import annotations

from typing import Any

import torch

from lengthwise.base.types import UsageError
from lengthwise.evaluation.answers import gather_slots, predict
from lengthwise.evaluation.solver import parse_prompt
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.stopping import Restarts
from lengthwise.runners.plain import Movements, unroll
from lengthwise.runs.run import Weights

LOOPS_AFTER_STOP = 20  # loops recorded after the one at which the model's own rule stops
MOST_LOOPS = 500  # of one recording
MOST_CELLS = 1_000_000  # answer slots times loops
SMALLEST_MOVEMENT = 1e-4  # smaller movements are recorded as this


def find_recording_obstacle(recipe: Recipe) -> str:
    """Return why answers after each loop cannot be recorded; empty if they can."""
    if recipe.layout.decodes:
        return "its layout feeds the answer in"
    return "it has one loop" if int(recipe.loops.planned(torch.tensor([9]))) < 2 else ""


@torch.no_grad()
def record_problem(weights: Weights, prompt: str, max_cells: int = MOST_CELLS) -> dict[str, Any] | None:
    """Return what the model does with one problem. Each of ``loops`` has, per answer slot, the likeliest symbol's id
    (``said``) and probability in percent (``sure``), and the largest relative movement of a position's state
    (``moved``; None in the first loop). ``stop`` is the loop at which the model's own rule stops, ``stopped`` is False
    if this is only its limit, ``right`` tells whether the answer is right there. Returns None for more than MOST_LOOPS
    loops, or if slots × loops exceed ``max_cells``. Raises UsageError if the task cannot parse the prompt or does not
    know its answer."""
    model, recipe = weights.model.eval(), weights.recipe
    problems, known = parse_prompt(recipe.task, prompt)
    if not known:
        raise UsageError(f"{recipe.task.name}: the right answer to {prompt} is not known; use the file's problems")
    batch = recipe.layout.write(problems, recipe.task)
    rule = recipe.stopping.rule if isinstance(recipe.stopping, Restarts) else recipe.stopping
    own = predict(model, recipe, batch, rule)
    stop, slots = int(own.loops[0]), int(batch.answer_slots.sum())
    if stop + LOOPS_AFTER_STOP > MOST_LOOPS or (stop + LOOPS_AFTER_STOP) * slots > max_cells:
        return None
    loops, movements = [], Movements(model, batch.inputs)
    for _, rows, state in unroll(model, batch.inputs, torch.tensor([stop + LOOPS_AFTER_STOP])):
        probability = model.read(state).softmax(-1).cpu()
        best = probability.max(-1)
        said, sure = (gather_slots(values, batch.answer_slots)[0] for values in (best.indices, best.values))
        moved = float(movements.after_loop(rows, state)[..., 0].max())
        loops.append(
            {
                "said": said.tolist(),
                "sure": (100 * sure).floor().int().tolist(),
                "moved": float(f"{max(moved, SMALLEST_MOVEMENT):.3g}") if loops else None,
            }
        )
    length = int(problems.answer_length[0]) + (recipe.layout.end(recipe.task) is not None)
    wanted = batch.targets[batch.answer_slots][:length].tolist()
    return {
        "prompt": prompt,
        "shape": recipe.task.shape(problems.sizes[0].tolist()),
        "planned": int(recipe.loops.planned(batch.rounds)[0]),
        "stop": stop,
        "stopped": own.stopped is None or bool(own.stopped[0]),
        "right": loops[stop - 1]["said"][:length] == wanted,
        "wanted": wanted,
        "loops": loops,
    }
