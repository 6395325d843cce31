"""Training and test problems: batch i is a pure function of the recipe and i."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from lengthwise.recipe import Recipe
from lengthwise.rng import stream
from lengthwise.tasks import Task
from lengthwise.types import Batch, Problems, UsageError


def batch(recipe: Recipe, step: int, *, rank: int = 0, world: int = 1) -> tuple[Batch, Int[Tensor, " b"]]:
    """Training batch ``step`` with its rows' loops; of ``world`` workers each takes every ``world``-th row of the same
    batch, so their number changes nothing."""
    draw = stream(recipe.data_seed, "train", step)
    sizes = recipe.lengths.draw(step, recipe.batch, len(recipe.task.axes), draw)
    sizes = sizes[torch.randperm(recipe.batch, generator=draw)]
    hard = round(recipe.hard * recipe.batch)
    parts: list[Problems] = []
    if hard:
        parts.append(recipe.task.sample_hard(sizes[:hard], draw))
    if hard < recipe.batch:
        parts.append(recipe.task.sample(sizes[hard:], draw))
    written = recipe.layout.write(Problems.join(parts), recipe.task)
    varied = recipe.model.vary(written.inputs, stream(recipe.seed, "positions", step))
    written = replace(written, inputs=varied)
    loops = recipe.loops.draw(written.rounds, stream(recipe.seed, "loops", step))
    mine = slice(rank, None, world)
    return written.take(mine), loops[mine]


def fresh_problems(
    task: Task, size: Sequence[int], count: int, *, seed: int, part: int = -1, hard: bool = False
) -> Problems:
    """Fresh problems of one size: an address of their own, shared with no training batch. Those that are watched while
    training have parts from 0 up."""
    if len(size) != len(task.axes):
        raise UsageError(f"{task.name} has sizes on {len(task.axes)} axes ({', '.join(task.axes)}), not {len(size)}")
    if min(size) < task.smallest:
        raise UsageError(f"sizes start at {task.smallest}, not {min(size)}")
    draw = stream(seed, "test", task.name, "hard" if hard else "uniform", *size, part)
    sizes = torch.tensor([list(size)]).repeat(count, 1)
    return task.sample_hard(sizes, draw) if hard else task.sample(sizes, draw)
