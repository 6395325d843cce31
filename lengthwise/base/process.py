"""Standard streams that tolerate limited encodings, full disks and closed pipes; SIGTERM and SIGHUP treated as
Ctrl-C; child processes that end with their parent."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

_RESULT_STREAMS: list[Any] = []  # standard outputs reserved for results, innermost last


@contextlib.contextmanager
def reserve_output() -> Iterator[None]:
    """Reserve standard output for ``get_result_stream()`` in a ``with`` block; other prints go to standard error."""
    _RESULT_STREAMS.append(sys.stdout)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        _RESULT_STREAMS.pop()


def get_result_stream() -> Any:  # an object with the methods of `TextIO`
    """Return the stream to which results are printed."""
    return _RESULT_STREAMS[-1] if _RESULT_STREAMS else sys.stdout


def replace_unencodable_characters() -> None:
    """Replace characters that a standard stream cannot encode: an ASCII terminal shows ``?`` for ``→``."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]


def discard_output() -> None:
    """Discard output that cannot be written (reader closed, or disk full), so that Python does not flush it."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


STOP_SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))

_CHILD_VARIABLE = "LENGTHWISE_LIFELINE"


def build_child_environment() -> dict[str, str]:
    """Return the environment variables of a child process that ends when this process ends, even by SIGKILL. The
    child's standard input must be a pipe from this process."""
    return {**os.environ, _CHILD_VARIABLE: "1"}


def exit_on_stop_signals() -> contextlib.AbstractContextManager[None]:
    """Exit at once with status 130 at a stop signal in a ``with`` block, e.g. while torch is imported."""
    return on_stop_signals(_exit)


@contextlib.contextmanager
def on_stop_signals(action: Callable[[int, Any], object]) -> Iterator[None]:
    """Call ``action`` when a stop signal arrives during a ``with`` block, if this thread may catch signals."""
    handlers = {number: signal.getsignal(number) for number in STOP_SIGNALS if _may_catch_signal(number)}
    try:
        for number in handlers:
            signal.signal(number, action)
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def install_handlers() -> None:
    """Treat stop signals as Ctrl-C and end with the parent if it requested that (``build_child_environment``)."""
    for number in STOP_SIGNALS:
        if _may_catch_signal(number):
            signal.signal(number, signal.default_int_handler)

    def end_with_parent() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    if os.environ.pop(_CHILD_VARIABLE, None):
        threading.Thread(target=end_with_parent, daemon=True).start()


def _may_catch_signal(signal_number: int) -> bool:
    """Return whether this thread may catch a signal. SIGHUP stays ignored if ``nohup`` has set it to be ignored."""
    ignored = signal_number == getattr(signal, "SIGHUP", None) and signal.getsignal(signal_number) == signal.SIG_IGN
    return threading.current_thread() is threading.main_thread() and not ignored


def _exit(signal_number: int, frame: object) -> NoReturn:
    os.write(2, b"lengthwise: interrupted before any work\n")
    os._exit(130)
