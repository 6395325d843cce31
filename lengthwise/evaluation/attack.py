"""A search for problems that a model gets wrong: first structured and random ones, then mutations of those with the
lowest confidence."""

from __future__ import annotations

import math
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from lengthwise.base.quantities import duration_text
from lengthwise.base.results import AnySize
from lengthwise.base.rng import derive_seed, stream
from lengthwise.base.score_rows import size_text
from lengthwise.base.types import Problems, UsageError
from lengthwise.evaluation.answers import answers
from lengthwise.evaluation.curves import work
from lengthwise.evaluation.families import all_problems, short_sizes
from lengthwise.evaluation.scores import resolve_rules, right, split_batches
from lengthwise.evaluation.solver import Solver
from lengthwise.experiment.data import check_size, sampler
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.resources import estimate_evaluation
from lengthwise.experiment.stopping import Stopping
from lengthwise.models import device_of
from lengthwise.runs.run import Weights
from lengthwise.tasks import Task

SEEDS = 24  # initial problems of each family and size; twice this number of uniform ones
ROUND = 96  # mutated problems tried at a time
POOL = 256  # problems kept for mutation
FAILED = POOL // 8  # failures kept for mutation, the shortest
SHOWN = 10  # failures in the result
LOOK = 0.5  # seconds of computing between two checks of the time
SHOWING = 1.0  # seconds, at most, to answer failures beyond the first again for the result
FRUITLESS = 20  # rounds without a new problem after which the search ends

Mutation = Callable[[str, tuple[str, ...], Random], str]  # (text between signs, symbols, random generator) → new text


@dataclass(frozen=True)
class Attempt:
    """One problem given to the model."""

    prompt: str  # as a person types it
    origin: str  # "every", "uniform", a family's name or "mutation"
    right: bool
    confidence: float  # mean log probability of its answer's symbols


@dataclass
class Attempts:
    """The problems tried so far."""

    tries: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    shortest: list[Attempt] = field(default_factory=list)  # failures, by length, then by falling confidence
    unsure: list[Attempt] = field(default_factory=list)  # right answers, by rising confidence
    known: set[str] = field(default_factory=set)

    def select_new(self, problems: Problems, task: Task) -> Problems:
        """Return the problems that were not tried, each once."""
        first: dict[str, int] = {}
        for number, prompt in enumerate(prompts(task, problems)):
            first.setdefault(prompt, number)
        return problems.take(
            torch.tensor([n for prompt, n in first.items() if prompt not in self.known], dtype=torch.long)
        )

    def add(self, tried: Sequence[Attempt]) -> None:
        """Record the results of problems, none of which was tried before."""
        failed = [problem for problem in tried if not problem.right]
        self.known |= {problem.prompt for problem in tried}
        self.tries.update(problem.origin for problem in tried)
        self.failures.update(problem.origin for problem in failed)
        self.shortest = sorted([*self.shortest, *failed], key=lambda p: (len(p.prompt), -p.confidence, p.prompt))[
            :FAILED
        ]
        unsure = [*self.unsure, *(problem for problem in tried if problem.right)]
        self.unsure = sorted(unsure, key=lambda problem: (problem.confidence, problem.prompt))[:POOL]


