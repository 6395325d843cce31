"""Problems per second, written as rows, on one thread. Claim: parity ≥ 200k, 20-digit decimal addition ≥ 100k."""

import json
import statistics
import time

import torch

from lengthwise.layout import FullOutput, Layout, NextToken, Pairs
from lengthwise.rng import stream
from lengthwise.tasks import Task
from lengthwise.tasks.addition import Addition
from lengthwise.tasks.parity import Parity

BATCH, SIZE, REPEATS = 1024, 20, 30


def rate(task: Task, layout: Layout) -> float:
    """Median problems per second."""
    sizes = torch.full((BATCH, len(task.axes)), SIZE)
    seconds = []
    for step in range(REPEATS):
        start = time.perf_counter()
        layout.write(task.sample(sizes, stream(0, "bench", step)), task)
        seconds.append(time.perf_counter() - start)
    return BATCH / statistics.median(seconds)


def main() -> None:
    torch.set_num_threads(1)
    stacked = Addition(order="least", equal_lengths=True, leading_zeros=True)
    rates = {
        "parity": rate(Parity(), FullOutput()),
        "addition": rate(Addition(), NextToken()),
        "addition, stacked": rate(stacked, Pairs()),
    }
    met = rates["parity"] >= 200e3 and min(rates["addition"], rates["addition, stacked"]) >= 100e3
    rounded = {name: round(value) for name, value in rates.items()}
    print(json.dumps({"bench": "data", "problems_per_second": rounded, "batch": BATCH, "size": SIZE, "met": met}))


if __name__ == "__main__":
    main()
