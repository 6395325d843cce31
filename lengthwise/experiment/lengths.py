"""Distributions of the sizes of training problems at each step. Both ends of a range are included."""

from __future__ import annotations

import math
from abc import abstractmethod
from bisect import bisect_left
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.fields import Config
from lengthwise.base.ranges import Count, Fraction, Growth, Size, Whole
from lengthwise.base.types import Problems, UsageError
from lengthwise.experiment.stopping import describe_value
from lengthwise.tasks import Task


class Lengths(Config):
    """Base class of the distributions of problem sizes at each training step. Subclasses are frozen dataclasses."""

    top: int  # the largest training size
    bottom: int = 1  # the smallest size
    max_per_axis: tuple[int, ...] = ()  # the largest size on each axis, if some axis must stay below ``top``

    def __post_init__(self) -> None:
        super().__post_init__()
        if not hasattr(self, "top"):
            raise UsageError(
                f"{type(self).__name__} needs a field with the longest training length, such as top: int = 20"
            )
        _check_order(bottom=self.bottom, top=self.top)

    def tops(self, axes: int) -> tuple[int, ...]:
        """Return the largest training size on each of ``axes`` axes. Raises UsageError if ``max_per_axis`` has
        values for
        another number of axes."""
        if self.max_per_axis and len(self.max_per_axis) != axes:
            raise UsageError(f"max_per_axis needs the largest size on each of {axes} axes, not {self.max_per_axis}")
        return tuple(min(self.top, size) for size in self.max_per_axis) or (self.top,) * axes

    @abstractmethod
    def problems(self, task: Task, step: int, rows: int, generator: Generator, hard: int = 0) -> Problems:
        """Draw the ``rows`` problems of a batch, in random order of size; the first ``hard`` problems are from the
        task's harder set."""

    def curriculum_step(self, step: int, exams_passed: int | None) -> int:
        """Return the argument ``step`` of ``problems``: the training step or, with ``Mastery``, the number of exams
        passed."""
        return step


class SampledLengths(Lengths):
    """Base class of distributions that draw sizes first, independently on each axis, then problems of these sizes.
    Sizes that the task lacks are replaced by random smaller sizes (``Task.replace_missing_sizes``)."""

    @abstractmethod
    def draw(self, step: int, rows: int, axes: int, generator: Generator) -> Int[Tensor, "rows axes"]:
        """Draw the sizes of the problems in one batch."""

    def problems(self, task: Task, step: int, rows: int, generator: Generator, hard: int = 0) -> Problems:
        sizes = self.draw(step, rows, len(task.axes), generator)
        self._check_drawn(sizes, rows, len(task.axes))
        sizes = task.replace_missing_sizes(sizes[torch.randperm(rows, generator=generator)], generator)
        parts = [task.sample_hard(sizes[:hard], generator)] if hard else []
        if hard < rows:
            parts.append(task.sample(sizes[hard:], generator))
        return Problems.join(parts)

    def _check_drawn(self, sizes: object, rows: int, axes: int) -> None:
        name = type(self).__name__
        if not isinstance(sizes, Tensor) or sizes.dtype != torch.long or sizes.shape != (rows, axes):
            raise UsageError(f"{name}: draw must return torch.long of {(rows, axes)}, not {describe_value(sizes)}")
        if (sizes < self.bottom).any() or (sizes > torch.tensor(self.tops(axes))).any():
            drawn, limits = f"{int(sizes.min())} to {int(sizes.max())}", f"bottom={self.bottom} to top={self.top}"
            raise UsageError(f"{name}: draw returned sizes {drawn}; they must be in the training range, {limits}")


def _check_order(**sizes: int) -> None:
    """Raise UsageError unless the sizes are in ascending order."""
    if sorted(sizes.values()) != list(sizes.values()):
        text = " ".join(f"{name}={size}" for name, size in sizes.items())
        raise UsageError(f"lengths need {' <= '.join(sizes)}, not {text}")


def _draw_uniform(low: int, high: int, rows: int, axes: int, generator: Generator) -> Tensor:
    return torch.randint(low, high + 1, (rows, axes), generator=generator)


