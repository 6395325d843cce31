"""Reference values for the viewer's pages: PyTorch's answers, and the states of a task's RASP-L program."""

from dataclasses import replace

import torch

import lengthwise as lw
from lengthwise.evaluation.answers import predict_by_rules, respond, trace_loops
from lengthwise.evaluation.attack import format_prompts
from lengthwise.experiment.data import get_sampler
from lengthwise.rasp.language import SymbolSequence
from lengthwise.rasp.program import execute
from lengthwise.rasp.programs import find_program
from lengthwise.runners.plain import Plain

RULES = lw.Oracle(), lw.Converged(), lw.MaxConfidence()
MIN_LOG_GAP = 1e-4  # log probabilities this far apart are ordered alike in every implementation


def draw_prompts(recipe, count, max_size, seed=0):
    """Return ``count`` prompts of growing sizes, as typed text, from uniform problems and each family in turn."""
    draw = lw.stream(seed, "thinking", recipe.task.name)
    kinds = ["uniform", *(family.name for family in recipe.task.families)]
    found = []
    for number in range(count):
        size = torch.tensor([list(recipe.sizes(1 + number * max_size // count))])
        found += format_prompts(recipe.task, get_sampler(recipe.task, kinds[number % len(kinds)])(size, draw))
    return found


@torch.no_grad()
def compute_reference(weights, prompt):
    """Return what PyTorch and Python compute for one prompt, which a page must reproduce."""
    model, recipe = weights.model, weights.recipe
    problems = recipe.task.parse(prompt)
    answer = lw.Solver(weights).solve(prompt)
    batch = recipe.layout.write(problems, recipe.task)
    if recipe.layout.decodes:  # a model that reads its own answer
        predicted = respond(model, recipe, problems, recipe.stopping).symbols[0]
        at = batch.answer_slots[0].nonzero()[1:, 0]
        tokens = batch.inputs.tokens.clone()
        tokens[0, at] = predicted[: len(at)]
        batch = replace(batch, inputs=replace(batch.inputs, tokens=tokens))
    logs = Plain(model).last(batch.inputs, torch.tensor([answer.loops]), batch.answer_slots).log_softmax(-1)
    found = {"prompt": prompt, "text": answer.text, "right": answer.correct, "loops": answer.loops}
    found |= {"logs": logs.tolist(), "stops": _find_stopping_loops(model, recipe, batch)}
    return found | {"states": _compute_states(recipe.task, problems)}


def _find_stopping_loops(model, recipe, batch):
    """Return, for each rule in ``RULES``, the numbers of loops after which it may stop; there are several if rounding
    decides. The dict is empty for models to which stopping rules do not apply."""
    if recipe.layout.decodes or not recipe.loops.adapts:
        return {}
    answers = zip(RULES, predict_by_rules(model, recipe, batch, RULES), strict=True)
    found = {type(rule).__name__: [int(one.loops)] for rule, one in answers}
    limit = lw.MaxConfidence().limit(recipe.loops.planned(batch.rounds))
    sure = trace_loops(model, batch, limit, recipe.layout.end_id(recipe.task)).confidence[:, 0]
    return found | {"MaxConfidence": (1 + (sure > sure.max() - MIN_LOG_GAP).nonzero()[:, 0]).tolist()}


def _compute_states(task, problems):
    """Return the states of the task's RASP-L program as symbols, or None if the task has no program."""
    try:
        return list_symbols_of_run(execute(find_program(task), problems))["states"]
    except lw.UsageError:
        return None


def list_symbols_of_run(execution):
    """Return the states and the output of a program's run as symbols."""
    states = [{name: to_symbols(part) for name, part in state.items()} for state in execution.states]
    return {"states": states, "said": to_symbols(execution.output)}


def to_symbols(part):
    is_symbols = isinstance(part, SymbolSequence)
    return [part.alphabet[i] for i in part.ids[0].tolist()] if is_symbols else part.numbers[0].tolist()
