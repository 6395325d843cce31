"""The viewer page: type a problem, and see the model's output after each loop. A model is exported as data for the
page, with its weights or as recordings."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lengthwise.base import fields
from lengthwise.base.rng import stream
from lengthwise.base.score_rows import format_size
from lengthwise.base.types import UsageError
from lengthwise.evaluation import depth
from lengthwise.evaluation.attack import attack, format_prompts
from lengthwise.evaluation.families import compute_weights_digest
from lengthwise.evaluation.solver import Solver, parse_prompt
from lengthwise.experiment.data import get_sampler
from lengthwise.experiment.layout import FullOutput, NextToken, Pairs
from lengthwise.experiment.loops import AnyLoops, Constant, ExtraLoops, PerRound
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.stopping import After, Converged, Halted, MaxConfidence, Oracle, Settled
from lengthwise.models.timed import Timed
from lengthwise.models.transformer import Transformer
from lengthwise.nn.attention import Attention
from lengthwise.nn.digit_position import Abacus, Coupling
from lengthwise.nn.position import Learned, Mark, NoPE
from lengthwise.nn.window import Blank, CoupledHeads, EarlierHeads, Local, LocalHeads
from lengthwise.rasp.program import export_program
from lengthwise.rasp.programs import find_program
from lengthwise.runs.run import Weights
from lengthwise.tasks import Task
from lengthwise.tasks.arithmetic import Addition, Multiplication
from lengthwise.tasks.bits import BinarySum, BitwiseOr, FlippedCopy
from lengthwise.tasks.parity import Parity
from lengthwise.tasks.sorting import Sorting
from lengthwise.tasks.strings import Copy, UniqueSet
from lengthwise.viewer.document import build_document, escape, join_scripts

MAX_PARAMETERS = 1_000_000  # larger models are not exported with their weights
# Types that js/ implements. They are matched exactly, since a subclass may compute something else.
EXAMPLES_BY_TASK: dict[type[Task], str] = {  # an example problem of each task
    Parity: "1011",
    Copy: "1011",
    FlippedCopy: "1011",
    BitwiseOr: "101|10",
    BinarySum: "1011",
    UniqueSet: "abac",
    Addition: "101+11",
    Multiplication: "11*101",
    Sorting: "A:321,B:54",
}
LAYOUT_TYPES = Pairs, FullOutput, NextToken
LOOP_TYPES = Constant, PerRound, ExtraLoops, AnyLoops
RULE_TYPES = Oracle, After, MaxConfidence, Halted, Converged, Settled
POSITION_TYPES = NoPE, Mark, Learned, Local, LocalHeads, CoupledHeads, EarlierHeads, Blank, Abacus, Coupling
REQUIRED_VALUES: dict[str, Any] = {"norm": "pre", "read_in": "table", "embedding_norm": False, "gated": False}
REQUIRED_VALUES |= {"biases": True, "readout": "linear", "mixer": Attention(), "mixers": ()}
ALLOWED_VALUES = {"final_norm": ("loop", "none"), "injection": ("add", "once")}
NETWORK_SCRIPTS = "tensors", "tasks", "layouts", "network", "timed", "trace", "rasp"  # scripts that compute
SCRIPTS = *NETWORK_SCRIPTS, "dom", "draw", "panel", "recorded", "viewer"
ATTACK_TRIES = 1500  # problems that an attack tries, in some seconds, on a model without known failures
HARD_EXAMPLE_COUNT = 3  # structured problems shown
CALLER_ORIGIN = "given"  # the origin of examples that the caller passed
# The longest search for failures of each shipped weights file: the options of ``attack``, the counts, some failing
# prompts, and, as ``weights``, the digest of the weights attacked.
FAILURES_FILE = Path(__file__).with_name("failures.json")

INTRO_OF_COMPUTED_PAGE = (
    "The model itself runs in this page: its weights are in the file, and nothing is sent anywhere. Type a "
    "problem to see the model's answer after every loop, its confidence, its attention, and where it would stop."
)
INTRO_OF_RECORDED_PAGE = (
    "This page plays recordings of a model: for each problem the answer after every loop, its confidence, the "
    "movement of the state, and the loop at which the model stops."
)


def build_viewer_page(models: Sequence[Weights], problems: Sequence[str] = ()) -> str:
    """Return the viewer page of these models, as HTML; ``problems`` are shown first. A model that ``js`` does not
    implement is recorded. Raises UsageError if a model cannot be recorded, or if a task cannot parse a problem."""
    names = [model.name for model in models]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"{repeated[0]} is given more than once: list each model once")
    for number, problem in enumerate(problems, 1):
        for model in models:
            try:
                parse_prompt(model.recipe.task, problem)
            except UsageError as error:
                raise UsageError(f"problem {number}: {error}") from None
    data = [build_model_data(model, problems=problems) for model in models]
    recorded = ["recordings" in model for model in data]
    about = [INTRO_OF_COMPUTED_PAGE] * (not all(recorded)) + [INTRO_OF_RECORDED_PAGE] * any(recorded)
    heading = " and ".join(names)
    compressed_ids = ["models"] * any(recorded)  # recordings repeat themselves; weights do not
    body = f"""<a class="skip" href="#thinking">to the problem</a>
