"""Weights and fresh problems → a Trace → Score rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.data import fresh_problems
from lengthwise.layout import until_end
from lengthwise.models import Model, settle, unroll
from lengthwise.recipe import Recipe, check_stopping
from lengthwise.run import Weights
from lengthwise.stopping import Stopping
from lengthwise.types import Batch, Score, Trace, UsageError

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
    stopping: Stopping | None = None,
    hard: bool = False,
    seed: int = 0,
) -> Iterator[Score]:
    """One Score per size, as each is measured: exact match of the whole answer on fresh problems.

    A bare number is taken on all of the task's axes. ``stopping`` is the recipe's own unless given.
    """
    recipe = weights.recipe
    stopping = stopping or recipe.stopping
    check_stopping(recipe.layout, stopping)
    if samples < 1:
        raise UsageError(f"samples must be 1 or more, not {samples}")
    for size in sizes:
        at = size if isinstance(size, tuple) else (size,) * len(recipe.task.axes)
        right, tokens, loops = _count(weights.model, recipe, at, samples, stopping, hard=hard, seed=seed)
        yield Score(
            task=recipe.task.name,
            weights=weights.name,
            stopping=stopping.name,
            problems="hard" if hard else "uniform",
            sizes=at,
            count=samples,
            exact=right / samples,
            token_accuracy=tokens,
            loops=loops,
        )


def exact_match(model: Model, recipe: Recipe, sizes: tuple[int, ...], count: int, *, part: int = 0) -> float:
    """Exact match of a model in training; ``part`` makes the problems others than those of another call."""
    return _count(model, recipe, sizes, count, recipe.stopping, hard=False, seed=recipe.data_seed, part=part)[0] / count


def _count(
    model: Model,
    recipe: Recipe,
    sizes: tuple[int, ...],
    count: int,
    stopping: Stopping,
    *,
    hard: bool,
    seed: int,
    part: int = -1,
) -> tuple[int, float, float]:
    problems = fresh_problems(recipe.task, sizes, count, seed=seed, part=part, hard=hard)
    rows = max(1, TOKENS // recipe.layout.write(problems.take(slice(1)), recipe.task).targets.shape[1])
    exact, right, asked, loops = 0, 0, 0, 0
    for start in range(0, count, rows):
        batch = recipe.layout.write(problems.take(slice(start, start + rows)), recipe.task)
        said = answer(model, recipe, batch, stopping)
        wanted, scored = slots(batch.targets, batch.room), slots(batch.asked, batch.room)
        hits = (said.symbols == wanted) & scored
        exact += int((hits == scored).all(1).sum())
        right, asked, loops = right + int(hits.sum()), asked + int(scored.sum()), loops + int(said.loops.sum())
    return exact, right / asked, loops / count


@torch.no_grad()
def answer(model: Model, recipe: Recipe, batch: Batch, stopping: Stopping) -> Said:
    """What the model answers to each row. In a layout that feeds the answer in, an answer is right if and only if
    greedy decoding would give it: every symbol is the likeliest, given the right ones before it."""
    model.eval()
    device = next(model.parameters()).device
    planned = recipe.loops.planned(batch.rounds)
    limit, end, batch = stopping.limit(planned), recipe.layout.end(recipe.task), batch.to(device)
    if stopping.reads_output:
        traced = trace(model, batch, limit, end)
        chosen = stopping.choose(traced, planned.to(device))
        row = torch.arange(len(chosen), device=device)
        said = Said(traced.said[chosen - 1, row], traced.confidence[chosen - 1, row], chosen)
    else:
        rows, state = settle(model, batch.inputs, limit)
        symbols, confidence = _read(model, state, batch.room[rows], end)
        back = rows.argsort()
        said = Said(symbols[back], confidence[back], limit.to(device))
    return Said(said.symbols.cpu(), said.confidence.cpu(), said.loops.cpu())


@torch.no_grad()
def trace(model: Model, batch: Batch, limit: Int[Tensor, " b"], end: int | None) -> Trace:
    """What each loop up to each row's ``limit`` would have answered. ``limit`` is on the CPU."""
    count = batch.room.sum(1)
    shape = int(limit.max()), len(batch), int(count.max())
    said = torch.zeros(shape, dtype=torch.long, device=count.device)
    confidence = torch.zeros(shape[:2], device=count.device)
    for k, rows, state in unroll(model, batch.inputs, limit):
        symbols, sure = _read(model, state, batch.room[rows], end)
        said[k - 1, rows, : symbols.shape[1]] = symbols
        confidence[k - 1, rows] = sure
    return Trace(said, confidence, limit.to(count.device), count)


def _read(
    model: Model, state: Any, room: Bool[Tensor, "r t"], end: int | None
) -> tuple[Int[Tensor, "r a"], Float[Tensor, " r"]]:
    """What is said in each row's slots, and the confidence in it."""
    best = model.read(state, room).log_softmax(-1).max(-1)
    filled = _filled(room)
    symbols = torch.zeros(filled.shape, dtype=torch.long, device=room.device)
    symbols[filled] = best.indices
    sure = torch.zeros(filled.shape, device=room.device)
    sure[filled] = best.values.float()
    before_end = until_end(symbols, end)
    counted = filled & torch.cat([torch.ones_like(filled[:, :1]), before_end[:, :-1]], 1)  # the end too is said
    return symbols, (sure * counted).sum(1) / counted.sum(1)


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
