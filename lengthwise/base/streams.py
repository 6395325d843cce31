"""Standard streams that tolerate limited encodings, full disks and closed pipes."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

_RESULTS: list[Any] = []  # standard outputs reserved for results, innermost last


@contextlib.contextmanager
def reserve_output() -> Iterator[None]:
    """Reserve standard output for ``result_stream()`` in a ``with`` block; other prints go to standard error."""
    _RESULTS.append(sys.stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _RESULTS.pop()


def result_stream() -> Any:  # some object with the methods of `TextIO`
    """Return the stream for results."""
    return _RESULTS[-1] if _RESULTS else sys.stdout


_FILTERS = threading.RLock()


@contextlib.contextmanager
def suppress_warnings() -> Iterator[None]:
    """Suppress Python's warnings during a ``with`` block. Filters of warnings are global to the process, so one thread
    at a time changes and restores them."""
    with _FILTERS, warnings.catch_warnings(action="ignore"):
        yield


def replace_unencodable() -> None:
    """Replace characters that a standard stream cannot encode: an ASCII terminal shows ``?`` for ``→``."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def discard_output() -> None:
    """Discard unwritten output, whose reader has closed or whose disk is full, so that Python does not flush it."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
