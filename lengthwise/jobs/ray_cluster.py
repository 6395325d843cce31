"""Trainings as tasks of a Ray cluster, an extra. Runs are in a folder that all nodes share.

A task whose node or process is lost is tried again, elsewhere if need be, and goes on from the run's checkpoint.
"""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass, field
from typing import Any

from lengthwise.base.errors import UsageError
from lengthwise.base.extras import library
from lengthwise.base.ranges import Extra, NotNegative, OneLine, Size
from lengthwise.jobs.launchers import COMMAND, Executor, Job, Launcher, Process

MOST = 1000  # tasks that Ray is given at a time
LOOK = 1.0  # seconds between two looks at them
PATIENCE = 60.0  # seconds in which trainings that are cancelled write their checkpoints


@dataclass(frozen=True)
class Ray(Launcher):
    """Tasks of a Ray cluster."""

    address: OneLine = ""  # of a cluster; empty: RAY_ADDRESS, a cluster that runs here, or one for this command alone
    cpus: Size = 1  # per training
    gpus: NotNegative = 0.0  # per training; 0.25 lets four share one
    retries: Extra = 3  # times a training is tried again that was lost

    def check(self) -> None:
        _library()

    def executor(self, jobs: int) -> Executor:
        return _Ray(self)

    def at_once(self, jobs: int) -> int:
        if not (self.address or os.environ.get("RAY_ADDRESS")):
            return 0  # one for this command alone would have the cores of this machine
        ray = _join_cluster(self.address)
        cores = int(ray.cluster_resources().get("CPU", 0))
        ray.shutdown()
        return cores // self.cpus


def _library() -> Any:
    return library("ray", "ray", "Ray is not here")


def _join_cluster(address: str) -> Any:
    """Ray, with a cluster. Raises UsageError if it is not installed, or none answers."""
    ray = _library()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a cluster of this command's own tells nobody
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address or None, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UsageError(f"Ray: no cluster answers ({str(error).strip().splitlines()[0]})") from None
    finally:
        signal.signal(signal.SIGTERM, before)  # Ray has one of its own
    return ray


class _Ray(Executor):
    def __init__(self, engine: Ray) -> None:
        self.ray = _join_cluster(engine.address)
        needs = {"num_cpus": engine.cpus, "num_gpus": engine.gpus}
        again = {"max_retries": engine.retries, "retry_exceptions": [Lost]}
        self.train = self.ray.remote(**needs, **again)(training)
        self.tasks = _Tasks(self.ray)
        # A thread of Ray's prints what happens to nodes, where nothing but a command's result belongs.
        self.silent = ExitStack()
        self.silent.enter_context(redirect_stdout(io.StringIO()))

    def room(self, running: int) -> int:
        return MOST - running

    def submit(self, commands: Sequence[Sequence[str]]) -> list[Job]:
        given = [self.train.remote([*words, "--wait"], os.getcwd()) for words in commands]
        self.tasks.open.update(given)
        return [_Task(reference, self.tasks) for reference in given]

    def shutdown(self, running: Sequence[Job]) -> None:
        references = [job.reference for job in running if isinstance(job, _Task)]
        for reference in references:
            self.ray.cancel(reference)
        if references:
            self.ray.wait(references, num_returns=len(references), timeout=PATIENCE)
        self.ray.shutdown()
        self.silent.close()


class Lost(Exception):
    """A training was killed."""


def training(words: list[str], folder: str) -> str:
    """What a task does: it runs a command in a process that ends with it. Why the command failed; empty if it did not.
    Raises ``Lost`` where it was killed."""
    os.chdir(folder)
    process = Process.start([*COMMAND, *words])
    try:
        while not process.is_done():
            time.sleep(0.2)  # Ray cancels a task as Ctrl-C does, which waits for Python's next step
    except KeyboardInterrupt:
        process.process.terminate()
        process.process.wait()
        raise
    if (status := process.process.returncode) < 0:
        process.close()
        raise Lost(f"killed by signal {-status}")
    return process.failure()


@dataclass
class _Tasks:
    """The tasks that Ray was given, looked at now and then, all at once."""

    ray: Any
    open: set[Any] = field(default_factory=set)
    looked: float = 0.0

    def has(self, reference: Any) -> bool:
        """Does a task still wait or run?"""
        if self.open and time.monotonic() - self.looked >= LOOK:
            _, left = self.ray.wait([*self.open], num_returns=len(self.open), timeout=0)
            self.open, self.looked = {*left}, time.monotonic()
        return reference in self.open


@dataclass
class _Task(Job):
    reference: Any  # Ray's, to what the task returns
    tasks: _Tasks

    def is_done(self) -> bool:
        return not self.tasks.has(self.reference)

    def failure(self) -> str:
        try:
            return self.tasks.ray.get(self.reference)
        except Exception as error:  # Ray's, or what the task has raised
            return f"Ray: {str(error).strip().splitlines()[-1]}"
