"""Launchers, which run ``lengthwise`` commands on one or several machines; the interface follows
``concurrent.futures``."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lengthwise.base.fields import Config
from lengthwise.base.process import build_child_environment

# -P: a file in the working folder cannot shadow a library
LENGTHWISE_COMMAND = (sys.executable, "-P", "-m", "lengthwise")


class Job(ABC):
    """A command submitted to an executor."""

    @abstractmethod
    def is_done(self) -> bool:
        """Return True once the command has ended."""

    @abstractmethod
    def read_failure(self) -> str:
        """Return why the ended command failed, in one line; an empty string if it succeeded."""


class Executor(ABC):
    """Runs ``lengthwise`` commands, which all share one folder of runs."""

    @abstractmethod
    def count_free_slots(self, running_count: int) -> int:
        """Return the number of commands that can be submitted now, while ``running_count`` commands run."""

    @abstractmethod
    def submit(self, commands: Sequence[Sequence[str]]) -> list[Job]:
        """Start ``lengthwise`` with each of these lists of arguments, and return the jobs."""

    @abstractmethod
    def shutdown(self, jobs: Sequence[Job]) -> None:
        """Stop the running jobs; each writes its checkpoint first."""


class Launcher(Config):
    """The settings from which an executor is built. Subclasses, one per kind of executor, are frozen dataclasses."""

    @abstractmethod
    def build_executor(self, jobs: int) -> Executor:
        """Return an executor. ``jobs`` limits the number of concurrent commands, where the launcher has no limit of its
        own. Raises UsageError if a required library is missing."""

    def check(self) -> None:  # default: no requirements
        """Raise UsageError, before anything is written, if a required library is missing."""

    @abstractmethod
    def count_parallel_runs(self, jobs: int) -> int:
        """Return the number of runs that the machines can train at once, 0 if unknown. Nothing is started."""


# This machine


@dataclass(frozen=True)
class Local(Launcher):
    """Launches runs as processes on this machine, which end together with the process that started them."""

    def build_executor(self, jobs: int) -> Executor:
        return _LocalExecutor(jobs)

    def count_parallel_runs(self, jobs: int) -> int:
        return min(jobs, os.cpu_count() or 1)


class _LocalExecutor(Executor):
    def __init__(self, jobs: int) -> None:
        self.jobs = jobs
        self.gpu_jobs: list[tuple[Job, int]] = []  # running processes and the number of their GPU, if there are several

    def count_free_slots(self, running_count: int) -> int:
        return self.jobs - running_count

    def submit(self, commands: Sequence[Sequence[str]]) -> list[Job]:
        jobs: list[Job] = []
        for command in ([*LENGTHWISE_COMMAND, *arguments] for arguments in commands):
            # On a machine with several GPUs, a command that names no GPU gets the least used one.
            self.gpu_jobs = [(job, gpu) for job, gpu in self.gpu_jobs if not job.is_done()]
            gpu = find_least_used_gpu([gpu for _, gpu in self.gpu_jobs])
            option = command.index("--device") + 1 if "--device" in command else 0
            if gpu is not None and option and command[option] in ("auto", "cuda"):
                command[option] = f"cuda:{gpu}"
                jobs.append(Process(command))
                self.gpu_jobs.append((jobs[-1], gpu))
            else:
                jobs.append(Process(command))
        return jobs

    def shutdown(self, jobs: Sequence[Job]) -> None:
        children = [job for job in jobs if isinstance(job, Process)]
        for child in children:
            child.process.send_signal(signal.SIGTERM)
        for child in children:
            child.process.wait()
            child.close()


class Process(Job):
    """A command that runs on this machine, and ends together with the process that started it."""

    def __init__(self, command: list[str]) -> None:
        self.log = tempfile.TemporaryFile()  # noqa: SIM115 (its standard error, closed when it has ended)
        # In a new session, Ctrl-C reaches the child only through shutdown, and only once. If this process is killed,
        # the child sees the end of its standard input.
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=self.log,
            env={**build_child_environment(), "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )

    def is_done(self) -> bool:
        return self.process.poll() is not None

    def read_failure(self) -> str:
        self.log.seek(0)
        text = self.log.read()
        self.close()
        return extract_failure_reason(text, self.process.returncode)

    def close(self) -> None:
        self.log.close()
        assert self.process.stdin is not None
        self.process.stdin.close()


def find_least_used_gpu(gpus_in_use: Sequence[int]) -> int | None:
    """Return the number of the GPU that occurs least often in ``gpus_in_use``; None unless there are several GPUs."""
    count = torch.cuda.device_count()
    return min(range(count), key=gpus_in_use.count) if count > 1 else None


def split_message(error: Exception) -> list[str]:
    """Return the lines of an error's message, or the name of its class if the message is empty."""
    return str(error).strip().splitlines() or [type(error).__name__]


def extract_failure_reason(stderr: bytes, status: int) -> str:
    """Return why a command failed: the last line of its standard error; "" if its exit status is 0."""
    text = stderr.decode(errors="replace").strip()
    reason = text.splitlines()[-1].removeprefix("lengthwise: ") if text else f"exit {status}"
    return reason if status else ""
