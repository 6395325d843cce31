"""Computation of digit positions. Claim: the package is 20 times as fast as a loop over rows and tokens that makes a
tensor from lists. The loop without making the tensor is measured for comparison."""

import statistics
from collections.abc import Callable
from typing import Any

import torch
from common import QUICK, measure_seconds, print_result, summarize_ratios

from lengthwise.base.rng import stream
from lengthwise.experiment.layout import compute_digit_positions

ROWS, WIDTH, SIGN = 64, 128, 10
REPEATS, TIMES = (2, 1) if QUICK else (15, 20)


def compute_positions_by_loop(rows: list[list[int]]) -> list[list[int]]:
    """Return digit positions, counted token by token."""
    found = []
    for row in rows:
        counted, position = [], 0
        for token in row:
            position = 0 if token >= SIGN else position + 1
            counted.append(position)
        found.append(counted)
    return found


def measure_min_seconds(function: Callable[[], Any]) -> float:
    return min(measure_seconds(function) for _ in range(TIMES))


def main() -> None:
    torch.set_num_threads(1)
    tokens = torch.randint(12, (ROWS, WIDTH), generator=stream(0, "bench"))
    rows = tokens.tolist()
    assert torch.equal(torch.tensor(compute_positions_by_loop(rows)), compute_digit_positions(tokens >= SIGN).long())
    whole, alone = [], []
    for _ in range(REPEATS):  # alternately
        fast = measure_min_seconds(lambda: compute_digit_positions(tokens >= SIGN))
        whole.append(measure_min_seconds(lambda: torch.tensor(compute_positions_by_loop(rows))) / fast)
        alone.append(measure_min_seconds(lambda: compute_positions_by_loop(rows)) / fast)
    found = summarize_ratios(whole, 1)
    print_result("digit_positions", **found, loop_alone=round(statistics.median(alone), 1), met=found["ratio"] >= 20)


if __name__ == "__main__":
    main()
