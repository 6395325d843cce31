"""Draw each batch while the previous step is computed.

A batch is a function of the recipe, the step and the exams passed, so prefetching changes nothing. On a CPU it saves no
time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch

from lengthwise.experiment import data
from lengthwise.experiment.recipe import Recipe
from lengthwise.training.trainer import DrawnBatch, Trainer


def is_worthwhile(device: torch.device) -> bool:
    """Return whether the device computes while the CPU draws."""
    return device.type != "cpu"


class Prefetcher:
    """The batches of a recipe; a worker thread draws the next one ahead."""

    def __init__(self, recipe: Recipe, worker: ThreadPoolExecutor) -> None:
        self.recipe, self.worker = recipe, worker
        self.next: dict[tuple[int, int], Future[DrawnBatch]] = {}  # the next batch, by step and exams passed

    def __call__(self, step: int, passed: int) -> DrawnBatch:
        """Return the batch of a step after ``passed`` exams. A batch that was drawn before an exam was passed is
        discarded. Raises errors of drawing."""
        future = self.next.pop((step, passed), None)
        found = future.result() if future else data.batch(self.recipe, step, passed=passed)
        self.next = {}
        if step + 1 < self.recipe.steps:
            following = self.worker.submit(data.batch, self.recipe, step + 1, passed=passed)
            self.next = {(step + 1, passed): following}
        return found


@contextmanager
def prefetch_batches(trainers: Sequence[Trainer], *, always: bool = False) -> Iterator[None]:
    """Prefetch batches in a thread during a ``with`` block, where that saves time, or ``always``."""
    if not always and not is_worthwhile(trainers[0].device):
        yield
        return
    before = [one.draw for one in trainers]
    with ThreadPoolExecutor(1, "batches") as worker:
        try:
            for one in trainers:
                one.draw = Prefetcher(one.recipe, worker)
            yield
        finally:
            worker.shutdown(cancel_futures=True)
            for one, draw in zip(trainers, before, strict=True):
                one.draw = draw
