"""The viewer page: type a problem, and see the model's output after each loop."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from lengthwise.base.rng import stream
from lengthwise.base.score_rows import size_text
from lengthwise.base.types import UsageError
from lengthwise.evaluation.attack import attack, typed_prompts
from lengthwise.evaluation.depth import find_recording_obstacle
from lengthwise.evaluation.sealed import weights_digest
from lengthwise.evaluation.solver import Solver, parse_prompt
from lengthwise.experiment.data import get_sampler
from lengthwise.runs.run import Weights
from lengthwise.viewer.document import build_document, escape, join_scripts
from lengthwise.viewer.models import export_model, find_export_obstacle, record_model

NETWORK = "tensors", "tasks", "layouts", "network", "timed", "trace", "rasp"  # scripts that compute
SCRIPTS = *NETWORK, "dom", "draw", "panel", "recorded", "viewer"
TRIES = 1500  # tries of an attack on a model without known failures; takes some seconds
RECORDED_TRIES = 20  # tries of an attack on a model that is recorded: large grids take longer
MAX_FAILURES = 4  # maximum number of failures shown
HARD = 3  # number of structured problems shown
GIVEN = "given"  # the origin of the reader's own problems
COMPUTED, RECORDED = (1, 2), (1, 2, 5)  # lengths of uniform examples, as multiples of the training length
# The longest searches for failures of shipped weights: the options of ``attack``, the counts, and some failing prompts;
# ``weights`` is the digest of the weights searched.
FAILURES = Path(__file__).with_name("failures.json")


ABOUT_COMPUTED = (
    "The model itself runs in this page: its weights are in the file, and nothing is sent anywhere. Type a "
    "problem to see the model's answer after every loop, its confidence, its attention, and where it would stop."
)
ABOUT_RECORDED = (
    "This page plays recordings of a model: for each problem the answer after every loop, its confidence, the "
    "movement of the state, and the loop at which the model stops."
)


def viewer_page(models: Sequence[Weights], problems: Sequence[str] = ()) -> str:
    """Return the viewer page of these models, as HTML; ``problems`` are shown first. A model that ``js`` does not
    implement is recorded. Raises UsageError if a model cannot be recorded either, if a task cannot parse a problem, or
    if two models share a name."""
    names = [model.name for model in models]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{repeated[0]} is given more than once: list each model once")
    for number, problem in enumerate(problems, 1):
        for model in models:
            try:
                parse_prompt(model.recipe.task, problem)
            except UsageError as error:
                raise UsageError(f"problem {number}: {error}") from None
    data = [model_data(model, problems=problems) for model in models]
    recorded = ["recordings" in model for model in data]
    about = [ABOUT_COMPUTED] * (not all(recorded)) + [ABOUT_RECORDED] * any(recorded)
    heading = " and ".join(names)
    compressed = ["models"] * any(recorded)  # recordings repeat themselves; weights do not
    body = f"""<a class="skip" href="#thinking">to the problem</a>