@dataclass(frozen=True)
class Uniform(SampledLengths):
    """Sizes drawn uniformly from ``bottom`` to ``top``, in steps of ``step``; a fraction ``longest`` of the rows has
    size ``top`` instead."""

    top: Size  # the largest training size
    bottom: Size = 1  # the smallest size
    longest: Fraction = 0.0  # fraction of the rows that have the largest size
    step: Size = 1  # difference between one size and the next

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.top - self.bottom) % self.step:
            raise UsageError(f"lengths: steps of {self.step} from bottom={self.bottom} do not reach top={self.top}")

    def draw(self, step: int, rows: int, axes: int, generator: Generator) -> Int[Tensor, "rows axes"]:
        steps = _draw_uniform(0, (self.top - self.bottom) // self.step, rows, axes, generator)
        sizes = self.bottom + self.step * steps
        sizes[: round(self.longest * rows)] = self.top
        return sizes


@dataclass(frozen=True)
class OneOf(SampledLengths):
    """Sizes drawn from ``sizes`` with equal probabilities; a size that is named twice is twice as frequent."""

    sizes: tuple[Size, ...]  # the training sizes

    def __post_init__(self) -> None:
        if not self.sizes:
            raise UsageError("lengths: OneOf needs one or more sizes, e.g. OneOf(sizes=(4,8,16))")
        super().__post_init__()

    @property
    def top(self) -> int:  # type: ignore[override]
        return max(self.sizes)

    @property
    def bottom(self) -> int:  # type: ignore[override]
        return min(self.sizes)

    def draw(self, step: int, rows: int, axes: int, generator: Generator) -> Int[Tensor, "rows axes"]:
        return torch.tensor(self.sizes)[_draw_uniform(0, len(self.sizes) - 1, rows, axes, generator)]


@dataclass(frozen=True)
class LogUniform(SampledLengths):
    """Sizes n from ``bottom`` to ``top``, with probabilities proportional to 1 / n. Most problems are short, like those
    that people type: from 1 to 20, half of the sizes are 3 or less."""

    top: Size  # the largest training size
    bottom: Size = 1  # the smallest size

    def draw(self, step: int, rows: int, axes: int, generator: Generator) -> Int[Tensor, "rows axes"]:
        weights = 1 / torch.arange(self.bottom, self.top + 1)
        drawn = torch.multinomial(weights, rows * axes, replacement=True, generator=generator)
        return self.bottom + drawn.view(rows, axes)


class Growing(SampledLengths, former_names={"most": "max_per_axis"}):
    """Base class of sizes drawn uniformly from ``bottom`` to a maximum, which grows from ``start`` to ``top`` during
    training. ``max_per_axis`` limits each axis."""

    start: int  # the first maximum

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_order(bottom=self.bottom, start=self.start, top=self.top)
        if any(size < self.bottom for size in self.max_per_axis):
            raise UsageError(
                f"max_per_axis must be at least bottom={self.bottom} on each axis, not {self.max_per_axis}"
            )

    @abstractmethod
    def maximum(self, step: int) -> int:
        """Return the largest size at a step, counted from 0 (see ``curriculum_step``)."""

    def draw(self, step: int, rows: int, axes: int, generator: Generator) -> Int[Tensor, "rows axes"]:
        sizes = _draw_uniform(self.bottom, self.maximum(step), rows, axes, generator)
        for axis, top in enumerate(self.tops(axes)):
            if top < self.maximum(step):
                sizes[:, axis] = _draw_uniform(self.bottom, top, rows, 1, generator)[:, 0]
        return sizes


@dataclass(frozen=True)
class Curriculum(Growing, former_names={"hold": "hold_steps"}):
    """Sizes drawn uniformly from ``bottom`` to a maximum, which is ``start`` for ``hold_steps`` steps and then grows by
    1 every ``every`` steps, up to ``top`` (Garg et al., 2022; Fan et al., 2025, section 6). ``max_per_axis=(2,11)``
    limits each axis."""

    top: Size  # the largest training size in the end
    every: Count  # steps until the maximum grows by 1
    start: Size = 1  # the first maximum
    bottom: Size = 1  # the smallest size
    max_per_axis: tuple[Size, ...] = ()  # the largest size on each axis; none: top on all
    hold_steps: Whole = 0  # steps before the maximum grows at all

    def maximum(self, step: int) -> int:
        return min(self.top, self.start + max(0, step - self.hold_steps) // self.every)


@dataclass(frozen=True)
class Mastery(Growing, former_names={"least": "pass_accuracy"}):
    """Sizes drawn uniformly from ``bottom`` to a maximum, which grows by 1 or by a factor ``grow`` with each exam
    passed. Every ``every`` steps, the model takes an exam of ``count`` fresh problems of the largest size; it passes if
    at least a fraction ``pass_accuracy`` of the answers is right. A fraction ``longest`` of the rows has the largest
    size."""

    top: Size  # the largest training size in the end
    start: Size = 1  # the first maximum
    bottom: Size = 1  # the smallest size
    max_per_axis: tuple[Size, ...] = ()  # the largest size on each axis; none: top on all
    every: Count = 50  # steps from one exam to the next
    pass_accuracy: Fraction = 0.9  # exact match that passes an exam
    count: Size = 64  # number of problems in an exam
    longest: Fraction = 0.0  # fraction of the rows that have the largest size
    grow: Growth = 1.0  # factor by which the maximum grows, rounded up; 1: it grows by 1

    def draw(self, step: int, rows: int, axes: int, generator: Generator) -> Int[Tensor, "rows axes"]:
        sizes, maximum = super().draw(step, rows, axes, generator), self.maximum(step)
        sizes[: round(self.longest * rows)] = torch.tensor([min(maximum, top) for top in self.tops(axes)])
        return sizes

    def maximum(self, step: int) -> int:
        size = self.start
        for _ in range(step):
            if size >= self.top:
                break
            size = max(size + 1, math.ceil(size * self.grow))
        return min(self.top, size)

    def exam_count(self) -> int:
        """Return the number of exams that must be passed until the maximum is ``top``."""
        return bisect_left(range(self.top + 1), self.top, key=self.maximum)

    def curriculum_step(self, step: int, exams_passed: int | None) -> int:
        return self.top if exams_passed is None else exams_passed


@dataclass(frozen=True)
class Natural(Lengths):
    """Sizes from ``bottom`` to ``top``, drawn from the task's own distribution (``Task.sample_natural``)."""

    top: Size  # the largest training size
    bottom: Size = 1  # the smallest size

    def problems(self, task: Task, step: int, rows: int, generator: Generator, hard: int = 0) -> Problems:
        assert not hard, "Recipe refuses it"
        return task.sample_natural(rows, self.bottom, self.top, generator)
