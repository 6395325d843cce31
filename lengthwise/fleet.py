"""Several trainings at once, a process each, followed through their run folders."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO, Self

from lengthwise.run import Run
from lengthwise.types import UsageError


class Fleet:
    """Runs trained and evaluated by ``lengthwise train``, at most ``jobs`` at a time; runs that are done are skipped.

    Used as a context: leaving it asks whatever is still running to write its checkpoint and stop.
    """

    def __init__(self, runs: Sequence[Run], arguments: Sequence[str] = (), *, jobs: int = 2) -> None:
        if jobs < 1:
            raise UsageError(f"jobs must be 1 or more, not {jobs}")
        self.waiting: list[Run] = list(runs)
        self.arguments = list(arguments)
        self.jobs = jobs
        self.running: list[tuple[Run, subprocess.Popen[bytes], IO[bytes]]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for _, process, _ in self.running:
            process.send_signal(signal.SIGTERM)
        for _, process, log in self.running:
            process.wait()
            log.close()
        self.running = []

    def poll(self) -> bool:
        """Take note of what has ended, start what waits; False once all is done. UsageError where a run failed, with
        the reason it gave."""
        for entry in [entry for entry in self.running if entry[1].poll() is not None]:  # a copy: entries are removed
            self.running.remove(entry)
            run, process, log = entry
            log.seek(0)
            said = log.read().decode(errors="replace").strip()
            log.close()
            if process.returncode:
                raise UsageError(f"{run.folder}: {said.splitlines()[-1] if said else f'exit {process.returncode}'}")
        while self.waiting and len(self.running) < self.jobs:
            run = self.waiting.pop(0)
            command = [sys.executable, "-m", "lengthwise", "train", str(run.folder), "--quiet", *self.arguments]
            log = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the process has ended)
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            # A session of its own: Ctrl-C reaches the children through __exit__, once each.
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=log, env=environment, start_new_session=True
            )
            self.running.append((run, process, log))
        return bool(self.running)