def attack(
    weights: Weights,
    sizes: Sequence[AnySize] | None = None,
    *,
    seconds: float = 30.0,
    tries: int | None = None,
    stopping: Stopping | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """Search for problems that the model gets wrong. Return a row with the number of problems tried, each once, by
    origin; the number of failures; and the shortest failures with the model's answers. Raises UsageError for a rule
    that looks at many problems at once.

    The search ends after ``seconds``, and can overrun by a second plus the time of three problems; raises UsageError
    if one problem of the largest size takes longer. With ``tries`` it ends after about this number of problems, and
    equal seeds give equal results. It ends earlier when no new problems are found. Default sizes go from half the
    training length to one and a half times it; all problems of the shortest sizes are tried too.
    """
    recipe = weights.recipe
    (rule,) = resolve_rules(weights, 1, stopping)
    if rule.together > 1:
        raise UsageError(f"an attack tries single problems, but {rule.name} needs a batch: choose per=example")
    if seconds <= 0 or (tries is not None and tries < 1):
        raise UsageError("an attack needs seconds above 0, or 1 try or more")
    chosen = _choose_sizes(recipe, sizes)
    _check_time(weights, max(chosen, key=sum), rule, math.inf if tries else seconds)
    search, until = Attempts(), math.inf if tries else time.monotonic() + seconds
    pace = _TimeBudget(recipe, until)
    for problems, origin in _generate_candidates(recipe, chosen, search, seed):
        new = search.select_new(problems, recipe.task)
        for part in pace.parts(new) if len(new) else ():
            search.add(_try_problems(weights, part, origin, rule))
        if len(search.known) >= (tries or math.inf) or time.monotonic() > until:
            break
    return _summarize(weights, search, rule, seed, until + SHOWING)


def _check_time(weights: Weights, size: tuple[int, ...], rule: Stopping, seconds: float) -> None:
    """Raise UsageError if this machine cannot hold a problem of this size, or cannot answer one within ``seconds``."""
    demand = estimate_evaluation(weights.recipe, [size], 1, [rule])
    one = f"one problem of size {size_text(size)}"
    demand.check(one)
    takes = demand.seconds / torch.get_num_threads()
    if device_of(weights.model).type == "cpu" and takes > seconds:
        raise UsageError(
            f"{one} takes about {duration_text(takes)}: allow more than {seconds:g} s, or attack shorter problems"
        )


class _TimeBudget:
    """Decides how many problems to try before the time is checked: more if the last ones took little time."""

    def __init__(self, recipe: Recipe, until: float) -> None:
        self.recipe, self.until = recipe, until
        self.work = 0.0  # work until the next check, in units of ``curves.work``

    def parts(self, problems: Problems) -> Iterator[Problems]:
        """Yield parts of the problems while there is time; without a time limit all at once, so that results are
        repeatable."""
        if self.until == math.inf:
            yield problems
            return
        start = 0
        # The first problem is tried in any case.
        while start < len(problems) and ((began := time.monotonic()) <= self.until or not self.work):
            each = work(self.recipe, tuple(problems.sizes.amax(0).tolist()))
            rows = int(min(max(1, self.work // each), len(problems) - start))
            yield problems.take(slice(start, start + rows))
            took = max(time.monotonic() - began, 1e-6)
            self.work = rows * each * min(2, LOOK / took)  # in small steps, as long rows may cost more than ``work``
            start += rows


def _choose_sizes(recipe: Recipe, sizes: Sequence[AnySize] | None) -> list[tuple[int, ...]]:
    top, smallest = recipe.lengths.top, max(recipe.task.smallest, recipe.lengths.bottom)
    test = recipe.task.part("test")
    if sizes is None and test.is_collection and (listed := test.listed_sizes):
        sizes = [size for size in listed if size <= top * 3 // 2] or listed[:1]
    usual = [max(smallest, top // 2), top, max(top, min(top * 3 // 2, recipe.task.largest or top * 3 // 2))]
    distinct = list(dict.fromkeys(recipe.sizes(size) for size in sizes or map(test.nearest_size, usual)))
    for size in distinct:
        check_size(test, size)
    return distinct


def _generate_candidates(
    recipe: Recipe, sizes: Sequence[tuple[int, ...]], search: Attempts, seed: int
) -> Iterator[tuple[Problems, str]]:
    """Yield problems to try, with their origins, while there are new ones: initial problems of each size, all problems
    of the shortest sizes, then mutations of tried problems in ``search``."""
    task, draw, largest = recipe.task, stream(seed, "attack", recipe.task.name), torch.tensor(sizes).amax(0)
    if (collected := task.part("test")).is_collection:  # there are no other problems
        yield from ((problems, "every") for size in sizes if (problems := collected.enumerate(size, sys.maxsize)))
        return
    origins = {"uniform": 2 * SEEDS} | {family.name: SEEDS for family in task.families}
    for size in sizes:
        for origin, count in origins.items():
            yield sampler(task, origin)(torch.tensor([list(size)]).repeat(count, 1), draw), origin
    for short in short_sizes(recipe):
        problems = all_problems(recipe, recipe.sizes(short))
        if problems is not None and bool((problems.sizes <= largest).all()):
            yield problems, "every"
    chance, fruitless = Random(derive_seed(seed, "attack", "changes")), 0
    while fruitless < FRUITLESS:
        before = len(search.known)
        if mutations := list(_generate_mutations(task, search, chance, largest)):
            yield Problems.join(mutations), "mutation"
        else:
            yield sampler(task, "uniform")(torch.tensor([list(sizes[-1])]).repeat(ROUND, 1), draw), "uniform"
        fruitless = 0 if len(search.known) > before else fruitless + 1


def _generate_mutations(
    task: Task, search: Attempts, chance: Random, largest: Int[Tensor, " axes"]
) -> Iterator[Problems]:
    """Yield new problems, at most ``largest`` on each axis: mutations, as typed text, of problems with the lowest
    confidence or of the shortest failures, which may give shorter ones."""
    parents = [problem.prompt for problem in [*search.unsure, *search.shortest, *search.shortest]]
    mutated: set[str] = set()
    for _ in range(3 * ROUND):
        if not parents or len(mutated) == ROUND:
            return
        text = mutate(chance.choice(parents), task, chance)
        try:
            problems = task.parse(text)
        except UsageError:
            continue
        (prompt,) = prompts(task, problems)
        fits = int(problems.sizes.max()) >= task.smallest and bool((problems.sizes <= largest).all())
        if fits and prompt not in mutated and prompt not in search.known:
            mutated.add(prompt)
            yield problems


def _try_problems(weights: Weights, problems: Problems, origin: str, rule: Stopping) -> list[Attempt]:
    """Answer problems and return the results."""
    recipe, are_right, confidence = weights.recipe, list[bool](), list[float]()
    for _, batch in split_batches(recipe, problems):
        (predicted,) = answers(weights.model, recipe, batch, [rule])
        are_right += right(recipe, batch, predicted).tolist()
        confidence += predicted.confidence.tolist()
    rows = zip(prompts(recipe.task, problems), are_right, confidence, strict=True)
    return [Attempt(prompt, origin, is_right, value) for prompt, is_right, value in rows]


def prompts(task: Task, problems: Problems) -> list[str]:
    """Return prompts as people type them."""
    lengths = problems.prompt_length.tolist()
    return [task.to_text(row[:length]) for row, length in zip(problems.prompt, lengths, strict=True)]


def _summarize(weights: Weights, search: Attempts, rule: Stopping, seed: int, until: float) -> dict[str, Any]:
    solver, failures = Solver(weights), []
    for problem in search.shortest[:SHOWN]:
        if failures and time.monotonic() > until:
            break
        answer = solver.solve(problem.prompt, rule)
        failures.append(
            {
                "prompt": problem.prompt,
                "answer": answer.text,
                "right": answer.right,
                "confidence": answer.confidence,
                "perplexity": answer.perplexity,
                "origin": problem.origin,
            }
        )
    origins = [
        {"origin": name, "tries": count, "failed": search.failures[name], "share": search.failures[name] / count}
        for name, count in search.tries.items()
    ]
    tries, failed = len(search.known), search.failures.total()
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


def mutate(text: str, task: Task, chance: Random) -> str:
    """Apply one or two changes to a typed prompt: to one part between signs, to all parts, or to their order."""
    signs = "".join(re.escape(sign) for sign in task.signs)
    symbols = tuple(symbol for symbol in task.symbols if symbol not in task.signs)
    for _ in range(chance.choice((1, 1, 2))):
        parts = re.split(f"([{signs}])", text) if signs else [text]
        filled = [index for index, part in enumerate(parts) if part and part not in task.signs]
        if not filled:
            return text
        if len(filled) > 1 and chance.random() < 0.1:
            i, j = chance.sample(filled, 2)
            parts[i], parts[j] = parts[j], parts[i]
        else:
            change = chance.choice(CHANGES)
            for index in filled if chance.random() < 0.3 else [chance.choice(filled)]:
                parts[index] = change(parts[index], symbols, chance)
        text = "".join(parts)
    return text


def one_symbol(part: str, symbols: tuple[str, ...], chance: Random) -> str:
    """Replace the symbol in one position."""
    at = chance.randrange(len(part))
    return part[:at] + chance.choice(symbols) + part[at + 1 :]


def repeat_symbol(part: str, symbols: tuple[str, ...], chance: Random) -> str:
    """Repeat one symbol over a span."""
    start, stop = _draw_span(part, chance)
    return part[:start] + part[start] * (stop - start) + part[stop:]


def copy_span(part: str, symbols: tuple[str, ...], chance: Random) -> str:
    """Copy a span over another of the same length."""
    start, stop = _draw_span(part, chance)
    to = chance.randrange(len(part) - (stop - start) + 1)
    return part[:to] + part[start:stop] + part[to + stop - start :]


def double_symbol(part: str, symbols: tuple[str, ...], chance: Random) -> str:
    """Double one symbol."""
    at = chance.randrange(len(part))
    return part[: at + 1] + part[at:]


def drop_symbols(part: str, symbols: tuple[str, ...], chance: Random) -> str:
    """Drop one symbol, or half of them."""
    if len(part) == 1:
        return part
    if chance.random() < 0.2:
        return part[: len(part) // 2]
    at = chance.randrange(len(part))
    return part[:at] + part[at + 1 :]


def complement_span(part: str, symbols: tuple[str, ...], chance: Random) -> str:
    """Complement a span: the highest symbol for the lowest, and so on."""
    start, stop = _draw_span(part, chance)
    turned = dict(zip(symbols, reversed(symbols), strict=True))
    return part[:start] + "".join(turned.get(symbol, symbol) for symbol in part[start:stop]) + part[stop:]


def fill_part(part: str, symbols: tuple[str, ...], chance: Random) -> str:
    """Write one symbol throughout."""
    return chance.choice(symbols) * len(part)


CHANGES: tuple[Mutation, ...] = (
    one_symbol,
    repeat_symbol,
    copy_span,
    double_symbol,
    drop_symbols,
    drop_symbols,
    complement_span,
    fill_part,
)


def _draw_span(part: str, chance: Random) -> tuple[int, int]:
    start, stop = sorted((chance.randrange(len(part)), chance.randrange(len(part))))
    return start, stop + 1
