"""Weights and fresh problems → a Trace → Score rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.data import fresh_problems
from lengthwise.layout import up_to_end
from lengthwise.models import Model, settle, unroll
from lengthwise.recipe import Recipe, check_stopping
from lengthwise.run import Weights
from lengthwise.stopping import Stopping
from lengthwise.types import Batch, Problems, Score, Trace, UsageError

TOKENS = 32_768  # per forward pass, so that memory does not grow with length


@dataclass(frozen=True)
class Said:
    """What a model answered, per row: symbols in the row's slots, how sure it was, and after how many loops."""

    symbols: Int[Tensor, "b a"]
    confidence: Float[Tensor, " b"]  # mean log probability, in nats, up to its own first end
    loops: Int[Tensor, " b"]


def evaluate(
    weights: Weights,
    sizes: Iterable[int | tuple[int, ...]],
    *,
    samples: int = 1000,
    stopping: Stopping | Sequence[Stopping] | None = None,
    hard: bool = False,
    seed: int = 0,
) -> Iterator[Score]:
    """One Score per size and stopping rule, as each is measured: exact match of the whole answer on fresh problems.

    A bare number is taken on all of the task's axes (see ``Recipe.sizes``). ``stopping`` is the recipe's own unless
    given; several rules look at the same answers, so that more of them cost little.
    """
    recipe = weights.recipe
    rules = [stopping] if isinstance(stopping, Stopping) else list(stopping or [recipe.stopping])
    for rule in rules:
        check_stopping(recipe.layout, rule)
    if samples < 1:
        raise UsageError(f"samples must be 1 or more, not {samples}")
    for size in sizes:
        at = recipe.sizes(size)
        counts = _count(weights.model, recipe, at, samples, rules, hard=hard, seed=seed)
        for rule, count in zip(rules, counts, strict=True):
            yield Score(
                task=recipe.task.name,
                weights=weights.name,
                stopping=rule.name,
                problems="hard" if hard else "uniform",
                sizes=at,
                count=samples,
                exact=count.exact / samples,
                whole_row=count.whole_row / samples,
                token_accuracy=count.tokens / count.asked,
                loops=count.loops / samples,
            )


def exact_match(model: Model, recipe: Recipe, sizes: tuple[int, ...], count: int, *, part: int = 0) -> float:
    """Exact match of a model in training; ``part`` makes the problems others than those of another call."""
    rules = [recipe.stopping]
    return _count(model, recipe, sizes, count, rules, hard=False, seed=recipe.data_seed, part=part)[0].exact / count


@dataclass
class _Count:
    """How many rows were right, how many tokens, and the loops of all rows together."""

    exact: int = 0
    whole_row: int = 0
    tokens: int = 0
    asked: int = 0
    loops: int = 0

    def add(self, said: Said, wanted: Int[Tensor, "b a"], room: Bool[Tensor, "b a"], end: int | None) -> None:
        answer = room & up_to_end(wanted, end)
        hits = (said.symbols == wanted) & room
        self.exact += int((hits | ~answer).all(1).sum())
        self.whole_row += int((hits | ~room).all(1).sum())
        self.tokens += int((hits & answer).sum())
        self.asked += int(answer.sum())
        self.loops += int(said.loops.sum())


def _count(
    model: Model,
    recipe: Recipe,
    sizes: tuple[int, ...],
    samples: int,
    rules: Sequence[Stopping],
    *,
    hard: bool,
    seed: int,
    part: int = -1,
) -> list[_Count]:
    problems = fresh_problems(recipe.task, sizes, samples, seed=seed, part=part, hard=hard)
    counts = [_Count() for _ in rules]
    for batch in in_parts(recipe, problems):
        wanted, room = slots(batch.targets, batch.room), _filled(batch.room)
        for count, said in zip(counts, answers(model, recipe, batch, rules), strict=True):
            count.add(said, wanted, room, recipe.layout.end(recipe.task))
    return counts


def answer(model: Model, recipe: Recipe, batch: Batch, stopping: Stopping) -> Said:
    """What the model answers to each row. In a layout that feeds the answer in, an answer is right if and only if
    greedy decoding would give it: every symbol is the likeliest, given the right ones before it."""
    return answers(model, recipe, batch, [stopping])[0]


@torch.no_grad()
def answers(model: Model, recipe: Recipe, batch: Batch, rules: Sequence[Stopping]) -> list[Said]:
    """The same under several stopping rules, from one run of the model as far as the furthest looks."""
    model.eval()
    device = next(model.parameters()).device
    planned = recipe.loops.planned(batch.rounds)
    limits, end, batch = [rule.limit(planned) for rule in rules], recipe.layout.end(recipe.task), batch.to(device)
    if len(rules) == 1 and not rules[0].reads_output:
        rows, state = settle(model, batch.inputs, limits[0])
        symbols, _, confidence = _read(model, state, batch.room[rows], end)
        back = rows.argsort()
        return [Said(symbols[back].cpu(), confidence[back].cpu(), limits[0])]
    traced = trace(model, batch, torch.stack(limits).amax(0), end)
    row = torch.arange(len(planned), device=device)
    found = []
    for rule, limit in zip(rules, limits, strict=True):
        chosen = rule.choose(replace(traced, loops=limit.to(device)), planned.to(device))
        said, confidence = traced.said[chosen - 1, row], traced.confidence[chosen - 1, row]
        found.append(Said(said.cpu(), confidence.cpu(), chosen.cpu()))
    return found


