"""Digit positions. Claim: 20 times as fast as a loop over rows and tokens that makes a tensor from lists.

For comparison also the loop alone: most of its time goes into converting lists to a tensor."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from common import QUICK, print_result

from lengthwise.base.rng import stream
from lengthwise.experiment.layout import digit_positions

ROWS, WIDTH, SIGN = 64, 128, 10
REPEATS, TIMES = (2, 1) if QUICK else (15, 20)


def plain(rows: list[list[int]]) -> list[list[int]]:
    """Digit positions by definition, token by token."""
    found = []
    for row in rows:
        counted, position = [], 0
        for token in row:
            position = 0 if token >= SIGN else position + 1
            counted.append(position)
        found.append(counted)
    return found


def seconds(function: Callable[[], Any]) -> float:
    """The shortest of several calls, as other work on the machine can only add time."""
    taken = []
    for _ in range(TIMES):
        start = time.perf_counter()
        function()
        taken.append(time.perf_counter() - start)
    return min(taken)


def main() -> None:
    torch.set_num_threads(1)
    tokens = torch.randint(12, (ROWS, WIDTH), generator=stream(0, "bench"))
    rows = tokens.tolist()
    assert torch.equal(torch.tensor(plain(rows)), digit_positions(tokens >= SIGN).long())
    whole, alone = [], []
    for _ in range(REPEATS):  # alternately
        fast = seconds(lambda: digit_positions(tokens >= SIGN))
        whole.append(seconds(lambda: torch.tensor(plain(rows))) / fast)
        alone.append(seconds(lambda: plain(rows)) / fast)
    low, middle, high = statistics.quantiles(whole)
    print_result(
        "places",
        ratio=round(middle, 1),
        spread=[round(low, 1), round(high, 1)],
        loop_alone=round(statistics.median(alone), 1),
        met=middle >= 20,
    )


if __name__ == "__main__":
    main()
