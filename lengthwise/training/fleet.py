"""Trains several runs at once, each in its own process."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self

from lengthwise.base.errors import clean
from lengthwise.base.lifeline import tied
from lengthwise.base.types import UsageError
from lengthwise.run import Run


@dataclass(frozen=True)
class _Child:
    run: Run
    process: subprocess.Popen[bytes]
    log: IO[bytes]  # its standard error

    def last_line(self) -> str:
        self.log.seek(0)
        text = self.log.read().decode(errors="replace").strip()
        return text.splitlines()[-1] if text else f"exit {self.process.returncode}"

    def close(self) -> None:
        self.log.close()
        assert self.process.stdin is not None
        self.process.stdin.close()


class Fleet:
    """Runs ``lengthwise train`` for several runs, at most ``jobs`` at a time, with the options that ``arguments``
    returns for each run. Finished work is not repeated.

    A context manager: leaving it makes the remaining processes write their checkpoints and stop.
    """

    def __init__(self, runs: Sequence[Run], arguments: Callable[[Run], Sequence[str]], *, jobs: int = 2) -> None:
        if jobs < 1:
            raise UsageError(f"jobs must be 1 or more, not {jobs}")
        self.waiting = list(runs)
        self.arguments = arguments
        self.jobs = jobs
        self.running: list[_Child] = []
        self.failed: dict[Path, str] = {}  # the folders of runs that failed: the last line of their error output

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.running:
            child.process.send_signal(signal.SIGTERM)
        for child in self.running:
            child.process.wait()
            child.close()
        self.running = []

    def check(self) -> None:
        """UsageError, in one line, if a run failed."""
        if self.failed:
            reasons = "; ".join(f"{folder}: {clean(reason)}" for folder, reason in self.failed.items())
            raise UsageError(reasons if len(self.failed) == 1 else f"{len(self.failed)} runs failed: {reasons}")

    def poll(self) -> bool:
        """Collect ended processes and start waiting ones; False when all are done. A run that failed stops no other:
        why is kept in ``failed``, and in its folder."""
        ended = [child for child in self.running if child.process.poll() is not None]
        self.running = [child for child in self.running if child not in ended]
        for child in ended:
            if child.process.returncode:
                reason = child.last_line().removeprefix("lengthwise: ")
                self.failed[child.run.folder] = reason
                _keep(child.run, reason)
            child.close()
        while self.waiting and len(self.running) < self.jobs:
            self.running.append(self._start(self.waiting.pop(0)))
        return bool(self.running)

    def _start(self, run: Run) -> _Child:
        run.forgive()
        # -P: nothing in the working folder is imported in place of a library.
        command = [sys.executable, "-P", "-m", "lengthwise", "train", str(run.folder), "--quiet", *self.arguments(run)]
        log = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the process has ended)
        # In a new session, Ctrl-C reaches a child only through __exit__, and only once; if this process is killed, the
        # child's standard input ends.
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={**tied(), "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        return _Child(run, process, log)


def _keep(run: Run, reason: str) -> None:
    """Keep why a run failed, unless it has said so itself; on a full disk that is only said."""
    with suppress(UsageError):
        if not run.diverged:
            run.fail(reason)
