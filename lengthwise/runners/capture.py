"""CUDA graphs: a GPU's operations, captured once and replayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def side_stream() -> Iterator[None]:
    """Run a ``with`` block on another CUDA stream, as required before a capture; both streams wait for each other."""
    current, side = torch.cuda.current_stream(), torch.cuda.Stream()
    side.wait_stream(current)
    try:
        with torch.cuda.stream(side):
            yield
    finally:
        current.wait_stream(side)


def capture(function: Callable[[], None], pool: Any = None) -> Callable[[], None]:
    """Capture the GPU operations of a function, and return a function that repeats them."""
    graph = torch.cuda.CUDAGraph()
    # Meanwhile other threads, such as the one that draws batches, may continue.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        function()
    return graph.replay
