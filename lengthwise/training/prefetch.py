"""Draws each batch while the step before it is computed.

A batch is a function of the recipe, the step and the exams passed (``experiment.data``), so it does not matter when it
is drawn: weights are the same to the bit. On a CPU nothing is won, as drawing takes its time from the step.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch

from lengthwise.experiment import data
from lengthwise.experiment.recipe import Recipe
from lengthwise.training.trainer import DrawnBatch, Trainer


def pays(device: torch.device) -> bool:
    """Does the device compute beside the CPU?"""
    return device.type != "cpu"


class Prefetcher:
    """The batches of a recipe; a worker draws the next one meanwhile."""

    def __init__(self, recipe: Recipe, worker: ThreadPoolExecutor) -> None:
        self.recipe, self.worker = recipe, worker
        self.coming: dict[tuple[int, int], Future[DrawnBatch]] = {}  # by step and exams passed; one at most

    def __call__(self, step: int, passed: int) -> DrawnBatch:
        """The batch of a step after so many exams. One that was drawn before an exam was passed is thrown away. Raises
        what drawing raises."""
        coming = self.coming.pop((step, passed), None)
        found = coming.result() if coming else data.batch(self.recipe, step, passed=passed)
        self.coming = {}
        if step + 1 < self.recipe.steps:
            following = self.worker.submit(data.batch, self.recipe, step + 1, passed=passed)
            self.coming = {(step + 1, passed): following}
        return found


@contextmanager
def prefetch_batches(trainees: Sequence[Trainer], *, always: bool = False) -> Iterator[None]:
    """A context in which one thread draws the batches of these ahead, where that pays, or ``always``."""
    if not always and not pays(trainees[0].device):
        yield
        return
    before = [one.draw for one in trainees]
    with ThreadPoolExecutor(1, "batches") as worker:
        try:
            for one in trainees:
                one.draw = Prefetcher(one.recipe, worker)
            yield
        finally:
            worker.shutdown(cancel_futures=True)
            for one, draw in zip(trainees, before, strict=True):
                one.draw = draw
