"""Faster runners, and the choice between them and the plain runner.

A runner supports a model only if it implements all parts of the model: listed types, no hooks, no overridden methods,
float32 or float64 (see ``support``). All other models use the plain runner. Values and gradients equal the plain
runner's up to rounding. ``LENGTHWISE_PLAIN=1`` in the environment, or ``with lengthwise.plain():``, turns all faster
runners off.

``RUNNERS`` are for a CPU; ``Compiled`` is for any device, on request.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from lengthwise.base.types import Inputs
from lengthwise.models import Model
from lengthwise.runners import Runner
from lengthwise.runners.cached import IncrementalDecoder, build_decoder
from lengthwise.runners.compiled import Compiled
from lengthwise.runners.cpu.recurrent import PackedLSTM, Wave
from lengthwise.runners.cpu.support import SpecializedRunner
from lengthwise.runners.cpu.transformer import PackedTransformer, Twice
from lengthwise.runners.loop_graphs import LoopGraphs
from lengthwise.runners.plain import Plain

RunnerType = type[SpecializedRunner]
RUNNERS: tuple[RunnerType, ...] = (PackedTransformer, Twice, Wave, PackedLSTM)
# One value per thread: a thread on the plain runner must not change the last bits of another thread's results.
_PLAIN_ONLY = ContextVar("off", default=os.environ.get("LENGTHWISE_PLAIN", "") not in ("", "0"))


@contextmanager
def plain() -> Iterator[None]:
    """Use the plain runner for every model that this thread runs in a ``with`` block. Threads started in the block are
    not affected, as with ``torch.no_grad``."""
    token = _PLAIN_ONLY.set(True)
    try:
        yield
    finally:
        _PLAIN_ONLY.reset(token)


def needs_plain_runner() -> bool:
    """Return whether all runners except the plain one are turned off."""
    return _PLAIN_ONLY.get()


def choose_runner(model: Model, candidates: Sequence[RunnerType] = RUNNERS) -> Runner:
    """Return the runner for a model: the first of ``candidates`` that supports the model's current state, else the
    plain runner. Choose again after setting hooks, and between passes with and without gradients."""
    if _PLAIN_ONLY.get():
        return Plain(model)
    plain = LoopGraphs if LoopGraphs.is_worthwhile(model) else Plain
    return next((candidate(model) for candidate in candidates if candidate.find_obstacle(model) is None), plain(model))


def describe_choice(model: Model, candidates: Sequence[RunnerType] = RUNNERS) -> str:
    """Return the name of the chosen runner; for the plain runner, also the reason why no faster one was chosen."""
    if _PLAIN_ONLY.get():
        return "Plain: faster runners are turned off"
    if type(chosen := choose_runner(model, candidates)) is not Plain:
        return type(chosen).__name__
    reasons = (candidate.find_obstacle(model) for candidate in candidates if isinstance(model, candidate.model_type))
    return f"Plain: {next(reasons, 'no faster runner supports this model')}"


def find_compile_obstacle(model: Model) -> str | None:
    """Return the reason why a model cannot be compiled; None if it can be compiled."""
    return "faster runners are turned off" if _PLAIN_ONLY.get() else Compiled.find_obstacle(model)


def choose_decoder(model: Model, inputs: Inputs) -> IncrementalDecoder | None:
    """Return a decoder with a cache; None if the model does not support one."""
    return None if _PLAIN_ONLY.get() else build_decoder(model, inputs)
