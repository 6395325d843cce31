"""The cost of training a recipe: measured on a few steps, or estimated without running any."""

from __future__ import annotations

import json
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lengthwise.base import rng
from lengthwise.base.progress import Progress
from lengthwise.evaluation.families import estimate_relative_cost
from lengthwise.evaluation.scores import SAMPLES, measure_exact_match
from lengthwise.experiment import data
from lengthwise.experiment.data import choose_default_sizes, find_nearest_size
from lengthwise.experiment.lengths import Mastery
from lengthwise.experiment.recipe import Recipe, Watch
from lengthwise.experiment.resources import OPERATIONS_PER_SECOND, count_parameters, estimate_training
from lengthwise.experiment.source import Fresh
from lengthwise.runners.cpu import describe_choice
from lengthwise.runners.plain import Plain
from lengthwise.runs.folder import cache_operations, read_operations
from lengthwise.training.arithmetic import Matmul, computation_settings
from lengthwise.training.loop import prepare_steps
from lengthwise.training.trainer import Trainer

MAX_STEP_SECONDS = 60.0  # a slower step is estimated, not measured
STORED_COSTS = Path(__file__).parent / "costs.json"  # written by `make costs`


@dataclass(frozen=True)
class Cost:
    """The cost of training a recipe; costs per step are means over the run, forward and backward pass together."""

    parameters: int
    memory: float  # bytes, estimated
    operations: float  # floating-point operations in matrix products, per step; a multiply–add counts as two
    seconds: float  # processor time per step on one thread
    steps: int
    # Numbers are measured here, stored from another machine, or estimated within a small factor.
    source: Literal["measured", "stored", "estimated"] = "measured"

    @property
    def minutes(self) -> float:
        """Minutes of processor time for the full training."""
        return self.steps * self.seconds / 60


def time_evaluation(recipe: Recipe) -> float:
    """Estimate the CPU seconds of an evaluation at the default lengths with the default number of problems, from a few
    problems of the training length."""
    sizes, rows = choose_default_sizes(recipe), 16
    top = find_nearest_size(recipe, recipe.lengths.top)
    with computation_settings(1):
        start = time.process_time()
        measure_exact_match(recipe.build().eval(), recipe, top, rows)
        seconds = time.process_time() - start
    total = sum(estimate_relative_cost(recipe, size) for size in sizes)
    return seconds * SAMPLES / rows * total / estimate_relative_cost(recipe, top)


def describe_runner(recipe: Recipe, cost: Cost) -> str:
    """Return the name of the runner that trains a recipe and, for the plain runner, the reason."""
    is_slow = cost.seconds > MAX_STEP_SECONDS
    return "not determined: a step takes too long" if is_slow else describe_choice(recipe.build())


