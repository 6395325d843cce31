"""Estimates of the memory and time that training or evaluation will take.

The estimates are right within a small factor, which suffices to refuse impossible work and to announce long work.
``training.cost`` measures the cost of training.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from lengthwise.base.fields import iterate_parts
from lengthwise.base.formatting import format_bytes
from lengthwise.base.results import AnySize
from lengthwise.base.rng import stream
from lengthwise.base.types import UsageError
from lengthwise.experiment.own_code import wrap_user_errors
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.stopping import Stopping, compute_loop_limits

OPERATIONS_PER_SECOND = 4e10  # floating-point operations of one thread, the median of timed recipes
LOOP_SECONDS = 2e-4  # seconds of a loop, forward and backward, that do not depend on the tensors' sizes
TRAINING_NUMBERS = 7  # numbers per parameter in training: weight, gradient, two moments, average, best, checkpoint
MAX_SAMPLED_SIZE = 64  # estimates for larger sizes are extrapolated


@dataclass(frozen=True)
class ResourceEstimate:
    """An estimate of memory and time."""

    memory: float  # peak memory in bytes
    seconds: float  # seconds of one CPU thread

    def check(self, description: str) -> None:
        """Raise UsageError if this machine lacks the memory; ``description`` states what needs it."""
        if self.memory > (limit := get_available_memory()):
            needed = f"{description} takes about {format_bytes(self.memory)} of memory"
            raise UsageError(f"{needed}; this machine has {format_bytes(limit)}")


def get_available_memory() -> float:
    """Return the bytes of memory that this process may use; infinity if the system does not report them."""
    try:
        physical = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):
        return math.inf
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text(encoding="utf-8").strip() if limit.is_file() else ""
    return min(physical, float(text)) if text.isdigit() else physical


def estimate_problems(count: int, size: Sequence[int]) -> ResourceEstimate:
    """Estimate the memory of ``count`` problems of a size and of their text."""
    return ResourceEstimate(count * (500.0 + 100.0 * sum(size)), 0)


def estimate_model(recipe: Recipe, numbers_per_parameter: int = 1) -> ResourceEstimate:
    """Estimate the memory of a model, with ``numbers_per_parameter`` numbers of 32 bits per parameter."""
    weights = 0 if is_small_model(recipe.model) else count_parameters(recipe)
    return ResourceEstimate(4.0 * numbers_per_parameter * weights, 0)


def estimate_training(recipe: Recipe) -> ResourceEstimate:
    """Estimate the time of training and its memory: weights, gradients, optimizer state, a batch's activations."""
    positions, rounds = _estimate_row(recipe, recipe.tops)
    loops = int(recipe.loops.planned(torch.tensor([round(rounds)])))
    rows, weights = recipe.batch * positions, count_parameters(recipe)
    memory = 4 * TRAINING_NUMBERS * weights + rows * (100 + 4 * _count_activations(recipe) * loops)
    # The mean size is half of the largest, hence / 2. In small models the overhead of loops dominates.
    passes = recipe.steps * recipe.objective.steps_per_batch * loops
    seconds = passes * (6 * weights * rows / OPERATIONS_PER_SECOND / 2 + LOOP_SECONDS)
    return ResourceEstimate(memory, seconds)


