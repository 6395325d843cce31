"""A search for problems that a model answers wrongly (structured and random problems, then mutations of those with the
lowest confidence), and an analysis of wrong answers (the first wrong symbol, lengths, difficulty)."""

from __future__ import annotations

import math
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lengthwise.base.formatting import format_duration
from lengthwise.base.results import AnySize
from lengthwise.base.rng import derive_seed, stream
from lengthwise.base.score_rows import format_size
from lengthwise.base.types import Kind, Problems, UsageError
from lengthwise.evaluation.answers import decode, gather_slots, mask_answers, predict_by_rules
from lengthwise.evaluation.families import enumerate_problems, estimate_relative_cost, find_short_sizes
from lengthwise.evaluation.scores import SAMPLES, mask_right_rows, resolve_rules, split_batches
from lengthwise.evaluation.solver import Solver
from lengthwise.experiment.data import check_size, draw_recipe_problems, get_sampler
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.resources import estimate_evaluation
from lengthwise.experiment.stopping import Stopping
from lengthwise.models import get_device
from lengthwise.runs.run import Weights
from lengthwise.tasks import Task

INITIAL_PROBLEMS = 24  # number of initial problems of each family and size; uniform problems are twice as many
MUTATIONS_PER_ROUND = 96  # number of mutated problems tried at a time
POOL_SIZE = 256  # number of right answers with the lowest confidence whose problems are mutated
MAX_MUTATED_FAILURES = POOL_SIZE // 8  # number of failures that are mutated, the shortest ones
MAX_SHOWN_FAILURES = 10  # maximum number of failures in the result
CHECK_SECONDS = 0.5  # seconds of computing between two checks of the deadline
SUMMARY_SECONDS = 1.0  # seconds for answering the failures again for the result; the first is always answered

MAX_GROUPS = 6  # largest number of groups of problems per feature, in ``measure_anatomy``
CHANGES = ("replace", "repeat", "copy", "double", "drop", "drop", "complement", "fill")  # dropping is twice as likely


@dataclass(frozen=True)
class Attempt:
    """A problem that was given to the model, and the result."""

    prompt: str  # the text that ``Task.parse`` reads
    origin: str  # "every", "uniform", a family's name or "mutation"
    is_right: bool  # True if the model answered the problem correctly
    confidence: float  # mean log probability of its answer's symbols


@dataclass
class Attempts:
    """The results of an attack so far."""

    tries: Counter[str] = field(default_factory=Counter)  # number of problems tried, by origin
    failures: Counter[str] = field(default_factory=Counter)  # number of wrong answers, by origin
    shortest_failures: list[Attempt] = field(default_factory=list)  # failures, by length, then by falling confidence
    least_confident_attempts: list[Attempt] = field(default_factory=list)  # right answers, by rising confidence
    prompts: set[str] = field(default_factory=set)  # prompts of all problems tried

    def select_new_problems(self, problems: Problems, task: Task) -> Problems:
        """Return the problems that were not tried yet, without repeats."""
        first: dict[str, int] = {}
        for number, prompt in enumerate(format_prompts(task, problems)):
            first.setdefault(prompt, number)
        new = [number for prompt, number in first.items() if prompt not in self.prompts]
        return problems.take(torch.tensor(new, dtype=torch.long))

    def add(self, attempts: Sequence[Attempt]) -> None:
        """Record the results of problems that were not tried before."""
        failed = [problem for problem in attempts if not problem.is_right]
        self.prompts |= {problem.prompt for problem in attempts}
        self.tries.update(problem.origin for problem in attempts)
        self.failures.update(problem.origin for problem in failed)
        failures = sorted([*self.shortest_failures, *failed], key=lambda p: (len(p.prompt), -p.confidence, p.prompt))
        self.shortest_failures = failures[:MAX_MUTATED_FAILURES]
        right = [*self.least_confident_attempts, *(problem for problem in attempts if problem.is_right)]
        right.sort(key=lambda problem: (problem.confidence, problem.prompt))
        self.least_confident_attempts = right[:POOL_SIZE]


