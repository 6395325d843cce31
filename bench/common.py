"""Helpers of all benchmarks. ``--quick`` tries a script in about a second, on sizes so small that its figures mean
nothing. A result is one line of JSON."""

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

QUICK = "--quick" in sys.argv[1:]


def print_result(bench: str, **result: Any) -> None:
    """Print a benchmark's result, as one line of JSON on standard output."""
    print(json.dumps({"bench": bench, **({"quick": True} if QUICK else {}), **result}))


def seconds(work: Callable[..., object], *given: object) -> float:
    """Return the processor seconds of a call, on which other work on the machine has little effect."""
    start = time.process_time()
    work(*given)
    return time.process_time() - start


def spread(ratios: Sequence[float], digits: int = 2) -> dict[str, Any]:
    """Return the median of ratios, and the smallest and largest."""
    found = [round(of(ratios), digits) for of in (statistics.median, min, max)]
    return {"ratio": found[0], "spread": found[1:]}


def synchronized_time(device: torch.device) -> float:
    """Wait for the device; return the time in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def step_time(step: Callable[[], object], device: torch.device, times: int) -> float:
    """Return the mean milliseconds of a step, over ``times`` steps."""
    step()
    start = synchronized_time(device)
    for _ in range(times):
        step()
    return 1000 * (synchronized_time(device) - start) / times
