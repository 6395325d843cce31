"""Train in jobs of a Slurm cluster, through submitit (an optional extra). The cluster's nodes share the folder of runs.
A job that is preempted, reaches its time limit or loses its node resumes; a job that is lost in another way is
submitted again, up to ``MAX_RESUBMITS`` times."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from lengthwise.base.errors import UsageError
from lengthwise.base.extras import import_library
from lengthwise.base.ranges import Amount, OneLine, Range, Size
from lengthwise.jobs.launchers import LENGTHWISE_COMMAND, Executor, Job, Launcher, extract_failure_reason, split_message
from lengthwise.runs.folder import get_runs_folder

POLL_SECONDS = 5.0  # seconds between polls of the queue
MAX_RESUBMITS = 3  # maximum number of times that a lost job, e.g. one out of memory, is submitted again


@dataclass(frozen=True)
class Slurm(Launcher):
    """Launches runs as jobs of a Slurm cluster, submitted as arrays."""

    partition: OneLine = ""  # name of a partition; empty: the cluster's default
    minutes: Annotated[int, Range(5)] = 60  # time limit per job, saving included; longer runs resume in a new job
    gpus: Amount = 0  # GPUs per job
    cpus: Size = 1  # CPUs per job
    memory: OneLine = ""  # memory per job, e.g. 4GB; empty: the cluster's default
    at_a_time: Size = 100  # maximum number of running jobs per array
    leave: bool = False  # keep jobs running when this command stops, instead of cancelling them

    def check(self) -> None:
        _import_submitit()
        if not shutil.which("sbatch") or not shutil.which("srun"):
            raise UsageError("Slurm's commands sbatch and srun are not installed; run this on a login node")

    def build_executor(self, jobs: int) -> Executor:
        self.check()
        return _SlurmExecutor(self)

    def count_parallel_runs(self, jobs: int) -> int:
        if not shutil.which("sinfo"):
            return 0
        command = ["sinfo", "--noheader", "--format", "%C"]
        command += ["--partition", self.partition] if self.partition else []
        result = subprocess.run(command, capture_output=True, text=True)
        usable = [line.split("/") for line in result.stdout.split()]  # allocated, idle, other, total
        return min(self.at_a_time, sum(int(cores[0]) + int(cores[1]) for cores in usable) // self.cpus)


def _import_submitit() -> Any:
    return import_library("submitit", "slurm", "Slurm needs submitit, which is not installed")


class _SlurmExecutor(Executor):
    def __init__(self, launcher: Slurm) -> None:
        submitit = _import_submitit()
        self.launcher = launcher
        folder = get_runs_folder().absolute() / ".slurm"
        self.executor = submitit.SlurmExecutor(folder=folder, max_num_timeout=1000)
        settings = {"partition": launcher.partition, "mem": launcher.memory, "gpus_per_node": launcher.gpus}
        self.executor.update_parameters(
            **{name: value for name, value in settings.items() if value},
            job_name="lengthwise",
            time=launcher.minutes,
            cpus_per_task=launcher.cpus,
            array_parallelism=launcher.at_a_time,
            signal_delay_s=90,  # from the time-limit signal to the end of a job
            additional_parameters={"requeue": True},
        )
        # The jobs in Slurm's queue, polled at intervals. This needs no accounting, which many clusters lack.
        self.queued: set[str] = set()
        self.last_poll = -POLL_SECONDS

    def count_free_slots(self, running_count: int) -> int:
        # Start the next array, of up to 1000 jobs, once the current one has fewer jobs left.
        return 1000 if running_count < self.launcher.at_a_time else 0

    def submit(self, commands: Sequence[Sequence[str]]) -> list[Job]:
        trainings = [TrainingJob([*LENGTHWISE_COMMAND, *arguments, "--wait"]) for arguments in commands]
        return [_SlurmJob(*pair, self) for pair in zip(self.submit_array(trainings), trainings, strict=True)]

    def submit_array(self, trainings: Sequence[TrainingJob]) -> list[Any]:
        """Submit training jobs as one array, and return submitit's jobs. Raises UsageError if Slurm rejects them."""
        try:
            with self.executor.batch():
                return [self.executor.submit(training) for training in trainings]
        except Exception as error:  # e.g. Slurm rejects the settings
            raise UsageError(f"Slurm rejects the jobs: {error}") from None

    def is_queued(self, job_id: str) -> bool:
        """Return whether a job waits or runs."""
        if time.monotonic() - self.last_poll >= POLL_SECONDS:
            command = ["squeue", "--noheader", "--array", "--me", "--format", "%F_%K %F", "--states"]
            states = "PENDING,RUNNING,REQUEUED,COMPLETING,CONFIGURING,SUSPENDED,PREEMPTED,REQUEUE_HOLD,RESIZING,STOPPED"
            result = subprocess.run([*command, states], capture_output=True, text=True)
            self.last_poll = time.monotonic()
            if result.returncode:  # the controller does not answer: assume that no job has ended
                return True
            self.queued = {*result.stdout.split()}
        return job_id in self.queued

    def shutdown(self, jobs: Sequence[Job]) -> None:
        numbers = [job.job.job_id for job in jobs if isinstance(job, _SlurmJob)]
        if numbers and not self.launcher.leave:
            subprocess.run(["scancel", *numbers])


class TrainingJob:
    """The function of a Slurm job, which runs a command. When the job's time ends, the command writes a checkpoint, and
    the job is submitted again."""

    def __init__(self, command: list[str]) -> None:
        self.command = command
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> str:
        """Run the command, and return why it failed; an empty string if it succeeded."""
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        self.process = subprocess.Popen(self.command, env=environment, **pipes)
        _, errors = self.process.communicate()
        return extract_failure_reason(errors, self.process.returncode)

    def checkpoint(self) -> Any:
        """Return the job that resumes this one. Submitit calls this method when the job's time ends or Slurm preempts
        it."""
        if self.process:
            self.process.terminate()
            self.process.wait()
        return _import_submitit().helpers.DelayedSubmission(TrainingJob(self.command))


@dataclass
class _SlurmJob(Job):
    """A Slurm job, which is submitted again if it is lost without having been cancelled."""

    job: Any  # submitit's job
    training: TrainingJob
    executor: _SlurmExecutor
    missing_since: float | None = None  # time at which the job was first missing from the queue
    loss_count: int = 0  # number of times the job was lost

    def is_done(self) -> bool:
        if self.executor.is_queued(self.job.job_id):  # checked first, to avoid looking for a file per queued job
            self.missing_since = None
            return False
        if self.job.paths.result_pickle.exists():
            return True
        self.missing_since = self.missing_since or time.monotonic()
        # A shared file system may show the result with a delay.
        if time.monotonic() - self.missing_since < 2 * POLL_SECONDS:
            return False
        command = ["scontrol", "--oneliner", "show", "job", self.job.job_id]  # if Slurm still knows it
        result = subprocess.run(command, capture_output=True, text=True)
        if self.loss_count == MAX_RESUBMITS or "JobState=CANCELLED" in result.stdout:
            return True
        self.loss_count, self.missing_since = self.loss_count + 1, None
        (self.job,) = self.executor.submit_array([self.training])
        self.executor.last_poll = -POLL_SECONDS
        return False

    def read_failure(self) -> str:
        if not self.job.paths.result_pickle.exists():
            return f"job {self.job.job_id} was lost or cancelled: see {self.job.paths.stderr}"
        try:
            return self.job.result()
        except Exception as error:
            return f"job {self.job.job_id}: {split_message(error)[-1]}"