def attack(
    weights: Weights,
    sizes: Sequence[AnySize] | None = None,
    *,
    seconds: float = 30.0,
    tries: int | None = None,
    stopping: Stopping | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Search for problems that the model answers wrongly, and try no problem twice. Return a row with the number of
    problems tried, by origin; the number of failures; and the shortest failures with the model's answers. The search
    ends after ``seconds``, and can overrun by a second plus the time of three problems. With ``tries``, the search ends
    after about this number of problems, and equal seeds give equal results. The default sizes are 0.5, 1 and 1.5 times
    the training length; all problems of the shortest sizes are tried too. Raises UsageError for a rule that needs a
    batch of problems, or if one problem of the largest size takes longer than ``seconds``."""
    recipe = weights.recipe
    (rule,) = resolve_rules(weights, 1, stopping)
    if rule.together > 1:
        raise UsageError(f"an attack tries single problems, but {rule.name} needs a batch: choose per=example")
    if seconds <= 0 or (tries is not None and tries < 1):
        raise UsageError("attack: seconds must be above 0, and tries 1 or more")
    chosen = _choose_sizes(recipe, sizes)
    largest = max(chosen, key=sum)
    demand, label = estimate_evaluation(recipe, [largest], 1, [rule]), f"one problem of size {format_size(largest)}"
    demand.check(label)
    expected_seconds = demand.seconds / torch.get_num_threads()
    if not tries and get_device(weights.model).type == "cpu" and expected_seconds > seconds:
        raise UsageError(
            f"{label} takes about {format_duration(expected_seconds)}: allow more than {seconds:g} s, or attack "
            "shorter problems"
        )
    history, deadline = Attempts(), math.inf if tries else time.monotonic() + seconds
    work = 0.0  # cost of the problems until the next check of the time, in units of ``estimate_relative_cost``
    for problems, origin in _generate_candidates(recipe, chosen, history, seed):
        new, start = history.select_new_problems(problems, recipe.task), 0
        # The first problem is tried in any case. Without a deadline, all are tried at once, to be repeatable.
        while start < len(new) and ((began := time.monotonic()) <= deadline or not work):
            problem_cost = estimate_relative_cost(recipe, tuple(new.sizes.amax(0).tolist()))
            rows = len(new) if tries else int(min(max(1, work // problem_cost), len(new) - start))
            history.add(_try_problems(weights, new.take(slice(start, start + rows)), origin, rule))
            elapsed = max(time.monotonic() - began, 1e-6)
            work = rows * problem_cost * min(2, CHECK_SECONDS / elapsed)  # at most doubled: long rows may cost more
            start += rows
        if len(history.prompts) >= (tries or math.inf) or time.monotonic() > deadline:
            break
    return _summarize(weights, history, rule, seed, deadline + SUMMARY_SECONDS)


def _choose_sizes(recipe: Recipe, sizes: Sequence[AnySize] | None) -> list[tuple[int, ...]]:
    top, smallest = recipe.lengths.top, max(recipe.task.smallest, recipe.lengths.bottom)
    test = recipe.task.select_part("test")
    if sizes is None and test.is_collection and (listed := test.listed_sizes):
        sizes = [size for size in listed if size <= top * 3 // 2] or listed[:1]
    usual = [max(smallest, top // 2), top, max(top, min(top * 3 // 2, recipe.task.largest or top * 3 // 2))]
    distinct = list(dict.fromkeys(recipe.sizes(size) for size in sizes or map(test.round_to_valid_size, usual)))
    for size in distinct:
        check_size(test, size)
    return distinct


def _generate_candidates(
    recipe: Recipe, sizes: Sequence[tuple[int, ...]], history: Attempts, seed: int
) -> Iterator[tuple[Problems, str]]:
    """Yield groups of problems to try, each with its origin, until no new problem is found: initial problems of each
    size, all problems of the shortest sizes, then mutations of problems in ``history``."""
    task, draw, max_sizes = recipe.task, stream(seed, "attack", recipe.task.name), torch.tensor(sizes).amax(0)
    if (collected := task.select_part("test")).is_collection:  # there are no other problems
        yield from ((problems, "every") for size in sizes if (problems := collected.enumerate(size, sys.maxsize)))
        return
    origins = {"uniform": 2 * INITIAL_PROBLEMS} | {family.name: INITIAL_PROBLEMS for family in task.families}
    for size in sizes:
        for origin, count in origins.items():
            yield get_sampler(task, origin)(torch.tensor([list(size)]).repeat(count, 1), draw), origin
    for short in find_short_sizes(recipe):
        problems = enumerate_problems(recipe, recipe.sizes(short))
        if problems is not None and bool((problems.sizes <= max_sizes).all()):
            yield problems, "every"
    rng, fruitless = Random(derive_seed(seed, "attack", "changes")), 0
    while fruitless < 20:  # rounds without a new problem
        tried = len(history.prompts)
        if mutations := list(_generate_mutations(task, history, rng, max_sizes)):
            yield Problems.join(mutations), "mutation"
        else:
            largest_sizes = torch.tensor([list(sizes[-1])]).repeat(MUTATIONS_PER_ROUND, 1)
            yield get_sampler(task, "uniform")(largest_sizes, draw), "uniform"
        fruitless = 0 if len(history.prompts) > tried else fruitless + 1


def _generate_mutations(
    task: Task, history: Attempts, rng: Random, max_sizes: Int[Tensor, " axes"]
) -> Iterator[Problems]:
    """Yield new problems, of sizes up to ``max_sizes`` on each axis: mutations of problems with the lowest confidence,
    and of the shortest failures, to find shorter failures."""
    mutated_attempts = [*history.least_confident_attempts, *history.shortest_failures, *history.shortest_failures]
    parents = [attempt.prompt for attempt in mutated_attempts]
    mutated: set[str] = set()
    for _ in range(3 * MUTATIONS_PER_ROUND):
        if not parents or len(mutated) == MUTATIONS_PER_ROUND:
            return
        text = mutate(rng.choice(parents), task, rng)
        try:
            problems = task.parse(text)
        except UsageError:
            continue
        (prompt,) = format_prompts(task, problems)
        fits = int(problems.sizes.max()) >= task.smallest and bool((problems.sizes <= max_sizes).all())
        if fits and prompt not in mutated and prompt not in history.prompts:
            mutated.add(prompt)
            yield problems


def _try_problems(weights: Weights, problems: Problems, origin: str, rule: Stopping) -> list[Attempt]:
    """Answer problems by ``rule``, and return an Attempt for each."""
    recipe, are_right, confidence = weights.recipe, list[bool](), list[float]()
    for _, batch in split_batches(recipe, problems):
        (predicted,) = predict_by_rules(weights.model, recipe, batch, [rule])
        are_right += mask_right_rows(recipe, batch, predicted).tolist()
        confidence += predicted.confidence.tolist()
    rows = zip(format_prompts(recipe.task, problems), are_right, confidence, strict=True)
    return [Attempt(prompt, origin, is_right, value) for prompt, is_right, value in rows]


def format_prompts(task: Task, problems: Problems) -> list[str]:
    """Return the prompts of problems as text that ``Task.parse`` reads."""
    lengths = problems.prompt_length.tolist()
    return [task.to_text(row[:length]) for row, length in zip(problems.prompt, lengths, strict=True)]


def _summarize(weights: Weights, history: Attempts, rule: Stopping, seed: int, deadline: float) -> dict[str, Any]:
    solver, failures = Solver(weights), []
    for problem in history.shortest_failures[:MAX_SHOWN_FAILURES]:
        if failures and time.monotonic() > deadline:
            break
        answer = solver.solve(problem.prompt, rule)
        values = {name: getattr(answer, name) for name in ("right", "confidence", "perplexity")}
        failures.append({"prompt": problem.prompt, "answer": answer.text, **values, "origin": problem.origin})
    counts = [(name, count, history.failures[name]) for name, count in history.tries.items()]
    origins = [{"origin": name, "tries": n, "failed": wrong, "share": wrong / n} for name, n, wrong in counts]
    tries, failed = len(history.prompts), history.failures.total()
    return {
        "task": weights.recipe.task.name,
        "weights": weights.name,
        "stopping": rule.name,
        "seed": seed,
        "tries": tries,
        "failed": failed,
        "share": failed / tries,
        "origins": sorted(origins, key=lambda row: (-row["share"], row["origin"])),
        "shortest": failures,
    }


def mutate(text: str, task: Task, rng: Random) -> str:
    """Apply one or two random changes to a prompt: to one operand (the text between signs), to all operands, or to
    their order."""
    signs = "".join(re.escape(sign) for sign in task.signs)
    symbols = tuple(symbol for symbol in task.symbols if symbol not in task.signs)
    for _ in range(rng.choice((1, 1, 2))):
        parts = re.split(f"([{signs}])", text) if signs else [text]
        filled = [index for index, part in enumerate(parts) if part and part not in task.signs]
        if not filled:
            return text
        if len(filled) > 1 and rng.random() < 0.1:
            i, j = rng.sample(filled, 2)
            parts[i], parts[j] = parts[j], parts[i]
        else:
            change = rng.choice(CHANGES)
            for index in filled if rng.random() < 0.3 else [rng.choice(filled)]:
                parts[index] = _change_operand(parts[index], change, symbols, rng)
        text = "".join(parts)
    return text


def _change_operand(operand: str, change: str, symbols: Sequence[str], rng: Random) -> str:
    """Apply one of ``CHANGES`` to an operand, the text between signs."""
    if change == "fill":  # replace all symbols by one
        return rng.choice(symbols) * len(operand)
    if change == "drop" and len(operand) == 1:
        return operand
    if change == "drop" and rng.random() < 0.2:
        return operand[: len(operand) // 2]
    if change in ("replace", "double", "drop"):  # one symbol
        index = rng.randrange(len(operand))
        new = rng.choice(symbols) if change == "replace" else 2 * operand[index] if change == "double" else ""
        return operand[:index] + new + operand[index + 1 :]
    start, last = sorted((rng.randrange(len(operand)), rng.randrange(len(operand))))
    span = operand[start : last + 1]
    if change == "repeat":  # fill the span with its first symbol
        span = span[0] * len(span)
    elif change == "complement":  # the highest symbol for the lowest, and so on
        opposite = dict(zip(symbols, reversed(symbols), strict=True))
        span = "".join(opposite.get(symbol, symbol) for symbol in span)
    else:  # copy it over another span of the same length
        start = rng.randrange(len(operand) - len(span) + 1)
    return operand[:start] + span + operand[start + len(span) :]


def measure_anatomy(
    weights: Weights,
    size: AnySize,
    *,
    samples: int = SAMPLES,
    stopping: Stopping | None = None,
    kind: Kind = "uniform",
    seed: int = 0,
) -> dict[str, Any]:
    """Analyse the wrong answers to ``evaluate``'s problems of one size, and return a row. ``ends`` counts wrong answers
    by their length: ``early`` (too short), ``late`` (too long, or without an end) or ``right`` (only symbols are
    wrong). ``first_wrong`` counts wrong answers by the position of the first wrong symbol, from 1. ``by`` has, for each
    difficulty feature of the task, about equally large groups of problems: each has the feature's lowest and highest
    value, the number of problems, and the fraction answered correctly. Raises UsageError if the size, the kind of
    problems or the stopping rule does not fit the recipe."""
    recipe = weights.recipe
    (rule,) = resolve_rules(weights, samples, stopping)
    sizes, end = recipe.sizes(size), recipe.layout.end_id(recipe.task)
    problems = draw_recipe_problems(recipe, sizes, samples, seed=seed, kind=kind)
    wrong, early, late = [], [], []
    for _, batch in split_batches(recipe, problems, batch_rows=rule.together):
        (predicted,) = predict_by_rules(weights.model, recipe, batch, [rule])
        right_symbols = gather_slots(batch.targets, batch.answer_slots)
        answer = mask_answers(right_symbols, batch.answer_slots, end)
        wrong.append((predicted.symbols != right_symbols) & answer)
        # If the answer is fed in, the symbols after a wrong one differ when the model reads its own answer.
        decoded = decode(weights.model, recipe, batch, rule) if recipe.layout.decodes else predicted
        answered = mask_answers(decoded.symbols, batch.answer_slots, end)
        length = answered.sum(1)
        # An answer without an end fills all slots; a complete one may too, but has an end symbol.
        open_ended = ~((decoded.symbols == end) & answered).any(1) if end is not None else torch.zeros_like(length) > 0
        early.append((length < answer.sum(1)) & ~open_ended)
        late.append((length > answer.sum(1)) | open_ended)
    missed = torch.cat([part.any(1) for part in wrong])
    first = torch.cat([part.long().argmax(1) + 1 for part in wrong])[missed]
    features = recipe.task.difficulty_features(problems)
    ended = {"early": torch.cat(early) & missed, "late": torch.cat(late) & missed}
    ends = {name: int(flags.sum()) for name, flags in ended.items()}
    return {
        "task": recipe.task.name,
        "stopping": rule.name,
        "problems": kind,
        "sizes": list(sizes),
        "count": samples,
        "seed": seed,
        "exact": _compute_mean(~missed),
        "ends": ends | {"right": int(missed.sum()) - sum(ends.values())},
        "first_wrong": {str(position): int((first == position).sum()) for position in sorted(set(first.tolist()))},
        "by": {name: _group_values(values, ~missed) for name, values in features.items()},
    }


def _group_values(values: Int[Tensor, " n"], is_right: Bool[Tensor, " n"]) -> list[dict[str, Any]]:
    """Divide problems by a feature's values into about equally large groups. Return each group's lowest and highest
    value, number of problems, and fraction correct. Problems with equal values share a group."""
    distinct, counts = values.unique(return_counts=True)
    # A value belongs to the group of its middle problem, in sorted order.
    middle = counts.cumsum(0) - counts / 2
    numbers = (middle * min(MAX_GROUPS, len(distinct)) / len(values)).long()
    groups = []
    for number in numbers.unique():
        low, high = distinct[numbers == number][[0, -1]].tolist()
        inside = (values >= low) & (values <= high)
        groups.append({"low": low, "high": high, "count": int(inside.sum()), "exact": _compute_mean(is_right[inside])})
    return groups


def _compute_mean(flags: Bool[Tensor, " n"]) -> float:
    return float(f"{float(flags.float().mean()):.6g}")
