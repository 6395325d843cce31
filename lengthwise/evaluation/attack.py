"""A search for problems that a model gets wrong: structured and random ones first, then changes to those of which it is
least sure."""

from __future__ import annotations

import math
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.base.quantities import duration
from lengthwise.base.results import AnySize
from lengthwise.base.rng import address, stream
from lengthwise.base.score_rows import size_text
from lengthwise.base.types import Problems, UsageError
from lengthwise.evaluation.answers import answers
from lengthwise.evaluation.curves import work
from lengthwise.evaluation.families import all_of, short_sizes
from lengthwise.evaluation.mutation import mutate
from lengthwise.evaluation.scores import in_parts, resolve_rules, right
from lengthwise.evaluation.solver import Solver
from lengthwise.experiment.data import check_size, sampler
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.resources import of_measuring
from lengthwise.experiment.stopping import Stopping
from lengthwise.models import device_of
from lengthwise.runs.run import Weights
from lengthwise.tasks import Task

SEEDS = 24  # problems of each family and size to start from; of uniform ones twice as many
ROUND = 96  # changed problems that are tried at a time
POOL = 256  # problems that are kept to be changed
FAILED = POOL // 8  # failures that are kept to be changed, the shortest
SHOWN = 10  # failures that are told of
LOOK = 0.5  # seconds of computing between two looks at the clock
SHOWING = 1.0  # seconds, at most, in which failures beyond the first are answered again to be shown
FRUITLESS = 20  # rounds without a new problem after which all are taken to have been tried


@dataclass(frozen=True)
class Tried:
    """One problem that the model was given."""

    prompt: str  # as a person types it
    origin: str  # "every", "uniform", a family's name or "mutation"
    right: bool
    confidence: float  # mean log probability of its answer's symbols


@dataclass
class Tries:
    """What has been tried."""

    tries: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    shortest: list[Tried] = field(default_factory=list)  # failures, the shortest first, of equal length the surest
    unsure: list[Tried] = field(default_factory=list)  # answered right, the least sure first
    known: set[str] = field(default_factory=set)

    def new(self, problems: Problems, task: Task) -> Problems:
        """Those that were not tried, each once."""
        first: dict[str, int] = {}
        for number, prompt in enumerate(prompts(task, problems)):
            first.setdefault(prompt, number)
        return problems.take(
            torch.tensor([n for prompt, n in first.items() if prompt not in self.known], dtype=torch.long)
        )

    def add(self, tried: Sequence[Tried]) -> None:
        """Note what came of these, none of which was tried before."""
        for one in tried:
            self.known.add(one.prompt)
            self.tries[one.origin] += 1
            if not one.right:
                self.failures[one.origin] += 1
        failed = [*self.shortest, *(one for one in tried if not one.right)]
        self.shortest = sorted(failed, key=lambda one: (len(one.prompt), -one.confidence, one.prompt))[:FAILED]
        self.unsure += [one for one in tried if one.right]
        self.unsure = sorted(self.unsure, key=lambda one: (one.confidence, one.prompt))[:POOL]


