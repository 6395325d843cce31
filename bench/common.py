"""Helpers of all benchmarks. With ``--quick``, a script runs in about a second on tiny sizes, and its figures are
meaningless. A result is one line of JSON."""

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


def measure_seconds(function: Callable[..., object], *arguments: object) -> float:
    """Return a call's processor seconds, which other work on the machine changes little."""
    start = time.process_time()
    function(*arguments)
    return time.process_time() - start


def summarize_ratios(ratios: Sequence[float], digits: int = 2) -> dict[str, Any]:
    """Return the median, the smallest and the largest of the ratios."""
    found = [round(function(ratios), digits) for function in (statistics.median, min, max)]
    return {"ratio": found[0], "spread": found[1:]}


def read_synchronized_clock(device: torch.device) -> float:
    """Wait for the device; return the time in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def measure_step_ms(step: Callable[[], object], device: torch.device, count: int) -> float:
    """Return the mean milliseconds of a step, over ``count`` steps."""
    step()
    start = read_synchronized_clock(device)
    for _ in range(count):
        step()
    return 1000 * (read_synchronized_clock(device) - start) / count
