"""Final scores, measured once for each set of weights, on problems never used before."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lengthwise.base.rng import derive_seed
from lengthwise.base.types import Score
from lengthwise.evaluation.families import evaluate_families, short_sizes, sizes_without_scores
from lengthwise.evaluation.scores import evaluate
from lengthwise.experiment.stopping import Stopping
from lengthwise.models.external import tensor_bytes
from lengthwise.runs.run import Run, Weights


def weights_digest(tensors: dict[str, Tensor]) -> str:
    """Return ten hexadecimal digits that identify weights."""
    state = hashlib.blake2b(digest_size=5)
    for name in sorted(tensors):
        state.update(name.encode())
        state.update(tensor_bytes(tensors[name]))
    return state.hexdigest()


def sealed_seed(weights: Weights) -> int:
    """Return the seed of problems for the final measurement of these weights only."""
    return derive_seed(0, "sealed", weights.recipe.id, weights_digest(weights.model.state_dict()))


def measure_sealed(
    run: Run,
    sizes: Sequence[int],
    *,
    samples: int,
    family_samples: int,
    rules: Sequence[Stopping] = (),
    kinds: Sequence[str] = ("uniform",),
    device: str | torch.device = "cpu",
) -> list[dict[str, Any]]:
    """Measure a run at new sizes, on ``samples`` problems of each kind and ``family_samples`` problems of each family.
    Its scores gain rows whose field ``sealed`` is a digest of the weights. Measurements are final: another call adds
    sizes and kinds, and never repeats a measurement."""
    weights, recipe = run.weights(device), run.recipe
    name, seed = weights_digest(weights.model.state_dict()), sealed_seed(weights)
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
        for missing, unmeasured in sizes_without_scores(recipe, wanted, chosen, measured).items():
            for score in evaluate(weights, unmeasured, samples=samples, stopping=missing, kind=kind, seed=seed):
                store(score)
    short = [recipe.sizes(size) for size in short_sizes(recipe, family_samples)]
    for size in dict.fromkeys([*short, *wanted]):
        if size not in families:  # all families of a size are stored together
            store(*evaluate_families(weights, [size], samples=family_samples, stopping=chosen[0], seed=seed))
    return [row for row in run.rows("scores") if row.get("sealed") == name]
