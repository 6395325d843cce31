"""Solve prompts given as text: ``load("looped-pairs").solve("128+9")``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from lengthwise.base.fields import validate
from lengthwise.base.formatting import format_html_table
from lengthwise.base.score_rows import format_share
from lengthwise.base.types import Problems, UsageError
from lengthwise.evaluation.answers import answer_to_text, respond, select_initial_state
from lengthwise.evaluation.scores import perplexity
from lengthwise.experiment.layout import mask_through_end
from lengthwise.experiment.resources import ResourceEstimate, estimate_evaluation
from lengthwise.experiment.stopping import Stopping
from lengthwise.runners.cpu import choose_runner
from lengthwise.runs.run import Run, Weights
from lengthwise.runs.run import load as load_weights
from lengthwise.tasks import Task, UnknownAnswerError


@dataclass(frozen=True)
class Answer:
    """A model's answer to one prompt."""

    prompt: str
    text: str
    right: str | None  # the correct answer, from the task's reference algorithm; None if it is unknown
    correct: bool | None  # True if every symbol is correct, the end included
    loops: int  # loops used
    confidence: float  # geometric mean of the probabilities of the predicted symbols
    perplexity: float | None  # of the correct answer
    slot_confidence: tuple[float, ...] = ()  # each predicted symbol's probability; empty in layouts with an end symbol

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        rows = [("answer", self.text), ("loops", str(self.loops)), ("confidence", format_share(self.confidence, 3))]
        if self.right is None or self.perplexity is None:
            return format_html_table(self.prompt, rows)
        rows = [rows[0], ("right answer", self.right), *rows[1:], ("its perplexity", f"{self.perplexity:.3f}")]
        return format_html_table(f"{self.prompt}: {'right' if self.correct else 'wrong'}", rows)


class Solver:
    """Trained weights that answer prompts given as text."""

    def __init__(self, weights: Weights) -> None:
        self.weights = weights

    def __repr__(self) -> str:
        return f"Solver({self.weights.name!r})"

    def demand(self, prompt: str, stopping: Stopping | None = None) -> ResourceEstimate:
        """Estimate the memory and time of answering a prompt. Raises UsageError if this machine lacks the memory, or if
        the task cannot parse the prompt."""
        recipe = self.weights.recipe
        size = parse_prompt(recipe.task, prompt.strip())[0].sizes[0].tolist()
        estimate = estimate_evaluation(recipe, [tuple(size)], 1, [stopping or recipe.stopping])
        estimate.check(f"{recipe.task.name}: a prompt of size {'x'.join(map(str, size))}")
        return estimate

    def solve(self, prompt: str, stopping: Stopping | None = None) -> Answer:
        """Answer a prompt with the rule ``stopping``, by default the recipe's. ``right``, ``correct`` and
        ``perplexity`` are None if the right answer is unknown. Raises UsageError if the task cannot parse the
        prompt."""
        if not isinstance(prompt, str):
            raise UsageError(f"solve takes one prompt as text, not {type(prompt).__name__}; call it once per prompt")
        recipe, model, prompt = self.weights.recipe, self.weights.model, prompt.strip()
        problems, is_known = parse_prompt(recipe.task, prompt)
        rule = recipe.stopping if stopping is None else validate(Stopping, stopping, "stopping")
        predicted = respond(model, recipe, problems, rule)
        model = model if predicted.start is None else select_initial_state(model, int(predicted.start))
        row, end = recipe.layout.write(problems, recipe.task), recipe.layout.end_id(recipe.task)
        symbols = predicted.symbols[0, : int(row.answer_slots.sum())]
        right_symbols = row.targets[row.answer_slots]
        correct = (symbols == right_symbols) | ~mask_through_end(right_symbols, end)
        slot_confidence: tuple[float, ...] = ()
        if recipe.layout.chance(recipe.task) is not None:
            with torch.no_grad():
                logits = choose_runner(model).last(row.inputs, predicted.loops, row.answer_slots)
            slot_confidence = tuple(logits.softmax(-1).amax(-1).tolist())
        return Answer(
            prompt=prompt,
            text=answer_to_text(recipe, symbols),
            right=recipe.task.format(problems.answer[0, : int(problems.answer_length)]) if is_known else None,
            correct=bool(correct.all()) if is_known else None,
            loops=int(predicted.loops[0]),
            confidence=float(predicted.confidence[0].exp()),
            perplexity=float(perplexity(model, row, predicted.loops, end)) if is_known else None,
            slot_confidence=slot_confidence,
        )


def parse_prompt(task: Task, prompt: str) -> tuple[Problems, bool]:
    """Return the problem that a prompt states, and whether its right answer is known."""
    try:
        return task.parse(prompt), True
    except UnknownAnswerError as error:
        return error.problem, False


def load(weights: str | Path | Run, device: str = "cpu") -> Solver:
    """Load a solver from a run, a folder, shipped weights or the Hub. Raises UsageError if files are missing or
    damaged."""
    return Solver(load_weights(weights, device))
