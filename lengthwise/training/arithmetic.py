"""What surrounds a training: threads, arithmetic, the clock, and signals that ask it to stop."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any, Literal

import torch

from lengthwise.base.errors import UsageError
from lengthwise.base.signals import STOPS, on_stop_signals
from lengthwise.base.types import Inputs
from lengthwise.models import device_of
from lengthwise.runners import Logits, LoopLogits, RowLoops, Runner, Selected

Matmul = Literal["fp32", "tf32", "bf16"]


def check_matmul(matmul: Matmul, device: torch.device) -> None:
    """Raise UsageError where a device has no such arithmetic."""
    if matmul == "tf32" and device.type != "cuda":
        raise UsageError(
            f"matmul: tf32 is an arithmetic of CUDA devices, and this is a {device.type}; use fp32 or bf16"
        )


class Bf16(Runner):
    """A runner with matrix products in bfloat16 (torch.autocast). Parameters, and the logits that it returns, stay in
    32 bits, so that losses are computed as ever."""

    def __init__(self, runner: Runner) -> None:
        super().__init__(runner.model)
        self.runner = runner

    def last(self, inputs: Inputs, loops: RowLoops, at: Selected, *, no_grad_loops: int = 0) -> Logits:
        with self._autocast():
            return self.runner.last(inputs, loops, at, no_grad_loops=no_grad_loops).float()

    def each(self, inputs: Inputs, loops: RowLoops, at: Selected) -> LoopLogits:
        steps = self.runner.each(inputs, loops, at)
        while True:
            with self._autocast():  # whoever uses the logits computes in 32 bits
                found = next(steps, None)
            if found is None:
                return
            k, rows, logits = found
            yield k, rows, logits.float()

    def _autocast(self) -> torch.autocast:
        return autocast(device_of(self.model), "bf16")


def autocast(device: torch.device, matmul: Matmul) -> torch.autocast:
    """A context of matrix products in bfloat16, if they are asked for."""
    # Without a cache: weights that loops without gradients have cast would carry none in later loops either.
    return torch.autocast(device.type, torch.bfloat16, enabled=matmul == "bf16", cache_enabled=False)


class Clock:
    """Measures wall and processor seconds since its creation, but for what it is told to ``forget``."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    @contextmanager
    def exclude(self) -> Iterator[None]:
        """Leaves out what passes inside."""
        wall, cpu = time.perf_counter(), time.process_time()
        yield
        self.wall += time.perf_counter() - wall
        self.cpu += time.process_time() - cpu

    def read(self) -> dict[str, float]:
        return {"wall_s": time.perf_counter() - self.wall, "cpu_s": time.process_time() - self.cpu}


@contextmanager
def computing(threads: int) -> Iterator[None]:
    """A context with this number of torch threads, products in all of their 32 bits, and denormal numbers flushed to 0:
    with tiny losses, they would slow down a CPU step several times. Afterwards all is as the user has set it. Raises
    UsageError if ``threads`` is below 1."""
    if threads < 1:
        raise UsageError(f"threads must be 1 or more, not {threads}")
    with _settings_of_process():
        before, flushed = torch.get_num_threads(), float(torch.tensor(1e-40) * 1) == 0  # torch has no getter for it
        torch.set_num_threads(threads)
        torch.set_flush_denormal(True)
        try:
            yield
        finally:
            torch.set_num_threads(before)
            torch.set_flush_denormal(flushed)


_LOCK = threading.Lock()
_INSIDE = Counter[int]()  # how many contexts each thread is in
_FOUND = ExitStack()  # puts back what the first thread has found


@contextmanager
def _settings_of_process() -> Iterator[None]:
    """A context with products in 32 bits. Torch has these settings, and the number of threads in threads to come, for
    the whole process: the first thread that computes changes them, and the last one restores them. Within one thread
    contexts nest."""
    thread = threading.get_ident()
    with _LOCK:
        nested = thread in _INSIDE
        if not _INSIDE:
            _FOUND.callback(torch.set_num_threads, torch.get_num_threads())
            _FOUND.enter_context(_set_tf32(tf32=False))
        _INSIDE[thread] += 1
    try:
        with _set_tf32(tf32=False) if nested else nullcontext():
            yield
    finally:
        with _LOCK:
            _INSIDE[thread] -= 1
            if not _INSIDE[thread]:
                del _INSIDE[thread]
            if not _INSIDE:
                _FOUND.close()


def step_precision(matmul: Matmul) -> AbstractContextManager[None]:
    """A context of a training step alone, with TF32 products if they are asked for: what is measured between steps is
    measured in 32 bits."""
    return _set_tf32(tf32=True) if matmul == "tf32" else nullcontext()


@contextmanager
def _set_tf32(*, tf32: bool) -> Iterator[None]:
    """A context with or without TF32, in cuDNN too, where torch takes it unasked. Afterwards all is as the user has set
    it, by torch's older settings or by those of each backend (torch 2.9), beside which the older may not be read."""
    cudnn = torch.backends.cudnn
    backends: tuple[Any, ...] = (
        torch.backends.cuda.matmul,
        getattr(torch.backends.mkldnn, "matmul", None),
        getattr(cudnn, "conv", None),
        getattr(cudnn, "rnn", None),
    )
    newer = [(backend, backend.fp32_precision) for backend in backends if hasattr(backend, "fp32_precision")]
    products, in_cudnn = _read_setting(torch.get_float32_matmul_precision), _read_setting(lambda: cudnn.allow_tf32)
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    cudnn.allow_tf32 = tf32
    try:
        yield
    finally:
        if products is not None:
            torch.set_float32_matmul_precision(products)
        if in_cudnn is not None:
            cudnn.allow_tf32 = in_cudnn
        for backend, value in newer:
            backend.fp32_precision = value


def _read_setting(setting: Callable[[], Any]) -> Any:
    """A setting; None where torch does not tell it, as the newer ones disagree."""
    try:
        return setting()
    except RuntimeError:
        return None


@contextmanager
def stop_signal() -> Iterator[Any]:
    """Yield a function that returns True once Ctrl-C, SIGTERM or SIGHUP has come, so that a step can finish first.

    A second signal acts at once. Outside the main thread, where Python cannot catch signals, it always returns False.
    """
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in STOPS}

    def note(number: int, frame: object) -> None:
        came.append(number)
        signal.signal(number, before[number])

    with on_stop_signals(note):
        yield lambda: bool(came)
