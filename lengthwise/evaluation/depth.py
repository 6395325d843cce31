"""Exact match and confidence after every loop, and the loops that stopping rules choose."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lengthwise.base.progress import Progress
from lengthwise.base.results import AnySize
from lengthwise.base.types import UsageError
from lengthwise.evaluation.curves import sizes_with_progress
from lengthwise.evaluation.scores import trace_answers
from lengthwise.experiment.data import evaluation_problems
from lengthwise.experiment.stopping import MaxConfidence, Oracle, choose_loops, loop_limits
from lengthwise.runs.run import Run, Weights

QUANTILES = (0.1, 0.9)


def measure_depth(weights: Weights, size: AnySize, *, samples: int = 512, seed: int = 0) -> dict[str, Any]:
    """Measure the answers after each loop k = 1, 2, … to new problems of one size.

    The row has the fraction correct (``exact``) and the mean ``confidence`` (mean log probability) after each loop up
    to the largest limit, and the loops that each rule chooses: the oracle, ``MaxConfidence`` for all problems as one
    batch (512 as published) and per problem, and the recipe's ``own`` rule, if it is another one. Raises UsageError for
    a layout that decodes, or if problems of this size take different numbers of loops.
    """
    recipe = weights.recipe
    if recipe.layout.decodes:
        raise UsageError(f"{weights.name}: its inputs hold the right answer; to measure confidence, use another layout")
    sizes = recipe.sizes(size)
    batch = recipe.layout.write(evaluation_problems(recipe, sizes, samples, seed=seed), recipe.task)
    planned = recipe.loops.planned(batch.rounds)
    if len(planned.unique()) > 1:  # then loop k means different things for different problems
        raise UsageError(
            f"{recipe.task.name}: problems of one size take different numbers of loops, so there is no single curve"
        )
    own = recipe.stopping
    most = own if isinstance(own, MaxConfidence) else MaxConfidence()
    rules = {
        "oracle": Oracle(),
        "batch": MaxConfidence(most.extra, per="batch"),
        "example": MaxConfidence(most.extra, per="example"),
        **({} if own == Oracle() or isinstance(own, MaxConfidence) else {"own": own}),
    }
    limits = {name: loop_limits(rule, planned) for name, rule in rules.items()}
    traced, right = trace_answers(weights.model, recipe, batch, torch.stack([*limits.values()]).amax(0))
    chosen = {
        name: choose_loops(rule, replace(traced, loops=limits[name]), planned, limits[name])
        for name, rule in rules.items()
    }
    return {
        "task": recipe.task.name,
        "sizes": list(sizes),
        "count": samples,
        "seed": seed,
        "planned": int(planned[0]),
        "exact": _round_values(right.float().mean(1)),
        "confidence": _round_values(traced.confidence.mean(1)),
        "chosen": {name: _summarize_choice(loops, right) for name, loops in chosen.items()},
    }


def measure_depths(
    run: Run,
    sizes: Iterable[AnySize],
    samples: int,
    progress: Progress | None = None,
    device: str | torch.device = "cpu",
) -> list[dict[str, Any]]:
    """Return a row per size. Sizes without a row of ``samples`` problems in the run's folder are measured and, for a
    trained run, appended to it. If the user's own code has changed since training, all sizes are measured again and
    none is stored."""
    changed = bool(run.changed_code())
    rows = [] if changed else run.rows("depth")
    known = {tuple(row["sizes"]): row for row in rows if row["count"] == samples}
    wanted = [run.recipe.sizes(size) for size in sizes]
    if missing := [size for size in wanted if size not in known]:
        weights, shown = run.weights(device), progress or Progress(quiet=True)
        for size in sizes_with_progress(shown, run.recipe, missing, label=f"{run.recipe.name}: every loop"):
            known[size] = measure_depth(weights, size, samples=samples)
            if run.is_run and not changed:
                run.append("depth", known[size])
    return [known[size] for size in wanted]


def _summarize_choice(loops: Int[Tensor, " b"], is_right: Tensor) -> dict[str, Any]:
    """Return the mean and the 10 % and 90 % quantiles of the chosen loops, and exact match after them."""
    low, high = loops.float().quantile(torch.tensor(QUANTILES)).tolist()
    correct = is_right[loops - 1, torch.arange(len(loops))]
    return {"mean": float(loops.float().mean()), "low": low, "high": high, "exact": float(correct.float().mean())}


def _round_values(values: Float[Tensor, " k"]) -> list[float]:
    return [float(f"{value:.6g}") for value in values.tolist()]
