"""Processes of ``lengthwise``: new interpreters, or forks of this process, which has imported torch already.

A fork starts in milliseconds, an interpreter in seconds. A fork has its own session, files and memory, and ends like
any process. Some cases start a new interpreter, to test what happens while Python and torch are imported.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

HANG_SECONDS = 120.0  # seconds after which a process counts as hanging
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ROOT = Path(__file__).parents[2]


class Child:
    """A process in its own session, which writes its output to files in the parent of its working folder."""

    def __init__(self, pid: int, output: Path) -> None:
        self.pid, self.output, self.code = pid, output, None
        self._ended = os.pidfd_open(pid)

    def kill(self) -> None:
        """Kill the process, unless it has ended, and wait for its end."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def poll(self) -> int | None:
        """Return the exit status, or minus the number of the signal that ended the process; None while the process
        runs."""
        return self.wait(0)

    def wait(self, seconds: float = HANG_SECONDS) -> int | None:
        """Return the status as ``poll`` does, after waiting at most this many seconds."""
        if self.code is None and select.select([self._ended], [], [], seconds)[0]:
            _, status = os.waitpid(self.pid, 0)
            self.code = os.waitstatus_to_exitcode(status)
            os.close(self._ended)
        return self.code

    @property
    def errors(self) -> str:
        """The text that the process wrote to standard error."""
        return self.output.with_suffix(".err").read_text(errors="replace")


def start_interpreter(arguments: Sequence[object], folder: Path) -> Child:
    """Start a new interpreter that works in ``folder``."""
    output = _new_output_path(folder)
    with output.with_suffix(".out").open("wb") as out, output.with_suffix(".err").open("wb") as errors:
        streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": errors}
        command = [sys.executable, "-P", "-m", "lengthwise", *map(str, arguments)]
        process = subprocess.Popen(
            command, cwd=folder, env=_build_environment(), start_new_session=True, preexec_fn=_reset_signals, **streams
        )
    process.returncode = 0  # ``Child`` waits for the process
    return Child(process.pid, output)


def fork(arguments: Sequence[object], folder: Path, prepare: Callable[[], None] | None = None) -> Child:
    """Fork this process to run a command in ``folder``; ``prepare`` is called first in the fork, e.g. to set limits.
    The command's own children are forks too."""

    def start() -> None:
        os.chdir(folder)
        os.environ.update(_build_environment())
        out, errors = (os.open(output.with_suffix(end), os.O_WRONLY | os.O_CREAT) for end in (".out", ".err"))
        for target, source in ((0, os.open(os.devnull, os.O_RDONLY)), (1, out), (2, errors)):
            os.dup2(source, target)
        _set_up_fork(arguments)
        (prepare or (lambda: None))()

    for verb in ("train", "reproduce", "ask"):  # imported here, so that forks find them loaded
        importlib.import_module(f"lengthwise.cli.{verb}")
    output = _new_output_path(folder)
    return Child(_fork_and_run(start, arguments), output)


def _new_output_path(folder: Path) -> Path:
    """Return the path, without extension, for the output of the next process that works in ``folder``."""
    return folder.parent / f"output-{len([*folder.parent.glob('output-*.out')])}-{time.monotonic_ns()}"


def _build_environment() -> dict[str, str]:
    own = {"LENGTHWISE_RUNS": "runs", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "COLUMNS": "80"}
    return {**os.environ, **own}


def _reset_signals() -> None:
    """Restore the default signal handling, which nohup and others may have changed."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)


def _fork_and_run(start: Callable[[], None], arguments: Sequence[object]) -> int:
    """Fork a process that calls ``start``, then runs the command, and never returns here."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    number = os.fork()
    if number:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return number
    code = 70
    try:
        os.setsid()
        _reset_signals()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        start()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        code = _call_main(arguments)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def _call_main(arguments: Sequence[object]) -> int:
    """Run the command; return the exit status that an interpreter would have."""
    from lengthwise.cli import entry

    try:
        entry.main([*map(str, arguments)])
    except SystemExit as ended:
        sys.stdout.flush()
        sys.stderr.flush()
        return ended.code if isinstance(ended.code, int) else 0
    raise AssertionError("main returned")


def _set_up_fork(arguments: Sequence[object]) -> None:
    """Set up a fork for a command: open the standard streams anew, close all other files, and make ``JobPool`` start
    its children as forks."""
    from lengthwise.jobs import launchers

    os.closerange(3, 1024)
    sys.argv = ["lengthwise", *map(str, arguments)]
    sys.stdin, sys.stdout, sys.stderr = (open(number, "rww"[number], closefd=False) for number in range(3))  # noqa: SIM115
    launchers.subprocess = SimpleNamespace(Popen=_ForkedPopen, PIPE=subprocess.PIPE, DEVNULL=subprocess.DEVNULL)


class _ForkedPopen:
    """A replacement for ``Popen``, with the methods that ``JobPool`` calls, that runs the command in a fork."""

    def __init__(self, command: Sequence[str], *, env: dict[str, str], stderr: Any, **_: Any) -> None:
        reads, writes = os.pipe()
        arguments = command[command.index("lengthwise") + 1 :]

        def start() -> None:
            os.environ.update(env)
            nothing = os.open(os.devnull, os.O_WRONLY)
            for target, source in ((0, reads), (1, nothing), (2, stderr.fileno())):
                os.dup2(source, target)
            _set_up_fork(arguments)

        self.pid, self.returncode = _fork_and_run(start, arguments), None
        os.close(reads)
        self.stdin = open(writes, "wb", buffering=0)  # noqa: SIM115

    def poll(self, options: int = os.WNOHANG) -> int | None:
        if self.returncode is None:
            number, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if number else None
        return self.returncode

    def wait(self) -> int | None:
        return self.poll(0)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


# Running processes


def list_children(pid: int) -> list[int]:
    """Return the running processes that a process has started."""
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [child for child in map(int, text.split()) if _is_running(child)]


def find_workers(folder: Path) -> Iterator[int]:
    """Yield every process that works in this folder."""
    for link in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if os.readlink(link) == str(folder) and _is_running(int(link.parent.name)):
                yield int(link.parent.name)
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue


def _is_running(pid: int) -> bool:
    """Return whether a process runs and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill_leftovers(folder: Path, seconds: float = HANG_SECONDS) -> list[int]:
    """Kill the processes that still work in ``folder`` after this many seconds, and return their process ids."""
    deadline = time.monotonic() + seconds
    while (left := [*find_workers(folder)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return left
