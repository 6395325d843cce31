"""What all benchmarks share: ``--quick`` tries a script in about a second, on sizes so small that its figures mean
nothing; and the result is one line of JSON."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

QUICK = "--quick" in sys.argv[1:]


def print_result(bench: str, **result: Any) -> None:
    """Print what was measured, on one line of standard output."""
    print(json.dumps({"bench": bench, **({"quick": True} if QUICK else {}), **result}))


def waited(device: torch.device) -> float:
    """Wait for the device; return the time in seconds."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def step_time(step: Callable[[], object], device: torch.device, times: int) -> float:
    """Return the mean milliseconds of a step, over ``times`` steps."""
    step()
    start = waited(device)
    for _ in range(times):
        step()
    return 1000 * (waited(device) - start) / times
