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
    """Return whether the device can compute while the CPU draws the next batch."""
    return device.type != "cpu"


class Prefetcher:
    """Returns a recipe's batches; a worker thread draws the next batch in advance."""

    def __init__(self, recipe: Recipe, worker: ThreadPoolExecutor) -> None:
        self.recipe, self.worker = recipe, worker
        self.next: dict[tuple[int, int], Future[DrawnBatch]] = {}  # the next batch, by step and exams passed

    def __call__(self, step: int, exams_passed: int) -> DrawnBatch:
        """Return the batch of a step after ``exams_passed`` exams. A batch prefetched before an exam was passed is
        discarded."""
        future = self.next.pop((step, exams_passed), None)
        found = future.result() if future else data.draw_batch(self.recipe, step, exams_passed=exams_passed)
        self.next = {}
        if step + 1 < self.recipe.steps:
            following = self.worker.submit(data.draw_batch, self.recipe, step + 1, exams_passed=exams_passed)
            self.next = {(step + 1, exams_passed): following}
        return found


@contextmanager
def prefetch_batches(trainers: Sequence[Trainer], *, on_any_device: bool = False) -> Iterator[None]:
    """Prefetch batches in a thread during a ``with`` block: on devices where this saves time, or ``on_any_device``."""
    if not on_any_device and not is_worthwhile(trainers[0].device):
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