def estimate_evaluation(
    recipe: Recipe, sizes: Sequence[AnySize], samples: int, rules: Sequence[Stopping]
) -> ResourceEstimate:
    """Estimate the peak memory and the total time of measuring exact match on ``samples`` problems per size."""
    weights, model = count_parameters(recipe), recipe.model
    parts = (getattr(model, "mixer", None), *getattr(model, "positions", ()))
    attends_everywhere = not any(getattr(part, "sees_neighbours_only", False) for part in parts)
    # A rule that compares all loops keeps all their answers; one that stops rows keeps the latest ones.
    compares = any(rule.reads_output and not rule.may_stop_early for rule in rules)
    is_traced = len(rules) > 1 or any(rule.reads_output for rule in rules)
    memory, seconds = [], []
    for size in (sampled := sizes[:: max(1, len(sizes) // 32)]):  # if there are many sizes, a sample of them
        positions, rounds = _estimate_row(recipe, recipe.sizes(size))
        planned = recipe.loops.planned(torch.tensor([round(rounds)]))
        limits = [int(compute_loop_limits(rule, planned)) for rule in rules]
        run = max(rule.starts * limit for rule, limit in zip(rules, limits, strict=True))
        scores = 8 * getattr(model, "heads", 0) * positions**2 * attends_everywhere
        traced_loops = is_traced * (max(limits) if compares else max(rule.window for rule in rules))
        per_position = 4 * _count_activations(recipe) + 8.0 * traced_loops
        memory.append(4 * weights + samples * positions * 20 + per_position * max(positions, 32_768) + scores)
        seconds.append(2 * weights * samples * positions * run / OPERATIONS_PER_SECOND)
    return ResourceEstimate(max(memory), sum(seconds) * len(sizes) / len(sampled))


@lru_cache(maxsize=256)
def _estimate_row(recipe: Recipe, size: tuple[int, ...]) -> tuple[float, float]:
    """Return the number of positions in a row of this size, and T(n). For large sizes, both numbers are extrapolated
    from smaller sizes: positions linearly, T(n) by a power law."""
    largest = max(size)
    if largest <= MAX_SAMPLED_SIZE:
        return _measure_sample_row(recipe, size)
    small = (tuple(max(1, part * n // largest) for part in size) for n in (MAX_SAMPLED_SIZE // 2, MAX_SAMPLED_SIZE))
    (_, first), (positions, second) = (_measure_sample_row(recipe, part_size) for part_size in small)
    power, times = max(0, math.log2(second / first)), largest / MAX_SAMPLED_SIZE
    return positions * times, second * times**power


def _measure_sample_row(recipe: Recipe, size: tuple[int, ...]) -> tuple[float, float]:
    """Return the number of positions in the row of one random problem of this size, and its T(n)."""
    try:
        with wrap_user_errors(recipe):
            present = [recipe.task.round_to_valid_size(number) for number in size]
            problems = recipe.task.sample(torch.tensor([present]), stream(0, "demand"))
            batch = recipe.layout.write(problems, recipe.task)
    except UsageError:  # the task has no such size, or an error, which is reported elsewhere
        return 3.0 * max(size), float(max(size))
    return float(batch.targets.shape[1]), max(1.0, float(batch.rounds[0]))


def _count_activations(recipe: Recipe) -> float:
    """Return the number of activations that backpropagation keeps per position and loop: 16 · width · layers."""
    width = getattr(recipe.model, "width", getattr(recipe.model, "hidden", 64))
    return 16.0 * width * getattr(recipe.model, "layers", 1)


@lru_cache(maxsize=64)
def count_parameters(recipe: Recipe) -> int:
    """Return the number of parameters of a recipe's model. A large model is built on
    the meta device, which allocates no weights, if its code allows that."""
    spec, layers, model = recipe.model, getattr(recipe.model, "layers", 1), None
    is_small = is_small_model(spec)
    if not is_small and layers > 2:  # layers are equally large
        one, two = (count_parameters(replace(recipe, model=replace(spec, layers=n))) for n in (1, 2))  # type: ignore[call-arg]
        return one + (layers - 1) * (two - one)
    with wrap_user_errors(recipe):
        if not is_small:
            # A user's own model may read its weights while it is built, or have a bug.
            with suppress(Exception), torch.device("meta"):
                model = recipe.build()
        model = recipe.build() if model is None else model
        return sum(parameter.numel() for parameter in model.parameters())


def is_small_model(spec: Any) -> bool:
    """Return whether the numbers in a model's configuration show that it fits into any machine's memory."""
    parts = iterate_parts(spec)
    numbers = [max(1, value) for part in parts for value in vars(part).values() if isinstance(value, int)]
    return math.prod(numbers) * max(numbers, default=1) < 10**7  # a width's matrices have its square