def attack(
    weights: Weights,
    sizes: Sequence[AnySize] | None = None,
    *,
    seconds: float = 30.0,
    tries: int | None = None,
    stopping: Stopping | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """A row of what was found: how many problems were tried, each once, by where they first came from; how many of them
    failed; and the shortest failures with what the model says to them. UsageError for a rule that looks at many
    problems at once.

    It ends after so many ``seconds``, and later by about one second and the time of three problems at most; UsageError
    where they do not suffice for one problem of the largest size. Given ``tries`` it ends after about so many problems:
    then the same seed finds the same. It ends sooner where there are no more problems.
    Without ``sizes``, those from half the training length to one and a half of it, and all problems of the shortest.
    """
    recipe = weights.recipe
    (rule,) = resolve_rules(weights, 1, stopping)
    if rule.together > 1:
        raise UsageError(f"an attack tries problems one by one, and {rule.name} looks at many: choose per=example")
    if seconds <= 0 or (tries is not None and tries < 1):
        raise UsageError("an attack needs seconds above 0, or 1 try or more")
    found = _sizes(recipe, sizes)
    _check_time(weights, max(found, key=sum), rule, math.inf if tries else seconds)
    search, until = Tries(), math.inf if tries else time.monotonic() + seconds
    pace = _Pace(recipe, until)
    for problems, origin in _candidates(recipe, found, search, seed):
        new = search.new(problems, recipe.task)
        for part in pace.parts(new) if len(new) else ():
            search.add(_try_problems(weights, part, origin, rule))
        if len(search.known) >= (tries or math.inf) or time.monotonic() > until:
            break
    return _result(weights, search, rule, seed, until + SHOWING)


def _check_time(weights: Weights, size: tuple[int, ...], rule: Stopping, seconds: float) -> None:
    """Raise UsageError if this machine cannot hold a problem of this size, or not answer one in so many seconds."""
    demand = of_measuring(weights.recipe, [size], 1, [rule])
    one = f"one problem of size {size_text(size)}"
    demand.check(one)
    takes = demand.seconds / torch.get_num_threads()
    if device_of(weights.model).type == "cpu" and takes > seconds:
        raise UsageError(f"{one} takes about {duration(takes)}: attack for longer than {seconds:g} s, or shorter ones")


class _Pace:
    """How many problems to try before the clock is looked at: more where the last ones took little time."""

    def __init__(self, recipe: Recipe, until: float) -> None:
        self.recipe, self.until = recipe, until
        self.work = 0.0  # to do before the next look, as ``follow.work`` counts it

    def parts(self, problems: Problems) -> Iterator[Problems]:
        """All problems, or as many as there is time for. Without a limit all at once, so that results repeat."""
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
            self.work = rows * each * min(2, LOOK / took)  # a step at a time: longer rows may cost more than by work
            start += rows


def _sizes(recipe: Recipe, sizes: Sequence[AnySize] | None) -> list[tuple[int, ...]]:
    top, smallest = recipe.lengths.top, max(recipe.task.smallest, recipe.lengths.bottom)
    if sizes is None and (there := recipe.task.part("test").listed_sizes):
        sizes = [size for size in there if size <= top * 3 // 2] or there[:1]
    chosen = sizes or [max(smallest, top // 2), top, max(top, min(top * 3 // 2, recipe.task.largest or top * 3 // 2))]
    found = list(dict.fromkeys(recipe.sizes(size) for size in chosen))
    for at in found:
        check_size(recipe.task.part("test"), at)
    return found


def _candidates(
    recipe: Recipe, sizes: Sequence[tuple[int, ...]], search: Tries, seed: int
) -> Iterator[tuple[Problems, str]]:
    """Problems to try, as long as there are new ones: seeds of each size, all of the shortest sizes, and then changes
    to what was tried. ``search`` is read as it fills."""
    task, draw, largest = recipe.task, stream(seed, "attack", recipe.task.name), torch.tensor(sizes).amax(0)
    if (collected := task.part("test")).listed_sizes is not None:  # no others can be made
        yield from ((problems, "every") for at in sizes if (problems := collected.enumerate(at, sys.maxsize)))
        return
    origins = {"uniform": 2 * SEEDS} | {family.name: SEEDS for family in task.families}
    for at in sizes:
        for origin, count in origins.items():
            yield sampler(task, origin)(torch.tensor([list(at)]).repeat(count, 1), draw), origin
    for size in short_sizes(recipe):
        problems = all_of(recipe, recipe.sizes(size))
        if problems is not None and bool((problems.sizes <= largest).all()):
            yield problems, "every"
    chance, fruitless = Random(address(seed, "attack", "changes")), 0
    while fruitless < FRUITLESS:
        before = len(search.known)
        if found := list(_changes(task, search, chance, largest)):
            yield Problems.join(found), "mutation"
        else:  # nothing can be changed any more: new seeds
            yield sampler(task, "uniform")(torch.tensor([list(sizes[-1])]).repeat(ROUND, 1), draw), "uniform"
        fruitless = 0 if len(search.known) > before else fruitless + 1


def _changes(task: Task, search: Tries, chance: Random, largest: Int[Tensor, " axes"]) -> Iterator[Problems]:
    """Problems that were not tried, on no axis above the largest: each made from one of which the model is least sure,
    or from one of the shortest that it gets wrong, so as to find shorter ones. They come through what one can type."""
    parents = [one.prompt for one in search.unsure] + 2 * [one.prompt for one in search.shortest]
    made: set[str] = set()
    for _ in range(3 * ROUND):
        if not parents or len(made) == ROUND:
            return
        text = mutate(chance.choice(parents), task, chance)
        try:
            problems = task.parse(text)
        except UsageError:
            continue
        (prompt,) = prompts(task, problems)
        fits = int(problems.sizes.max()) >= task.smallest and bool((problems.sizes <= largest).all())
        if fits and prompt not in made and prompt not in search.known:
            made.add(prompt)
            yield problems


def _try_problems(weights: Weights, problems: Problems, origin: str, rule: Stopping) -> list[Tried]:
    right, confidence = _judge(weights, problems, rule)
    rows = zip(prompts(weights.recipe.task, problems), right.tolist(), confidence.tolist(), strict=True)
    return [Tried(prompt, origin, good, sure) for prompt, good, sure in rows]


def _judge(weights: Weights, problems: Problems, rule: Stopping) -> tuple[Bool[Tensor, " b"], Float[Tensor, " b"]]:
    """Which answers are right, and how sure the model is of them."""
    recipe, found, sure = weights.recipe, [], []
    for _, batch in in_parts(recipe, problems):
        (predicted,) = answers(weights.model, recipe, batch, [rule])
        found.append(right(recipe, batch, predicted))
        sure.append(predicted.confidence)
    return torch.cat(found), torch.cat(sure)


def prompts(task: Task, problems: Problems) -> list[str]:
    """As a person types them."""
    lengths = problems.prompt_length.tolist()
    return [task.to_text(row[:length]) for row, length in zip(problems.prompt, lengths, strict=True)]


def _result(weights: Weights, search: Tries, rule: Stopping, seed: int, until: float) -> dict[str, Any]:
    solver, found = Solver(weights), []
    for one in search.shortest[:SHOWN]:
        if found and time.monotonic() > until:
            break
        answer = solver.solve(one.prompt, rule)
        found.append(
            {
                "prompt": one.prompt,
                "answer": answer.text,
                "right": answer.right,
                "confidence": answer.confidence,
                "perplexity": answer.perplexity,
                "origin": one.origin,
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
        "shortest": found,
    }
