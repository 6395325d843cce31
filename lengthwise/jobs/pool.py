"""Trains several runs at once, wherever an executor has machines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Self

from lengthwise.base.errors import clean
from lengthwise.base.types import UsageError
from lengthwise.jobs.launchers import Job, Launcher, Local
from lengthwise.run import Run

Together = Sequence[Run]  # that one command trains


class JobPool:
    """Runs ``lengthwise train`` for several runs on an engine, with the options that ``arguments`` returns for each
    run; at most ``jobs`` at a time on this machine. Finished work is not repeated. With ``stack``, the runs of a
    recipe, whose seeds follow each other, are trained by one command, which is given the first one's options.

    A context manager: leaving it makes the remaining trainings write their checkpoints and stop.
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
        self.waiting: list[Together] = _stacks(runs) if stack else [[run] for run in runs]
        self.arguments = arguments
        self.executor = (on or Local()).executor(jobs)
        self.running: list[tuple[Together, Job]] = []
        self.failed: dict[Path, str] = {}  # the folders of runs that failed: the last line of their error output

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.executor.shutdown([job for _, job in self.running])
        self.running = []

    def check(self) -> None:
        """UsageError, in one line, if a run failed."""
        if self.failed:
            reasons = "; ".join(f"{folder}: {clean(reason)}" for folder, reason in self.failed.items())
            raise UsageError(reasons if len(self.failed) == 1 else f"{len(self.failed)} runs failed: {reasons}")

    def poll(self) -> bool:
        """Collect ended trainings and start waiting ones; False when all are done. A run that failed stops no other:
        why is kept in ``failed``, and in its folder."""
        ended = [(runs, job) for runs, job in self.running if job.is_done()]
        gone = {id(job) for _, job in ended}
        self.running = [pair for pair in self.running if id(pair[1]) not in gone]
        for runs, job in ended:
            for run in runs:
                run.forget()
            if reason := job.failure():
                self._fail(runs, reason)
        room = max(0, self.executor.room(len(self.running)))
        starting, self.waiting = self.waiting[:room], self.waiting[room:]
        if starting:
            self._start(starting)
        return bool(self.running)

    def _start(self, starting: Sequence[Together]) -> None:
        for run in chain(*starting):
            run.forgive()
        words = [["train", *_run_arguments(runs), "--quiet", *self.arguments(runs[0])] for runs in starting]
        self.running += zip(starting, self.executor.submit(words), strict=True)

    def _fail(self, runs: Together, reason: str) -> None:
        """Count the runs of one command that it did not finish as lost."""
        for run in [run for run in runs if not run.done] or runs:
            self.failed[run.folder] = reason
            _keep(run, reason)


def _stacks(runs: Iterable[Run]) -> list[Together]:
    """The runs of each recipe."""
    found: dict[str, list[Run]] = {}
    for run in runs:
        found.setdefault(run.recipe.seedless_id, []).append(run)
    return [*found.values()]


def _run_arguments(runs: Together) -> list[str]:
    """What ``train`` is asked to train."""
    folder, seed = str(runs[0].folder), runs[0].recipe.seed
    return [folder] if len(runs) == 1 else [folder, "--seed", str(seed), "--seeds", str(len(runs)), "--stack"]


def _keep(run: Run, reason: str) -> None:
    """Keep why a run failed, unless it has said so itself; on a full disk that is only said, and of a run on which
    another process works."""
    with suppress(UsageError):
        if not run.diverged:
            with run.locked():
                run.fail(reason)
