"""Where trainings run: the seam between a fleet and the machines, shaped like ``concurrent.futures``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

import torch

from lengthwise.base.fields import Part
from lengthwise.base.signals import child_environment

COMMAND = (sys.executable, "-P", "-m", "lengthwise")  # -P: nothing in the working folder is imported for a library


class Job(ABC):
    """A command that an executor was given."""

    @abstractmethod
    def is_done(self) -> bool:
        """Has it come to an end?"""

    @abstractmethod
    def failure(self) -> str:
        """Once it is done: why it failed, in a line; empty if it did not."""


class Executor(ABC):
    """Runs ``lengthwise`` commands. All see the same folder of runs."""

    @abstractmethod
    def room(self, running: int) -> int:
        """How many further commands it takes now, while so many run."""

    @abstractmethod
    def submit(self, commands: Sequence[Sequence[str]]) -> list[Job]:
        """Run ``lengthwise`` with each of these lists of words."""

    @abstractmethod
    def shutdown(self, running: Sequence[Job]) -> None:
        """Stop what still runs, after it has written its checkpoint."""


class Launcher(Part):
    """A kind of executor, with its settings. Subclasses are frozen dataclasses."""

    @abstractmethod
    def executor(self, jobs: int) -> Executor:
        """An executor of at most so many commands at a time, where it is for the user to say. UsageError if what it
        needs is not installed."""

    def check(self) -> None:  # what is here needs nothing
        """UsageError if what it needs is not installed: asked before anything is written."""

    @abstractmethod
    def at_once(self, jobs: int) -> int:
        """How many trainings its machines can run at a time; 0 if there are none. Nothing is begun."""


# This machine


@dataclass(frozen=True)
class Local(Launcher):
    """Processes of this machine, which end with the one that started them."""

    def executor(self, jobs: int) -> Executor:
        return _Local(jobs)

    def at_once(self, jobs: int) -> int:
        return min(jobs, os.cpu_count() or 1)


class _Local(Executor):
    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.placed: list[tuple[Job, int]] = []  # where there are several GPUs: processes, and the GPU of each

    def room(self, running: int) -> int:
        return self.jobs - running

    def submit(self, commands: Sequence[Sequence[str]]) -> list[Job]:
        return [self._start([*COMMAND, *words]) for words in commands]

    def _start(self, command: list[str]) -> Job:
        """Start a command. Of several GPUs it gets the one that fewest of those running have, unless it names one."""
        self.placed = [(job, gpu) for job, gpu in self.placed if not job.is_done()]
        gpu = free_gpu([gpu for _, gpu in self.placed])
        asked = command.index("--device") + 1 if "--device" in command else 0
        if gpu is None or not asked or command[asked] not in ("auto", "cuda"):
            return Process.start(command)
        job = Process.start([*command[:asked], f"cuda:{gpu}", *command[asked + 1 :]])
        self.placed.append((job, gpu))
        return job

    def shutdown(self, running: Sequence[Job]) -> None:
        children = [job for job in running if isinstance(job, Process)]
        for child in children:
            child.process.send_signal(signal.SIGTERM)
        for child in children:
            child.process.wait()
            child.close()


@dataclass(frozen=True)
class Process(Job):
    """A process of this machine, which ends with this one."""

    process: subprocess.Popen[bytes]
    log: IO[bytes]  # its standard error

    @staticmethod
    def start(command: list[str]) -> Process:
        log = tempfile.TemporaryFile()  # noqa: SIM115 (closed when the process has ended)
        # In a new session, Ctrl-C reaches a child only through shutdown, and only once; if this process is killed, the
        # child's standard input ends.
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env={**child_environment(), "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        return Process(process, log)

    def is_done(self) -> bool:
        return self.process.poll() is not None

    def failure(self) -> str:
        self.log.seek(0)
        text = self.log.read()
        self.close()
        return last_line(text, self.process.returncode)

    def close(self) -> None:
        self.log.close()
        assert self.process.stdin is not None
        self.process.stdin.close()


def free_gpu(taken: Sequence[int]) -> int | None:
    """The number of the GPU that stands fewest times in ``taken``; None unless there are several."""
    count = torch.cuda.device_count()
    return min(range(count), key=taken.count) if count > 1 else None


def last_line(errors: bytes, status: int) -> str:
    """Why a command failed, as its standard error says; empty if its exit status is 0."""
    text = errors.decode(errors="replace").strip()
    said = text.splitlines()[-1].removeprefix("lengthwise: ") if text else f"exit {status}"
    return said if status else ""
