"""CUDA graphs (a GPU's operations, captured once and replayed), and the choice of the faster attention kernel.

If rows are short, attention is computed by two batched matrix products, else by torch's fused kernel. The fused kernel
works on tiles of 128 positions, which short rows leave mostly empty: at 22 positions, two products took a quarter of
the kernel's time on an H200. The largest row width at which products are faster is measured once for each GPU, number
type and head width, and kept in ``LENGTHWISE_CACHE`` (by default ``~/.cache/lengthwise``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from lengthwise.base.errors import UsageError
from lengthwise.base.files import read_json_object, write_json
from lengthwise.nn.attention import SoftmaxAttention

DEFAULT_PRODUCT_WIDTH = 16  # fixed where no fused kernel is timed, e.g. on a CPU
MEASURED_WIDTHS = (16, 24, 32, 48, 64, 96, 128)  # row widths at which both kernels are timed
FUSED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # number types that fused kernels support
ROWS_TIMES_HEADS = 4096  # rows times heads when a kernel is timed


@contextmanager
def use_side_stream() -> Iterator[None]:
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
    # With "thread_local", other threads, such as the one that draws batches, may use CUDA during the capture.
    with torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"):
        function()
    return graph.replay


@contextmanager
def choose_attention(device: torch.device, dtype: torch.dtype, positions: int, head_width: int) -> Iterator[None]:
    """Let torch compute attention over ``positions`` positions with the faster kernel during a ``with`` block."""
    with attend_by_products() if positions <= find_max_product_width(device, dtype, head_width) else nullcontext():
        yield


def find_head_width(model: nn.Module) -> int:
    """Return the head width of the model's attention; 64 if it is unknown."""
    heads = (part.out.in_features // part.heads for part in model.modules() if isinstance(part, SoftmaxAttention))
    return next(heads, 64)


@contextmanager
def attend_by_products() -> Iterator[None]:
    """Let torch compute attention by two batched products during a ``with`` block."""
    cuda = torch.backends.cuda
    allowed = cuda.fp16_bf16_reduction_math_sdp_allowed()
    cuda.allow_fp16_bf16_reduction_math_sdp(True)  # otherwise queries, keys and values in 16 bits are widened first
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        cuda.allow_fp16_bf16_reduction_math_sdp(allowed)


@cache
def find_max_product_width(device: torch.device, dtype: torch.dtype, head_width: int) -> int:
    """Return the largest row width at which two products are faster than the fused kernel."""
    if device.type != "cuda" or dtype not in FUSED_DTYPES:
        return DEFAULT_PRODUCT_WIDTH
    name = f"{torch.cuda.get_device_name(device)}, torch {torch.__version__}, {dtype}, {head_width}"
    path = Path(os.environ.get("LENGTHWISE_CACHE") or Path.home() / ".cache" / "lengthwise") / "attention.json"
    widths: dict[str, Any] = {}
    with suppress(UsageError):
        widths = read_json_object(path)
    if type(widths.get(name)) is not int:
        widths[name] = 0
        for positions in MEASURED_WIDTHS:
            shape = ROWS_TIMES_HEADS // 16, 16, positions, head_width
            kernels = partial(sdpa_kernel, [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION])
            fused = _measure_attention_ms(device, dtype, shape, kernels)
            if _measure_attention_ms(device, dtype, shape, attend_by_products) > fused:
                break
            widths[name] = positions
        with suppress(UsageError):  # if the folder is not writable, the width is measured again next time
            write_json(path, widths)
    return widths[name]


def _measure_attention_ms(
    device: torch.device,
    dtype: torch.dtype,
    shape: tuple[int, ...],
    use_kernel: Callable[[], AbstractContextManager[Any]],
) -> float:
    """Return the milliseconds of 20 forward and backward passes of attention, replayed as a CUDA graph."""
    query, key, value = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))

    def run_passes(count: int) -> None:
        with use_kernel():
            for _ in range(count):
                output = F.scaled_dot_product_attention(query, key, value, is_causal=True)
                torch.autograd.grad(output, (query, key, value), output.detach())

    with use_side_stream():
        run_passes(3)
    replay = capture(partial(run_passes, 20))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    replay()
    start.record()
    replay()
    end.record()
    end.synchronize()
    return start.elapsed_time(end)
