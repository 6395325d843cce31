"""Final scores: on problems that nobody has looked at, once for each set of weights."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lengthwise.base.rng import address
from lengthwise.base.types import Score
from lengthwise.evaluation.curves import lacking
from lengthwise.evaluation.families import evaluate_families, short_sizes
from lengthwise.evaluation.scores import evaluate
from lengthwise.experiment.stopping import Stopping
from lengthwise.models.external import tensor_bytes
from lengthwise.runs.run import Run, Weights


def digest(tensors: dict[str, Tensor]) -> str:
    """Ten hexadecimal digits that differ wherever weights do."""
    found = hashlib.blake2b(digest_size=5)
    for name in sorted(tensors):
        found.update(name.encode())
        found.update(tensor_bytes(tensors[name]))
    return found.hexdigest()


def sealed_seed(weights: Weights) -> int:
    """The seed of problems for the final measurement of these weights, and of no others."""
    return address(0, "sealed", weights.recipe.id, digest(weights.model.state_dict()))


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
    """Measure a run at these sizes, where that was not done yet, on ``samples`` problems of each kind and so many
    ``structured`` ones of each family. Its scores gain rows that name the weights as ``sealed``. What was measured once
    stays: another call adds sizes and kinds, and never draws the same anew."""
    weights, recipe = run.weights(device), run.recipe
    name, seed = digest(weights.model.state_dict()), sealed_seed(weights)
    old = [row for row in run.rows("scores") if row.get("sealed") == name]
    known = {(tuple(row["sizes"]), row["problems"], row["stopping"]) for row in old}
    named = {"every", *(family.name for family in recipe.task.families)} - {*kinds}
    families = {tuple(row["sizes"]) for row in old if row["problems"] in named}
    chosen = list(rules) or [recipe.stopping]
    asked = list(dict.fromkeys(map(recipe.sizes, sizes)))

    def keep(*scores: Score) -> None:
        run.append("scores", *(score.row() | {"seed": seed, "sealed": name} for score in scores))

    for kind in kinds:
        there = {(at, rule) for at, problems, rule in known if problems == kind}
        for missing, at in lacking(recipe, asked, chosen, there).items():
            for score in evaluate(weights, at, samples=samples, stopping=missing, kind=kind, seed=seed):
                keep(score)
    short = [recipe.sizes(size) for size in short_sizes(recipe, structured)]
    unknown = [at for at in dict.fromkeys([*short, *asked]) if at not in families]
    for at in unknown:  # a size's families all at once, as any of them says that all are there
        keep(*evaluate_families(weights, [at], samples=structured, stopping=chosen[0], seed=seed))
    return [row for row in run.rows("scores") if row.get("sealed") == name]