<h1>{escape(heading)}: loop by loop</h1>
<main id="thinking" data-viewer="models"></main>
{"".join(f"<p>{text}</p>" for text in about)}
<noscript><p>This page needs JavaScript, which is switched off.</p></noscript>"""
    code = join_scripts(*SCRIPTS)
    title, content = f"{heading}: loop by loop", {"models": {"models": data}}
    return build_document(title, body, code, content, compressed_ids=compressed_ids)


def build_model_data(model: Weights, tries: int | None = None, problems: Sequence[str] = ()) -> dict[str, Any]:
    """Return one model's data for the viewer: the model or its recordings; ``examples``, the first of which are
    ``problems``, with origins and results; and ``searched``, a summary of an attack that tried ``tries`` problems."""
    obstacle = find_export_obstacle(model.recipe, sum(part.numel() for part in model.model.parameters()))
    if not obstacle:
        listed, searched = _list_examples(model, tries or ATTACK_TRIES, problems, multiples=(1, 2))
        solver, examples = Solver(model), []
        for prompt, origin in listed.items():
            try:
                examples.append({"prompt": prompt, "origin": origin, "right": solver.solve(prompt).correct})
            except UsageError:  # it does not fit the model's position table
                if origin == CALLER_ORIGIN:
                    raise
        return export_model(model) | {"examples": examples, "searched": searched}
    if reason := depth.find_recording_obstacle(model.recipe):
        neither = f"a page can neither run this model ({obstacle}) nor show a recording ({reason})"
        raise UsageError(f"{model.recipe.name}: {neither}")
    # Tries with large grids take longer.
    listed, searched = _list_examples(model, min(tries or ATTACK_TRIES, 20), problems, multiples=(1, 2, 5))
    recorded = record_model(model, listed, given_prompts=problems)
    shown = {recording["prompt"]: recording["right"] for recording in recorded["recordings"]}
    examples = [{"prompt": prompt, "origin": listed[prompt], "right": right} for prompt, right in shown.items()]
    return recorded | {"examples": examples, "searched": searched}


# Examples


def _list_examples(
    weights: Weights, tries: int, problems: Sequence[str], multiples: Sequence[int]
) -> tuple[dict[str, str], str]:
    """Return prompts with their origins, and a summary of the attack. Prompts are ``problems``, a problem of the harder
    set, uniform ones at ``multiples`` of the training length, some structured ones, and wrongly answered ones."""
    recipe, drawn = weights.recipe, dict[str, str]()
    draw, top = stream(0, "page", recipe.task.name), recipe.lengths.top
    names = [family.name for family in recipe.task.families if recipe.sizes(top)[0] >= family.smallest]
    structured = [(top, name) for name in names[:: max(1, len(names) // HARD_EXAMPLE_COUNT)][:HARD_EXAMPLE_COUNT]]
    hard = [(2 * top, recipe.task.harder)] if recipe.task.has_harder_set else []
    for length, origin in [*hard, *((factor * top, "uniform") for factor in multiples), *structured]:
        with suppress(UsageError):  # a size that the task cannot draw
            size = torch.tensor([list(recipe.sizes(length))])
            (prompt,) = format_prompts(recipe.task, get_sampler(recipe.task, origin)(size, draw))
            drawn[prompt] = f"{origin}, {format_size(size[0].tolist())}"
    failing: list[str] = []
    stored = json.loads(FAILURES_FILE.read_text(encoding="utf-8")).get(weights.name)
    if stored and stored["weights"] == compute_weights_digest(weights.model.state_dict()):
        also = f"; {stored['also']}" if "also" in stored else ""
        failing = stored["prompts"]
        searched = f"lengthwise attack {weights.name} {stored['options']} {describe_search(stored)}{also}"
    else:
        try:
            ran = attack(weights, tries=tries)
            failing = [row["prompt"] for row in ran["shortest"][:4]]
            searched = f"An attack {describe_search(ran)}"
        except UsageError as error:  # a batch-wise stopping rule, or a position table that is too short
            searched = f"No attack: {error}"
    origins = dict.fromkeys(problems, CALLER_ORIGIN)
    return origins | drawn | dict.fromkeys(failing, "attack") | origins, searched


def describe_search(search: Mapping[str, Any]) -> str:
    """Return the number of tries and of failures of a search as text."""
    if not search["failed"]:
        return f"found no wrong answer in {search['tries']:,} tries (not a proof)"
    return f"found {search['failed']:,} wrong answer{'s' * (search['failed'] > 1)} in {search['tries']:,} tries"


# Export


def export_model(weights: Weights) -> dict[str, Any]:
    """Return a model and the facts about its recipe as plain values: ``weights`` is base64 of little-endian float32
    numbers, ``tensors`` lists the name, start and length of each tensor. Scripts in ``js`` must implement the model."""
    recipe, spec = weights.recipe, weights.recipe.model
    reads, writes = recipe.layout.vocabs(recipe.task)
    steps = None
    with suppress(UsageError):  # the task may have no RASP-L program
        steps = export_program(find_program(recipe.task))
    tensors = {name: part.detach().cpu().float().numpy().ravel() for name, part in weights.model.state_dict().items()}
    starts = np.cumsum([0, *map(len, tensors.values())]).tolist()
    return {
        "name": weights.name,
        "recipe": recipe.name,
        "parameters": sum(part.numel() for part in weights.model.parameters()),
        "trained": format_size(recipe.tops),
        "task": _describe_task(recipe.task),
        "layout": {"framed": False, "pauses": 0} | fields.encode(recipe.layout),
        "loops": fields.encode(recipe.loops),
        "stopping": fields.encode(recipe.stopping),
        "model": fields.encode(spec),
        "causal": recipe.layout.causal,
        "decodes": recipe.layout.decodes,
        "reads": reads.symbols,
        "writes": writes.symbols,
        "program": steps,
        "tensors": [[name, start, len(part)] for (name, part), start in zip(tensors.items(), starts, strict=False)],
        "weights": base64.b64encode(np.concatenate(list(tensors.values())).astype("<f4").tobytes()).decode(),
    }


def find_export_obstacle(recipe: Recipe, parameter_count: int) -> str:
    """Return the reason why a page cannot compute models of this recipe; empty if it can."""
    too_large = f"{parameter_count:,} parameters are more than {MAX_PARAMETERS:,}"
    return next(_find_unknown_parts(recipe), too_large if parameter_count > MAX_PARAMETERS else "")


def _find_unknown_parts(recipe: Recipe) -> Iterator[str]:
    """Yield a reason for each part that ``js`` does not implement, except parts within a model of an unknown class."""
    spec = recipe.model
    parts = [(recipe.task, EXAMPLES_BY_TASK), (recipe.layout, LAYOUT_TYPES), (recipe.loops, LOOP_TYPES)]
    for part, known_parts in (*parts, (recipe.stopping, RULE_TYPES), (spec, (Transformer, Timed))):
        if type(part) not in known_parts:
            yield f"it supports no {type(part).__name__}, only {', '.join(kind.__name__ for kind in known_parts)}"
    for model in (spec.answers, spec.clock) if isinstance(spec, Timed) else (spec,):
        if type(model) is not Transformer:
            yield f"it supports no {type(model).__name__} in another model, only Transformer"
            continue
        for name, value in REQUIRED_VALUES.items():
            if getattr(model, name) != value:
                yield f"it takes model.{name}={fields.format_part(value)} only"
        for name, values in ALLOWED_VALUES.items():
            if getattr(model, name) not in values:
                yield f"it takes model.{name}={' or '.join(values)} only"
        for position in model.positions:
            if type(position) not in POSITION_TYPES:
                known_parts = ", ".join(kind.__name__ for kind in POSITION_TYPES)
                yield f"it supports no {type(position).__name__}, only {known_parts}"
            elif getattr(position, "added_to", "input") != "input":
                yield "it adds digit positions to the input only"


def record_model(weights: Weights, prompts: Iterable[str], given_prompts: Sequence[str] = ()) -> dict[str, Any]:
    """Return facts about a model and its recipe, and recordings of prompts, except prompts too long for a recording or
    the model. Raises UsageError if no prompt is left, or if one of ``given_prompts`` is too long for the model."""
    recipe, recordings, cells_left = weights.recipe, [], depth.MAX_CELLS
    for prompt in prompts:
        try:
            record = depth.record_problem(weights, prompt, cells_left)
        except UsageError:  # longer than the model's position table
            if prompt in given_prompts:
                raise
            continue
        if record is not None:
            recordings.append(record)
            cells_left -= len(record["wanted"]) * len(record["loops"])
    if not recordings:
        limit = f"a recording of at most {depth.MAX_LOOPS} loops"
        raise UsageError(f"{weights.name}: no problem is short enough for {limit}")
    return {
        "name": weights.name,
        "recipe": recipe.name,
        "parameters": sum(part.numel() for part in weights.model.parameters()),
        "trained": format_size(recipe.tops),
        "task": {"name": recipe.task.name, "kind": type(recipe.task).__name__, "question": recipe.task.question},
        "rule": fields.format_part(recipe.stopping),
        "writes": recipe.layout.vocabs(recipe.task)[1].symbols,
        "recordings": recordings,
    }


def _describe_task(task: Task) -> dict[str, Any]:
    question = task.question
    if isinstance(task, (Addition, Multiplication)):
        question = f"Two numbers in base {task.base} and one {task.signs[0]} between them."
    facts = {"symbols": task.symbols, "signs": task.signs, "mirrored": task.mirrored, "question": question}
    return fields.encode(task) | facts | {"name": task.name, "example": EXAMPLES_BY_TASK[type(task)]}