<h1>{escape(heading)}: loop by loop</h1>
<main id="thinking" data-viewer="models"></main>
{"".join(f"<p>{text}</p>" for text in about)}
<noscript><p>This page needs JavaScript, which is switched off.</p></noscript>"""
    code = join_scripts(*SCRIPTS)
    return build_document(f"{heading}: loop by loop", body, code, {"models": {"models": data}}, compressed=compressed)


def model_data(model: Weights, tries: int | None = None, problems: Sequence[str] = ()) -> dict[str, Any]:
    """Return the data of one model for the viewer; ``tries`` is the length of the attack, ``problems`` are shown
    first."""
    parameters = sum(part.numel() for part in model.model.parameters())
    obstacle = find_export_obstacle(model.recipe, parameters)
    if not obstacle:
        return export_model(model) | collect_examples(model, tries, problems)
    if reason := find_recording_obstacle(model.recipe):
        raise UsageError(
            f"{model.recipe.name}: a page can neither run this model ({obstacle}) nor show a recording ({reason})"
        )
    listed, searched = _list_examples(model, min(tries or TRIES, RECORDED_TRIES), problems, RECORDED)
    recorded = record_model(model, listed, given_prompts=problems)
    examples = [_format_example(one["prompt"], listed[one["prompt"]], one["right"]) for one in recorded["recordings"]]
    return recorded | {"examples": examples, "searched": searched}


# Examples


def collect_examples(weights: Weights, tries: int | None = None, problems: Sequence[str] = ()) -> dict[str, Any]:
    """Return ``examples``, problems with their origin and ``right``, whether the model solves them, as measured here;
    and ``searched``, a summary of the attack. Raises UsageError if the task cannot parse one of ``problems``."""
    listed, searched = _list_examples(weights, tries or TRIES, problems, COMPUTED)
    solver, found = Solver(weights), []
    for prompt, origin in listed.items():
        try:
            found.append(_format_example(prompt, origin, solver.solve(prompt).correct))
        except UsageError:  # longer than the model's position table
            if origin == GIVEN:
                raise
    return {"examples": found, "searched": searched}


def _format_example(prompt: str, origin: str, right: bool | None) -> dict[str, Any]:
    return {"prompt": prompt, "origin": origin, "right": right}


def _list_examples(
    weights: Weights, tries: int, problems: Sequence[str], multiples: Sequence[int]
) -> tuple[dict[str, str], str]:
    """Return problems with their origins, those of the reader first, and a summary of the attack."""
    failing, searched = _find_failures(weights, tries)
    drawn = dict([*_draw_examples(weights, multiples), *((prompt, "attack") for prompt in failing)])
    given = dict.fromkeys(problems, GIVEN)
    return given | {prompt: origin for prompt, origin in drawn.items() if prompt not in given}, searched


def _draw_examples(weights: Weights, multiples: Sequence[int]) -> list[tuple[str, str]]:
    """Draw one problem of the harder set, if the task has one, at twice the training length; uniform problems at
    multiples of the training length; and one problem of each of some families."""
    recipe, draw = weights.recipe, stream(0, "page", weights.recipe.task.name)
    top = recipe.lengths.top
    names = [family.name for family in recipe.task.families if recipe.sizes(top)[0] >= family.smallest]
    structured = [(top, name) for name in names[:: max(1, len(names) // HARD)][:HARD]]
    hard = [(2 * top, recipe.task.harder)] if recipe.task.has_harder else []
    wanted = [*hard, *((factor * top, "uniform") for factor in multiples), *structured]
    found = []
    for length, origin in wanted:
        try:
            size = torch.tensor([list(recipe.sizes(length))])
            (prompt,) = typed_prompts(recipe.task, get_sampler(recipe.task, origin)(size, draw))
        except UsageError:  # a size that the task cannot draw
            continue
        found.append((prompt, f"{origin}, {size_text(size[0].tolist())}"))
    return found


def _find_failures(weights: Weights, tries: int) -> tuple[list[str], str]:
    """Return problems that the model gets wrong, and a description of the search for them."""
    stored = json.loads(FAILURES.read_text(encoding="utf-8")).get(weights.name)
    if stored and stored["weights"] == weights_digest(weights.model.state_dict()):
        also = f"; {stored['also']}" if "also" in stored else ""
        command = f"lengthwise attack {weights.name} {stored['options']}"
        return stored["prompts"], f"{command} {describe_search(stored)}{also}"
    try:
        ran = attack(weights, tries=tries)
    except UsageError as error:  # a batch-wise stopping rule, or a position table that is too short
        return [], f"No attack: {error}"
    return [row["prompt"] for row in ran["shortest"][:MAX_FAILURES]], f"An attack {describe_search(ran)}"


def describe_search(search: Mapping[str, Any]) -> str:
    """Describe the outcome of a search: the number of tries and of failures."""
    if not search["failed"]:
        return f"found no wrong answer in {search['tries']:,} tries (not a proof)"
    return f"found {search['failed']:,} wrong answer{'s' * (search['failed'] > 1)} in {search['tries']:,} tries"
