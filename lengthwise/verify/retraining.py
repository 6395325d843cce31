"""Retrain a recipe, to check that weights come from it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lengthwise.base.errors import Diverged
from lengthwise.base.progress import Progress
from lengthwise.evaluation.scores import evaluate
from lengthwise.evaluation.sealed import digest
from lengthwise.runs.run import Weights
from lengthwise.training.loop import train
from lengthwise.verify.claims import Claims, find_refuted
from lengthwise.verify.verification import Check

SAMPLES = 400  # problems per size


def compare_retrained(
    weights: Weights, rows: Sequence[dict[str, Any]], seed: int, progress: Progress | None = None, **how: Any
) -> Check:
    """Train the recipe of these weights and compare. The check passes if the weights are the same, or no score on
    uniform problems in ``rows`` is refuted by the retrained ones: another processor or version of torch may change the
    last bits. ``how`` are further arguments of ``train``, such as ``threads``."""
    name = "trained again"
    with tempfile.TemporaryDirectory() as folder:
        try:
            run = train(weights.recipe, Path(folder) / "run", progress=progress, **how)
            again = run.weights(weights.device)
        except Diverged as error:
            return Check(name, "exposed", f"its recipe gives no weights: {error}")
    if digest(again.model.state_dict()) == digest(weights.model.state_dict()):
        return Check(name, "passed", "its recipe gives these weights, to the bit")
    uniform = [row for row in rows if row["problems"] == "uniform"]
    again = replace(again, name=weights.name)
    sizes = [tuple(row["sizes"]) for row in uniform]
    measured = [score.row() for score in evaluate(again, sizes, samples=SAMPLES, seed=seed)]
    wrong, count = find_refuted(Claims(uniform), measured, again, seed)
    summary = f"other weights; {len(wrong)} of {count} sizes are solved worse by what its recipe gives"
    return Check(name, "exposed" if wrong else "passed", "; ".join([summary, *wrong[:3]]))
