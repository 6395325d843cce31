"""Trains several runs at once, each in its own process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Self

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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for child in self.running:
            child.process.send_signal(signal.SIGTERM)
        for child in self.running:
            child.process.wait()
            child.log.close()
        self.running = []

    def poll(self) -> bool:
        """Collect ended processes and start waiting ones; False when all are done. Raises UsageError with its last line
        of error output if a run failed."""
        ended = [child for child in self.running if child.process.poll() is not None]
        self.running = [child for child in self.running if child not in ended]
        for child in ended:
            reason = child.last_line()
            child.log.close()
            if child.process.returncode:
                raise UsageError(f"{child.run.folder}: {reason.removeprefix('lengthwise: ')}")
        while self.waiting and len(self.running) < self.jobs:
            self.running.append(self._start(self.waiting.pop(0)))
        return bool(self.running)

    def _start(self, run: Run) -> _Child:
        command = [sys.executable, "-m", "lengthwise", "train", str(run.folder), "--quiet", *self.arguments(run)]
        log = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the process has ended)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        # In a new session, Ctrl-C reaches a child only through __exit__, and only once.
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=log, env=environment, start_new_session=True
        )
        return _Child(run, process, log)
