"""The viewer page: type a problem, and see the model's output after each loop."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
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
    examples = [
        {"prompt": one["prompt"], "origin": listed[one["prompt"]], "right": one["right"]}
        for one in recorded["recordings"]
    ]
    return recorded | {"examples": examples, "searched": searched}


# Examples


def collect_examples(weights: Weights, tries: int | None = None, problems: Sequence[str] = ()) -> dict[str, Any]:
    """Return ``examples``, problems with their origin and ``right``, whether the model solves them, as measured here;
    and ``searched``, a summary of the attack. Raises UsageError if the task cannot parse one of ``problems``."""
    listed, searched = _list_examples(weights, tries or TRIES, problems, COMPUTED)
    solver, found = Solver(weights), []
    for prompt, origin in listed.items():
        try:
            found.append({"prompt": prompt, "origin": origin, "right": solver.solve(prompt).correct})
        except UsageError:  # longer than the model's position table
            if origin == GIVEN:
                raise
    return {"examples": found, "searched": searched}


def _list_examples(
    weights: Weights, tries: int, problems: Sequence[str], multiples: Sequence[int]
) -> tuple[dict[str, str], str]:
    """Return problems with their origins, and a summary of the attack. The reader's problems come first; then one of
    the harder set, if the task has one, at twice the training length; uniform problems at multiples of the training
    length; one of each of some families; and problems that the model gets wrong."""
    recipe, drawn = weights.recipe, dict[str, str]()
    draw, top = stream(0, "page", recipe.task.name), recipe.lengths.top
    names = [family.name for family in recipe.task.families if recipe.sizes(top)[0] >= family.smallest]
    structured = [(top, name) for name in names[:: max(1, len(names) // HARD)][:HARD]]
    hard = [(2 * top, recipe.task.harder)] if recipe.task.has_harder else []
    for length, origin in [*hard, *((factor * top, "uniform") for factor in multiples), *structured]:
        with suppress(UsageError):  # a size that the task cannot draw
            size = torch.tensor([list(recipe.sizes(length))])
            (prompt,) = typed_prompts(recipe.task, get_sampler(recipe.task, origin)(size, draw))
            drawn[prompt] = f"{origin}, {size_text(size[0].tolist())}"
    failing: list[str] = []
    stored = json.loads(FAILURES.read_text(encoding="utf-8")).get(weights.name)
    if stored and stored["weights"] == weights_digest(weights.model.state_dict()):
        also = f"; {stored['also']}" if "also" in stored else ""
        failing = stored["prompts"]
        searched = f"lengthwise attack {weights.name} {stored['options']} {describe_search(stored)}{also}"
    else:
        try:
            ran = attack(weights, tries=tries)
            failing = [row["prompt"] for row in ran["shortest"][:MAX_FAILURES]]
            searched = f"An attack {describe_search(ran)}"
        except UsageError as error:  # a batch-wise stopping rule, or a position table that is too short
            searched = f"No attack: {error}"
    given = dict.fromkeys(problems, GIVEN)
    return given | drawn | dict.fromkeys(failing, "attack") | given, searched


def describe_search(search: Mapping[str, Any]) -> str:
    """Describe the outcome of a search: the number of tries and of failures."""
    if not search["failed"]:
        return f"found no wrong answer in {search['tries']:,} tries (not a proof)"
    return f"found {search['failed']:,} wrong answer{'s' * (search['failed'] > 1)} in {search['tries']:,} tries"
