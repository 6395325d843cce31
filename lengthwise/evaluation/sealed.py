"""Final scores: on problems never used before, once for each set of weights."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lengthwise.base.rng import derive_seed
from lengthwise.base.types import Score
from lengthwise.evaluation.curves import sizes_without_scores
from lengthwise.evaluation.families import evaluate_families, short_sizes
from lengthwise.evaluation.scores import evaluate
from lengthwise.experiment.stopping import Stopping
from lengthwise.models.external import tensor_bytes
from lengthwise.runs.run import Run, Weights


def digest(tensors: dict[str, Tensor]) -> str:
    """Return ten hexadecimal digits that identify weights."""
    state = hashlib.blake2b(digest_size=5)
    for name in sorted(tensors):
        state.update(name.encode())
        state.update(tensor_bytes(tensors[name]))
    return state.hexdigest()


def sealed_seed(weights: Weights) -> int:
    """Return the seed of problems for the final measurement of these weights only."""
    return derive_seed(0, "sealed", weights.recipe.id, digest(weights.model.state_dict()))


def seal(
    run: Run,
    sizes: Sequence[int],
    *,
    samples: int,
    structured: int,
    rules: Sequence[Stopping] = (),
    kinds: Sequence[str] = ("uniform",),
    device: str | torch.device = "cpu",
) -> list[dict[str, Any]]:
    """Measure a run at the sizes that were not measured yet, on ``samples`` problems of each kind and ``structured``
    problems of each family. Its scores gain rows whose field ``sealed`` names the weights. Measurements are final:
    another call adds sizes and kinds, and never repeats one."""
    weights, recipe = run.weights(device), run.recipe
    name, seed = digest(weights.model.state_dict()), sealed_seed(weights)
    old = [row for row in run.rows("scores") if row.get("sealed") == name]
    known = {(tuple(row["sizes"]), row["problems"], row["stopping"]) for row in old}
    named = {"every", *(family.name for family in recipe.task.families)} - {*kinds}
    families = {tuple(row["sizes"]) for row in old if row["problems"] in named}
    chosen = list(rules) or [recipe.stopping]
    wanted = list(dict.fromkeys(map(recipe.sizes, sizes)))

    def store(*scores: Score) -> None:
        run.append("scores", *(score.row() | {"seed": seed, "sealed": name} for score in scores))

    for kind in kinds:
        measured = {(size, rule) for size, problems, rule in known if problems == kind}
        for missing, lacks in sizes_without_scores(recipe, wanted, chosen, measured).items():
            for score in evaluate(weights, lacks, samples=samples, stopping=missing, kind=kind, seed=seed):
                store(score)
    short = [recipe.sizes(size) for size in short_sizes(recipe, structured)]
    for size in dict.fromkeys([*short, *wanted]):
        if size not in families:  # all families of a size are stored together
            store(*evaluate_families(weights, [size], samples=structured, stopping=chosen[0], seed=seed))
    return [row for row in run.rows("scores") if row.get("sealed") == name]
