"""Process settings for training: threads, matrix products, time, and stop signals."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from typing import Any, Literal

import torch

from lengthwise.base.errors import UsageError
from lengthwise.base.process import STOP_SIGNALS, on_stop_signals

Matmul = Literal["fp32", "tf32", "bf16"]


def check_matmul(matmul: Matmul, device: torch.device) -> None:
    """Raise UsageError if the device does not support this precision of matrix products."""
    if matmul == "tf32" and device.type != "cuda":
        raise UsageError(f"matmul: tf32 needs a CUDA device, not {device.type}; use fp32 or bf16")


def autocast(device: torch.device, matmul: Matmul) -> torch.autocast:
    """Return a context manager that computes matrix products in bfloat16, if requested."""
    # No cache: a weight that is first cast in a loop without gradients would get none in later loops either.
    return torch.autocast(device.type, torch.bfloat16, enabled=matmul == "bf16", cache_enabled=False)


class Clock:
    """A stopwatch: wall and processor seconds since its creation."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def read(self) -> dict[str, float]:
        return {"wall_s": time.perf_counter() - self.wall, "cpu_s": time.process_time() - self.cpu}


@contextmanager
def computation_settings(threads: int) -> Iterator[None]:
    """Run a ``with`` block with ``threads`` torch threads, 32-bit matrix products, and denormal numbers flushed to 0,
    since denormal gradients of tiny losses make CPU steps several times slower. Restore the settings at the end.
    Contexts can be nested; if they overlap in several threads, the context that ends last decides which settings
    remain. Raises UsageError if ``threads`` is below 1."""
    if threads < 1:
        raise UsageError(f"threads must be 1 or more, not {threads}")
    with ExitStack() as restore:
        restore.enter_context(_set_tf32(tf32=False))
        flushed = float(torch.tensor(1e-40) * 1) == 0  # torch has no getter for this setting
        restore.callback(torch.set_flush_denormal, flushed)
        restore.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(threads)
        torch.set_flush_denormal(True)
        yield


def step_precision(matmul: Matmul) -> AbstractContextManager[None]:
    """Return a context manager for one training step, with TF32 products if requested. Measurements between steps use
    32-bit products."""
    return _set_tf32(tf32=True) if matmul == "tf32" else nullcontext()


@contextmanager
def _set_tf32(*, tf32: bool) -> Iterator[None]:
    """Turn TF32 on or off within a ``with`` block, also in cuDNN, where TF32 is on by default. Since torch 2.9 each
    backend has its own setting; once a user has set one, torch's older functions may fail."""
    cudnn = torch.backends.cudnn
    backends: tuple[Any, ...] = (
        torch.backends.cuda.matmul,
        getattr(torch.backends.mkldnn, "matmul", None),
        getattr(cudnn, "conv", None),
        getattr(cudnn, "rnn", None),
    )
    with ExitStack() as restore:  # in reverse order
        for backend in backends:
            if hasattr(backend, "fp32_precision"):
                restore.callback(setattr, backend, "fp32_precision", backend.fp32_precision)
        with suppress(RuntimeError):  # torch refuses if newer settings disagree
            restore.callback(setattr, cudnn, "allow_tf32", cudnn.allow_tf32)
        with suppress(RuntimeError):
            restore.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        cudnn.allow_tf32 = tf32
        yield


@contextmanager
def catch_stop_signals() -> Iterator[Any]:
    """Yield a function that returns True after Ctrl-C, SIGTERM or SIGHUP, so that a step can finish first.

    A second signal acts as usual. Outside the main thread, Python cannot catch signals, and the function returns False.
    """
    received: list[int] = []
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}

    def record(number: int, frame: object) -> None:
        received.append(number)
        signal.signal(number, before[number])

    with on_stop_signals(record):
        yield lambda: bool(received)
