"""Export a trained model as data for a page: with its weights, or as recordings."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from lengthwise.base import fields
from lengthwise.base.score_rows import size_text
from lengthwise.base.types import UsageError
from lengthwise.evaluation import depth
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

MOST = 1_000_000  # maximum number of parameters in a page

# Types that js/ implements. Matched exactly, since a subclass may compute something else.
TASKS: dict[type[Task], str] = {  # each with an example problem
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
LAYOUTS = Pairs, FullOutput, NextToken
LOOPS = Constant, PerRound, ExtraLoops, AnyLoops
RULES = Oracle, After, MaxConfidence, Halted, Converged, Settled
POSITIONS = NoPE, Mark, Learned, Local, LocalHeads, CoupledHeads, EarlierHeads, Blank, Abacus, Coupling
FIXED: dict[str, Any] = {"norm": "pre", "read_in": "table", "embedding_norm": False, "gated": False, "biases": True}
FIXED |= {"readout": "linear", "mixer": Attention(), "mixers": ()}
ONE_OF = {"final_norm": ("loop", "none"), "injection": ("add", "once")}


def export_model(weights: Weights) -> dict[str, Any]:
    """Return a model and its recipe's facts as plain values: ``weights`` is base64 of little-endian float32,
    ``tensors`` lists the name of each tensor, and its start and length in ``weights``. ``js`` must implement the model
    (see ``find_export_obstacle``)."""
    recipe, spec = weights.recipe, weights.recipe.model
    reads, writes = recipe.layout.vocabs(recipe.task)
    steps = None
    with suppress(UsageError):  # it may have no n-RASP-L program
        steps = export_program(find_program(recipe.task))
    tensors = {name: part.detach().cpu().float().numpy().ravel() for name, part in weights.model.state_dict().items()}
    starts = np.cumsum([0, *map(len, tensors.values())]).tolist()
    return {
        "name": weights.name,
        "recipe": recipe.name,
        "parameters": sum(part.numel() for part in weights.model.parameters()),
        "trained": size_text(recipe.tops),
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


def find_export_obstacle(recipe: Recipe, parameters: int) -> str:
    """Return the reason why a page cannot compute models of this recipe; empty if it can."""
    large = f"{parameters:,} parameters are more than {MOST:,}" if parameters > MOST else ""
    return next(_find_unknown_parts(recipe), large)


def _find_unknown_parts(recipe: Recipe) -> Iterator[str]:
    """Describe each part that ``js`` does not implement; parts within a model of an unknown kind may be left out."""
    spec = recipe.model
    parts = [(recipe.task, TASKS), (recipe.layout, LAYOUTS), (recipe.loops, LOOPS), (recipe.stopping, RULES)]
    for part, known in (*parts, (spec, (Transformer, Timed))):
        if type(part) not in known:
            yield f"it knows no {type(part).__name__}, only {', '.join(kind.__name__ for kind in known)}"
    for model in (spec.answers, spec.clock) if isinstance(spec, Timed) else (spec,):
        if type(model) is not Transformer:
            yield f"it knows no {type(model).__name__} in another model, only Transformer"
            continue
        for name, value in FIXED.items():
            if getattr(model, name) != value:
                yield f"it takes model.{name}={fields.part_text(value)} only"
        for name, values in ONE_OF.items():
            if getattr(model, name) not in values:
                yield f"it takes model.{name}={' or '.join(values)} only"
        for position in model.positions:
            if type(position) not in POSITIONS:
                known = ", ".join(kind.__name__ for kind in POSITIONS)
                yield f"it knows no {type(position).__name__}, only {known}"
            elif getattr(position, "at", "input") != "input":
                yield "it adds digit positions to the input only"


def record_model(weights: Weights, prompts: Iterable[str], given_prompts: Sequence[str] = ()) -> dict[str, Any]:
    """Return the facts of a model and its recipe, and a recording of each problem, as plain values. A problem is left
    out if it takes too many loops or more cells than earlier problems left, or if the model cannot read it. Raises
    UsageError if the model cannot read a problem in ``given_prompts``, or if no problem is left."""
    recipe, recordings, cells_left = weights.recipe, [], depth.MOST_CELLS
    for prompt in prompts:
        try:
            found = depth.record_problem(weights, prompt, cells_left)
        except UsageError:  # longer than the model's position table
            if prompt in given_prompts:
                raise
            continue
        if found is not None:
            recordings.append(found)
            cells_left -= len(found["wanted"]) * len(found["loops"])
    if not recordings:
        raise UsageError(
            f"{weights.name}: no problem is short enough for a recording of at most {depth.MOST_LOOPS} loops"
        )
    return {
        "name": weights.name,
        "recipe": recipe.name,
        "parameters": sum(part.numel() for part in weights.model.parameters()),
        "trained": size_text(recipe.tops),
        "task": {"name": recipe.task.name, "kind": type(recipe.task).__name__, "question": recipe.task.question},
        "rule": fields.part_text(recipe.stopping),
        "writes": recipe.layout.vocabs(recipe.task)[1].symbols,
        "recordings": recordings,
    }


def _describe_task(task: Task) -> dict[str, Any]:
    question = task.question
    if isinstance(task, (Addition, Multiplication)):
        question = f"Two numbers in base {task.base} and one {task.signs[0]} between them."
    facts = {"symbols": task.symbols, "signs": task.signs, "mirrored": task.mirrored, "question": question}
    return fields.encode(task) | facts | {"name": task.name, "example": TASKS[type(task)]}
