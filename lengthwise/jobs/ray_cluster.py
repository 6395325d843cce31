"""Train on a Ray cluster (an optional extra), one task per run. The cluster's nodes share the folder of runs. Ray
retries a task that lost its node or process; the task then resumes from the run's checkpoint."""

from __future__ import annotations

import io
import os
import signal
import time
from collections.abc import Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from typing import Any

from lengthwise.base.errors import UsageError
from lengthwise.base.extras import import_library
from lengthwise.base.ranges import Amount, NotNegative, OneLine, Size
from lengthwise.jobs.launchers import LENGTHWISE_COMMAND, Executor, Job, Launcher, Process, split_message

POLL_SECONDS = 1.0  # seconds between polls of the tasks


@dataclass(frozen=True)
class Ray(Launcher):
    """Launches each run as a task on a Ray cluster."""

    address: OneLine = ""  # a cluster; empty: RAY_ADDRESS, a cluster on this machine, or a new one for this command
    cpus: Size = 1  # CPUs per run
    gpus: NotNegative = 0.0  # GPUs per run; 0.25 lets four share one
    retries: Amount = 3  # number of retries of a lost training

    def check(self) -> None:
        _import_ray()

    def build_executor(self, jobs: int) -> Executor:
        return _RayExecutor(self)

    def count_parallel_runs(self, jobs: int) -> int:
        if not (self.address or os.environ.get("RAY_ADDRESS")):
            return 0  # a new cluster would only have this machine's cores
        ray = _join_cluster(self.address)
        cores = int(ray.cluster_resources().get("CPU", 0))
        ray.shutdown()
        return cores // self.cpus


def _import_ray() -> Any:
    return import_library("ray", "ray", "Ray is not installed")


def _join_cluster(address: str) -> Any:
    """Connect to a cluster and return Ray. Raises UsageError if Ray is not installed, or no cluster answers."""
    ray = _import_ray()
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no telemetry from a cluster that this command starts
    handler = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address or None, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UsageError(f"Ray: no cluster answers ({split_message(error)[0]}); check its address") from None
    finally:
        signal.signal(signal.SIGTERM, handler)  # Ray installs its own handler
    return ray


class _RayExecutor(Executor):
    def __init__(self, launcher: Ray) -> None:
        self.ray = _join_cluster(launcher.address)
        needs = {"num_cpus": launcher.cpus, "num_gpus": launcher.gpus}
        retry_options = {"max_retries": launcher.retries, "retry_exceptions": [TrainingKilled]}
        self.train = self.ray.remote(**needs, **retry_options)(run_training)
        self.unfinished: set[Any] = set()  # the submitted tasks, polled together at intervals
        self.last_poll = 0.0
        # A thread of Ray prints node events to standard output, which is reserved for the command's result.
        self.silenced_output = ExitStack()
        self.silenced_output.enter_context(redirect_stdout(io.StringIO()))

    def count_free_slots(self, running_count: int) -> int:
        return 1000 - running_count  # tasks submitted at a time

    def submit(self, commands: Sequence[Sequence[str]]) -> list[Job]:
        references = [self.train.remote([*arguments, "--wait"], os.getcwd()) for arguments in commands]
        self.unfinished.update(references)
        return [_RayTask(reference, self) for reference in references]

    def has_ended(self, reference: Any) -> bool:
        """Return whether a task has ended: it neither waits nor runs."""
        if self.unfinished and time.monotonic() - self.last_poll >= POLL_SECONDS:
            _, unfinished = self.ray.wait([*self.unfinished], num_returns=len(self.unfinished), timeout=0)
            self.unfinished, self.last_poll = {*unfinished}, time.monotonic()
        return reference not in self.unfinished

    def shutdown(self, jobs: Sequence[Job]) -> None:
        references = [job.reference for job in jobs if isinstance(job, _RayTask)]
        for reference in references:
            self.ray.cancel(reference)
        if references:  # let the runs write their checkpoints
            self.ray.wait(references, num_returns=len(references), timeout=60.0)
        self.ray.shutdown()
        self.silenced_output.close()


class TrainingKilled(Exception):
    """The error of a task whose training process was killed; Ray then retries the task."""


def run_training(arguments: list[str], folder: str) -> str:
    """Run ``lengthwise`` with these arguments in a process that ends together with the task. Return why the command
    failed; an empty string if it succeeded. Raises TrainingKilled if a signal killed the process."""
    os.chdir(folder)
    process = Process([*LENGTHWISE_COMMAND, *arguments])
    try:
        while not process.is_done():
            time.sleep(0.2)  # Ray cancels with KeyboardInterrupt, which arrives between Python instructions
    except KeyboardInterrupt:
        process.process.terminate()
        process.process.wait()
        raise
    if (status := process.process.returncode) < 0:
        process.close()
        raise TrainingKilled(f"killed by signal {-status}")
    return process.read_failure()


@dataclass
class _RayTask(Job):
    reference: Any  # Ray's reference to the task's result
    executor: _RayExecutor

    def is_done(self) -> bool:
        return self.executor.has_ended(self.reference)

    def read_failure(self) -> str:
        try:
            return self.executor.ray.get(self.reference)
        except Exception as error:  # from Ray, or raised by the task
            return f"Ray: {split_message(error)[-1]}"
