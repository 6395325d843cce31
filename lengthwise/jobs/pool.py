"""Train several runs at once, on the machines of an executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Self

from lengthwise.base.errors import remove_controls
from lengthwise.base.types import UsageError
from lengthwise.jobs.launchers import Job, Launcher, Local
from lengthwise.runs.run import Run

Together = Sequence[Run]  # runs that one command trains


class JobPool:
    """Runs ``lengthwise train`` for several runs on a launcher, with the options that ``arguments`` returns for each
    run; ``jobs`` is the maximum number at once on this machine. Finished runs are not repeated. With ``stack``, one
    command trains all runs of a recipe, which must have consecutive seeds, with the first run's options.

    A context manager: on exit, the remaining trainings write their checkpoints and stop.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        arguments: Callable[[Run], Sequence[str]],
        *,
        jobs: int = 2,
        on: Launcher | None = None,
        stack: bool = False,
    ) -> None:
        if jobs < 1:
            raise UsageError(f"jobs must be 1 or more, not {jobs}")
        groups: dict[str, list[Run]] = {}  # the runs of each recipe
        for run in runs:
            groups.setdefault(run.recipe.seedless_id, []).append(run)
        self.waiting: list[Together] = [*groups.values()] if stack else [[run] for run in runs]
        self.arguments = arguments
        self.executor = (on or Local()).executor(jobs)
        self.running: list[tuple[Together, Job]] = []
        self.failed: dict[Path, str] = {}  # by the folder of a failed run: why it failed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.executor.shutdown([job for _, job in self.running])
        self.running = []

    def check(self) -> None:
        """Raise UsageError, in one line, if a run failed."""
        if self.failed:
            reasons = "; ".join(f"{folder}: {remove_controls(reason)}" for folder, reason in self.failed.items())
            raise UsageError(reasons if len(self.failed) == 1 else f"{len(self.failed)} runs failed: {reasons}")

    def poll(self) -> bool:
        """Collect ended trainings and start waiting ones; return False once all are done. A failed run does not stop
        the others; its reason is recorded in ``failed`` and in its folder."""
        ended = [(runs, job) for runs, job in self.running if job.is_done()]
        gone = {id(job) for _, job in ended}
        self.running = [pair for pair in self.running if id(pair[1]) not in gone]
        for runs, job in ended:
            for run in runs:
                run.clear_cache()
            if reason := job.failure():
                self._fail(runs, reason)
        room = max(0, self.executor.free_slots(len(self.running)))
        starting, self.waiting = self.waiting[:room], self.waiting[room:]
        if starting:
            for run in chain(*starting):
                run.clear_failure()
            commands = [self._command(runs) for runs in starting]
            self.running += zip(starting, self.executor.submit(commands), strict=True)
        return bool(self.running)

    def _command(self, runs: Together) -> list[str]:
        """Return the arguments of ``lengthwise`` that train these runs."""
        seeds = ["--seed", str(runs[0].recipe.seed), "--seeds", str(len(runs)), "--stack"] if len(runs) > 1 else []
        return ["train", str(runs[0].folder), *seeds, "--quiet", *self.arguments(runs[0])]

    def _fail(self, runs: Together, reason: str) -> None:
        """Record the unfinished runs of one command as failed, also in their folders, unless a run has recorded that it
        diverged, the disk is full or another process holds the run's lock."""
        for run in [run for run in runs if not run.done] or runs:
            self.failed[run.folder] = reason
            with suppress(UsageError):
                if not run.diverged:
                    with run.locked():
                        run.record_failure(reason)