@torch.no_grad()
def trace(model: Model, batch: Batch, limit: Int[Tensor, " b"], end: int | None) -> Trace:
    """What each loop up to each row's ``limit`` would have answered. ``limit`` is on the CPU."""
    count = batch.room.sum(1)
    shape = int(limit.max()), len(batch), int(count.max())
    said = torch.zeros(shape, dtype=torch.long, device=count.device)
    ends = torch.zeros(shape[:2], dtype=torch.long, device=count.device)
    confidence = torch.zeros(shape[:2], device=count.device)
    for k, rows, state in unroll(model, batch.inputs, limit):
        symbols, length, sure = _read(model, state, batch.room[rows], end)
        said[k - 1, rows, : symbols.shape[1]] = symbols
        ends[k - 1, rows], confidence[k - 1, rows] = length, sure
    return Trace(said, ends, confidence, limit.to(count.device))


def in_parts(recipe: Recipe, problems: Problems) -> Iterator[Batch]:
    """Problems of one size, as batches that fit the memory."""
    width = recipe.layout.write(problems.take(slice(1)), recipe.task).targets.shape[1]
    for rows in _parts(len(problems), width):
        yield recipe.layout.write(problems.take(rows), recipe.task)


def _parts(count: int, width: int) -> list[slice]:
    """So many rows of this width, as many at a time as one forward pass takes."""
    rows = max(1, TOKENS // width)
    return [slice(start, start + rows) for start in range(0, count, rows)]


def loops_right(
    model: Model, recipe: Recipe, batch: Batch, limit: Int[Tensor, " b"]
) -> tuple[Trace, Bool[Tensor, "k b"]]:
    """A trace, in parts that fit the memory, and whether each loop's answer is right. ``limit`` is on the CPU."""
    model.eval()
    batch = batch.to(next(model.parameters()).device)
    end = recipe.layout.end(recipe.task)
    traces = [trace(model, batch.take(part), limit[part], end) for part in _parts(*batch.targets.shape)]
    traced = Trace(
        torch.cat([part.said for part in traces], 1),
        torch.cat([part.ends for part in traces], 1),
        torch.cat([part.confidence for part in traces], 1),
        torch.cat([part.loops for part in traces]),
    )
    wanted, room = slots(batch.targets, batch.room), _filled(batch.room)
    answer = room & up_to_end(wanted, end)
    return traced, ((traced.said == wanted) | ~answer).all(-1)


def _read(
    model: Model, state: Any, room: Bool[Tensor, "r t"], end: int | None
) -> tuple[Int[Tensor, "r a"], Int[Tensor, " r"], Float[Tensor, " r"]]:
    """What is said in each row's slots, how many of them are its answer, and the confidence in that."""
    best = model.read(state, room).log_softmax(-1).max(-1)
    filled = _filled(room)
    symbols = torch.zeros(filled.shape, dtype=torch.long, device=room.device)
    symbols[filled] = best.indices
    sure = torch.zeros(filled.shape, device=room.device)
    sure[filled] = best.values.float()
    counted = filled & up_to_end(symbols, end)
    length = counted.sum(1)
    return symbols, length, (sure * counted).sum(1) / length


def slots(row: Tensor, room: Bool[Tensor, "b t"]) -> Tensor:
    """The places of each row's room, moved to its front: "b t" → "b a", zeros behind."""
    filled = _filled(room)
    moved = torch.zeros(filled.shape, dtype=row.dtype, device=room.device)
    moved[filled] = row[room]
    return moved


def _filled(room: Bool[Tensor, "b t"]) -> Bool[Tensor, "b a"]:
    """True in as many of a row's first places as it has slots."""
    count = room.sum(1)
    return torch.arange(int(count.max()), device=room.device) < count[:, None]


def parse_sizes(text: str) -> list[int | tuple[int, int]]:
    """``8,12,16`` · ``1-60`` · ``10-100:10`` (every tenth) · ``20x40`` (every pair up to 20 and 40), or several with
    commas. UsageError in one line otherwise."""
    sizes: list[int | tuple[int, int]] = []
    for part in text.split(","):
        found: list[int | tuple[int, int]] = []
        if match := re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part.strip()):
            low, high, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
            found += range(low, high + 1, step) if low and step else []
        elif match := re.fullmatch(r"(\d+)x(\d+)", part.strip()):
            found += [(i, j) for i in range(1, int(match[1]) + 1) for j in range(1, int(match[2]) + 1)]
        if not found:
            raise UsageError(f"{part!r} names no sizes: write 8,12,16 or 1-60 or 10-100:10 or 20x40, from 1 up")
        sizes += found
    return sizes


def default_sizes(recipe: Recipe) -> Sequence[int]:
    """The training length, and 1.5, 2, 3 and 5 times it."""
    return sorted({int(recipe.lengths.top * times) for times in (1, 1.5, 2, 3, 5)})
