"""Standard streams that are not as one would wish: another encoding, a full disk, a reader that has gone."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

_RESULTS: list[Any] = []  # standard output, where it is kept for results


@contextlib.contextmanager
def only_results() -> Iterator[None]:
    """A context in which standard output holds what is written to ``results()`` alone: whatever else is printed, as a
    user's own module may, goes to standard error."""
    _RESULTS.append(sys.stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _RESULTS.pop()


def results() -> Any:  # of `TextIO`'s methods, whatever stands for standard output
    """Where results are written."""
    return _RESULTS[-1] if _RESULTS else sys.stdout


_FILTERS = threading.RLock()


@contextlib.contextmanager
def suppress_warnings() -> Iterator[None]:
    """A context without Python's warnings. Their filters belong to the process: one thread at a time changes them, or
    none would find them as they were."""
    with _FILTERS, warnings.catch_warnings(action="ignore"):
        yield


def tolerate_encodings() -> None:
    """Let standard streams replace what their encoding lacks: an ASCII terminal shows ``?`` for ``→``."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def discard_output() -> None:
    """Send what Python would still flush to nowhere: its reader has gone, or its disk is full."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
