"""Faster runners, each for exactly what it knows, and the one place that chooses between them and the plain one.

``LENGTHWISE_PLAIN=1`` in the environment, or ``with lengthwise.plain():``, turns all of them off.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from lengthwise.base.types import Inputs
from lengthwise.depth import Runner
from lengthwise.depth.plain import Plain
from lengthwise.fast.cached import Reader, reader_of
from lengthwise.fast.lstm import PackedLSTM
from lengthwise.fast.retran import Wave
from lengthwise.fast.transformer import PackedTransformer
from lengthwise.models import Model

RUNNERS = (PackedTransformer, Wave, PackedLSTM)
_OFF = [os.environ.get("LENGTHWISE_PLAIN", "") not in ("", "0")]


@contextmanager
def plain() -> Iterator[None]:
    """Within, every model is run plainly."""
    _OFF.append(True)
    try:
        yield
    finally:
        _OFF.pop()


def choose(model: Model) -> Runner:
    """The runner for a model as it is now: hooks that are set later are seen by the next call."""
    return next((kind(model) for kind in RUNNERS if not _OFF[-1] and kind.declines(model) is None), Plain(model))


def described(model: Model) -> str:
    """Which runner is chosen; of the plain one, why not a faster one."""
    if _OFF[-1]:
        return "Plain: others are turned off"
    reasons = {kind: kind.declines(model) for kind in RUNNERS}
    chosen = next((kind.__name__ for kind, reason in reasons.items() if reason is None), None)
    meant = (reason for kind, reason in reasons.items() if kind.meant(model))
    return chosen or f"Plain: {next(meant, 'no faster one knows such a model')}"


def reader(model: Model, inputs: Inputs) -> Reader | None:
    """A reader of rows piece by piece, with a key–value cache; None where there is none for such a model."""
    return None if _OFF[-1] else reader_of(model, inputs)
