"""Example problems for a page: typical ones, hard ones, and known failures of the model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch

from lengthwise.base.rng import stream
from lengthwise.base.score_rows import size_text
from lengthwise.base.types import UsageError
from lengthwise.evaluation.attack import attack, prompts
from lengthwise.evaluation.sealed import digest
from lengthwise.evaluation.solver import Solver
from lengthwise.experiment.data import sampler
from lengthwise.runs.run import Weights

TRIES = 1500  # of an attack on a model without known failures; takes some seconds
FAILURES = 4  # maximum number shown
HARD = 3  # number of structured problems shown


def collect_examples(weights: Weights, tries: int | None = None) -> dict[str, Any]:
    """Return ``examples``, problems with their origin and whether the model solves them, and ``searched``, a summary of
    the search for failures. The model answers each problem here, so ``right`` is always measured."""
    failing, searched = _find_failures(weights, tries or TRIES)
    solver, found = Solver(weights), []
    for prompt, origin in dict([*_draw_examples(weights), *((prompt, "attack") for prompt in failing)]).items():
        try:
            answer = solver.solve(prompt)
        except UsageError:  # longer than the model's position table
            continue
        found.append({"prompt": prompt, "origin": origin, "right": answer.correct})
    return {"examples": found, "searched": searched}


def _draw_examples(weights: Weights) -> list[tuple[str, str]]:
    """Draw one problem of the harder set at twice the training length, if the task has one; uniform problems at the
    training length and at twice it; and one each of some families."""
    recipe, draw = weights.recipe, stream(0, "page", weights.recipe.task.name)
    top = recipe.lengths.top
    names = [family.name for family in recipe.task.families if recipe.sizes(top)[0] >= family.smallest]
    structured = [(top, name) for name in names[:: max(1, len(names) // HARD)][:HARD]]
    hard = [(2 * top, recipe.task.harder)] if recipe.task.has_harder else []
    wanted = [*hard, (top, "uniform"), (2 * top, "uniform"), *structured]
    found = []
    for length, origin in wanted:
        try:
            size = torch.tensor([list(recipe.sizes(length))])
            (prompt,) = prompts(recipe.task, sampler(recipe.task, origin)(size, draw))
        except UsageError:  # a size that the task cannot draw
            continue
        found.append((prompt, f"{origin}, {size_text(size[0].tolist())}"))
    return found


def _find_failures(weights: Weights, tries: int) -> tuple[list[str], str]:
    """Return problems that the model gets wrong, and a description of the search for them."""
    stored = _longest_searches().get(weights.name)
    if stored and stored["weights"] == digest(weights.model.state_dict()):
        also = f"; {stored['also']}" if "also" in stored else ""
        return stored[
            "prompts"
        ], f"lengthwise attack {weights.name} {stored['options']} {describe_search(stored)}{also}"
    try:
        ran = attack(weights, tries=tries)
    except UsageError as error:  # a batch-wise stopping rule, or a position table that is too short
        return [], f"no search for failures: {error}"
    return [row["prompt"] for row in ran["shortest"][:FAILURES]], f"a search for failures {describe_search(ran)}"


def describe_search(search: Mapping[str, Any]) -> str:
    """Describe the outcome of a search: the number of tries and of failures."""
    if not search["failed"]:
        return f"found no wrong answer in {search['tries']:,} tries, which proves nothing"
    return f"found {search['failed']:,} wrong answer{'s' * (search['failed'] > 1)} in {search['tries']:,} tries"


@cache
def _longest_searches() -> dict[str, dict[str, Any]]:
    """Read the longest searches for failures of shipped weights: the ``options`` of ``attack``, the counts, and some
    failing prompts. ``weights`` is the digest of the weights searched."""
    return json.loads((Path(__file__).parent / "failures.json").read_text(encoding="utf-8"))