def count_operations(recipe: Recipe, rows: int | None = None, n_steps: int = 4) -> float:
    """Return ``Cost.operations`` of a recipe with the plain runner and initial weights, measured on ``rows`` rows of a
    batch (an eighth by default) and scaled up. If a step would take longer than ``MAX_STEP_SECONDS``, estimate the
    operations from its estimated time."""
    rows = min(rows or max(1, recipe.batch // 8), recipe.batch)
    if (seconds := _estimate_step(recipe)) * rows / recipe.batch > MAX_STEP_SECONDS:
        return seconds * OPERATIONS_PER_SECOND
    small = _reduce_batch(recipe, rows)
    model = small.build()
    with computation_settings(1), operation_counter() as counter:
        for step, exams_passed in _sample_steps(recipe, n_steps):
            batch, loops = data.draw_batch(small, step, exams_passed=exams_passed)
            with rng.preserve_generators():
                rng.seed_torch(rng.derive_seed(recipe.seed, "dropout", step))
                small.objective(Plain(model), batch, loops, rng.stream(recipe.seed, "objective", step)).value.backward()
    return counter.get_total_flops() * recipe.batch / rows / n_steps


@contextmanager
def operation_counter() -> Iterator[FlopCounterMode]:
    """Count the floating-point operations in matrix products of a ``with`` block, with the same result for all
    implementations of attention."""
    # Torch counts no operations in a CPU's fused attention and LSTM; without these, it warns of Intel GPUs, in vain.
    quiet, counter = warnings.catch_warnings(action="ignore"), FlopCounterMode(display=False)
    with quiet, sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(False), counter:
        yield counter


def _estimate_step(recipe: Recipe) -> float:
    """Return estimated seconds of a step, without running one."""
    return estimate_training(recipe).seconds / recipe.steps


def _reduce_batch(recipe: Recipe, rows: int) -> Recipe:
    # A fixed set's problems cost about as much as new ones, but drawing the set takes longer than all these steps.
    parts = min(recipe.accumulate, rows)
    return replace(recipe, watch=Watch(), keep="last", patience=0, batch=rows, accumulate=parts, source=Fresh())


def _sample_steps(recipe: Recipe, count: int) -> Iterator[tuple[int, int]]:
    """Yield ``count`` evenly spaced steps of a run, each with the number of exams (``Mastery``) passed by then, if
    exams are passed at an even rate."""
    exams = recipe.lengths.exam_count() if isinstance(recipe.lengths, Mastery) else 0
    for moment in range(count):
        step = int(recipe.steps * (moment + 0.5) / count)
        yield step, exams * step // recipe.steps


def measure_operations(recipes: Iterable[Recipe], progress: Progress | None = None) -> dict[str, float]:
    """Return each recipe's ``Cost.operations``, by its id without seeds. Values that the cache lacks are measured and
    stored there."""
    by_id, known = {recipe.seedless_id: recipe for recipe in recipes}, read_operations()
    new = {key: recipe for key, recipe in by_id.items() if key not in known}
    line = (progress or Progress(quiet=True)).add_line("operations of a step", len(new))
    for number, (key, recipe) in enumerate(new.items()):
        line.update(number, recipe.name)
        known[key] = count_operations(recipe)
    line.update(len(new))
    if new:
        cache_operations({key: known[key] for key in new})
    return {key: known[key] for key in by_id}


@cache
def read_stored_costs() -> dict[str, dict[str, Any]]:
    """Return the stored costs by recipe id without seeds: the recipe's name, and fields of ``Cost``."""
    return json.loads(STORED_COSTS.read_text(encoding="utf-8")) if STORED_COSTS.exists() else {}


def look_up_cost(recipe: Recipe) -> Cost:
    """Return a recipe's cost without running a step: the stored cost, or an estimate from model and row sizes."""
    if row := read_stored_costs().get(recipe.seedless_id):
        return Cost(steps=recipe.steps, **{name: value for name, value in row.items() if name != "recipe"})
    estimate = estimate_training(recipe)
    seconds, memory = estimate.seconds / recipe.steps, estimate.memory
    operations = seconds * OPERATIONS_PER_SECOND
    return Cost(count_parameters(recipe), memory, operations, seconds, recipe.steps, "estimated")


def measure_cost(recipe: Recipe, n_steps: int = 4, rows: int | None = None) -> Cost:
    """Measure the cost at ``n_steps`` evenly spaced steps of the training, since curricula make later steps more
    expensive. With ``rows``, batches have only this number of rows; seconds and operations are then scaled up, and
    slightly too high. No step is run if its estimate is above ``MAX_STEP_SECONDS``."""
    rows, estimate = min(rows or recipe.batch, recipe.batch), estimate_training(recipe)
    operations, seconds = count_operations(recipe, rows, n_steps), estimate.seconds / recipe.steps
    measured = seconds * rows / recipe.batch <= MAX_STEP_SECONDS
    if measured:
        trainer = Trainer(_reduce_batch(recipe, rows), torch.device("cpu"))
        seconds = _time_step(trainer, n_steps, time.process_time) * recipe.batch / rows
    source = "measured" if measured else "estimated"
    return Cost(count_parameters(recipe), estimate.memory, operations, seconds, recipe.steps, source)


def time_gpu_step(recipe: Recipe, n_steps: int, *, matmul: Matmul = "fp32", compile: bool = False) -> float | None:
    """Return wall seconds of a step with the whole batch on a CUDA GPU; None if it would take too long to measure."""
    if _estimate_step(recipe) > 50 * MAX_STEP_SECONDS:  # assume that a GPU is 50 times as fast as one CPU thread
        return None
    device = torch.device("cuda")
    trainer = Trainer(_reduce_batch(recipe, recipe.batch), device, matmul=matmul, compile=compile, graphs=not compile)
    prepare_steps(trainer, Progress(quiet=True))

    def clock() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return _time_step(trainer, n_steps, clock)


def _time_step(trainer: Trainer, n_steps: int, clock: Callable[[], float]) -> float:
    """Return the mean seconds of ``n_steps`` steps across the training; ``clock`` returns the time in seconds."""
    taken = 0.0
    with computation_settings(1):
        trainer.advance()  # the first step includes one-time allocations
        for step, exams_passed in _sample_steps(trainer.recipe, n_steps):
            trainer.exams_passed = exams_passed
            if trainer.runners.compiles or trainer.runners.graphs:  # prepare this step's shape first
                trainer.step = step
                trainer.advance()
            trainer.step, start = step, clock()
            trainer.advance()
            taken += clock() - start
    return taken / n_steps
