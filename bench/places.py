"""Computation of digit positions. Claim: it is 20 times as fast as a loop over rows and tokens that makes a tensor from
lists. The loop alone, without making the tensor, is measured for comparison."""

import statistics
from collections.abc import Callable
from typing import Any

import torch
from common import QUICK, print_result, seconds, spread

from lengthwise.base.rng import stream
from lengthwise.experiment.layout import compute_digit_positions

ROWS, WIDTH, SIGN = 64, 128, 10
REPEATS, TIMES = (2, 1) if QUICK else (15, 20)


def loop_digit_positions(rows: list[list[int]]) -> list[list[int]]:
    """Return digit positions, counted token by token."""
    found = []
    for row in rows:
        counted, position = [], 0
        for token in row:
            position = 0 if token >= SIGN else position + 1
            counted.append(position)
        found.append(counted)
    return found


def min_seconds(function: Callable[[], Any]) -> float:
    return min(seconds(function) for _ in range(TIMES))


def main() -> None:
    torch.set_num_threads(1)
    tokens = torch.randint(12, (ROWS, WIDTH), generator=stream(0, "bench"))
    rows = tokens.tolist()
    assert torch.equal(torch.tensor(loop_digit_positions(rows)), compute_digit_positions(tokens >= SIGN).long())
    whole, alone = [], []
    for _ in range(REPEATS):  # alternately
        fast = min_seconds(lambda: compute_digit_positions(tokens >= SIGN))
        whole.append(min_seconds(lambda: torch.tensor(loop_digit_positions(rows))) / fast)
        alone.append(min_seconds(lambda: loop_digit_positions(rows)) / fast)
    found = spread(whole, 1)
    print_result("places", **found, loop_alone=round(statistics.median(alone), 1), met=found["ratio"] >= 20)


if __name__ == "__main__":
    main()
