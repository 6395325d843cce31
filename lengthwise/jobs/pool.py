"""Train several runs at once on the machines of an executor, and show their progress, read from their folders."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from itertools import chain
from pathlib import Path
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from lengthwise.base.errors import remove_controls
from lengthwise.base.formatting import format_duration
from lengthwise.base.progress import LOG_SECONDS
from lengthwise.base.score_rows import format_loss, format_share, group_by
from lengthwise.base.types import UsageError
from lengthwise.jobs.launchers import Job, Launcher, Local
from lengthwise.runs.run import Run

MAX_LISTED_RUNS = 24  # maximum number of runs shown individually
RunGroup = Sequence[Run]  # runs that one command trains


class JobPool:
    """A context in which a launcher runs ``lengthwise train`` for several runs, with the options that ``arguments``
    returns for each run. On this machine, at most ``jobs`` commands run at once. With ``stack``, one command trains all
    runs of a recipe, which must have consecutive seeds. On exit, remaining runs write checkpoints and stop."""

    def __init__(
        self,
        runs: Sequence[Run],
        arguments: Callable[[Run], Sequence[str]],
        *,
        jobs: int = 2,
        launcher: Launcher | None = None,
        stack: bool = False,
    ) -> None:
        if jobs < 1:
            raise UsageError(f"jobs must be 1 or more, not {jobs}")
        by_recipe = group_by(runs, lambda run: run.recipe.seedless_id).values()
        self.waiting: list[RunGroup] = [*by_recipe] if stack else [[run] for run in runs]
        self.arguments = arguments
        self.executor = (launcher or Local()).build_executor(jobs)
        self.running: list[tuple[RunGroup, Job]] = []
        self.failed: dict[Path, str] = {}  # why runs failed, by folder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.executor.shutdown([job for _, job in self.running])
        self.running = []

    def raise_failures(self) -> None:
        """Raise UsageError if runs failed, with all their reasons in one line."""
        if self.failed:
            failed = {folder: reason.removeprefix(f"{folder}: ") for folder, reason in self.failed.items()}
            reasons = "; ".join(f"{folder}: {remove_controls(reason)}" for folder, reason in failed.items())
            raise UsageError(reasons if len(self.failed) == 1 else f"{len(self.failed)} runs failed: {reasons}")

    def poll(self) -> bool:
        """Collect runs that have ended, store failures in ``failed``, and start runs that wait for a slot. Return
        whether any run is unfinished."""
        ended = [(runs, job) for runs, job in self.running if job.is_done()]
        ended_ids = {id(job) for _, job in ended}
        self.running = [pair for pair in self.running if id(pair[1]) not in ended_ids]
        for runs, job in ended:
            for run in runs:
                run.clear_cache()
            if reason := job.read_failure():
                self._record_failure(runs, reason)
        room = max(0, self.executor.count_free_slots(len(self.running)))
        starting, self.waiting = self.waiting[:room], self.waiting[room:]
        if starting:
            for run in chain(*starting):
                run.clear_failure()
            commands = []
            for runs in starting:
                seeds = ["--seed", str(runs[0].recipe.seed), "--seeds", str(len(runs)), "--stack"] * (len(runs) > 1)
                commands.append(["train", str(runs[0].folder), *seeds, "--quiet", *self.arguments(runs[0])])
            self.running += zip(starting, self.executor.submit(commands), strict=True)
        return bool(self.running)

    def _record_failure(self, runs: RunGroup, reason: str) -> None:
        """Store why a command's unfinished runs failed. The reason is also written to a run's folder, unless the run
        diverged, the disk is full or another process holds the folder."""
        for run in [run for run in runs if not run.done] or runs:
            self.failed[run.folder] = reason
            with suppress(UsageError):
                if run.diverged:
                    continue
                with run.lock():
                    run.record_failure(reason)


# Display


def show_progress(
    pool: JobPool,
    runs: Sequence[Run],
    console: Console,
    *,
    quiet: bool = False,
    extra_display: Callable[[], RenderableType] = Text,
) -> None:
    """Poll the pool until all runs are done, and show their progress, with ``extra_display`` below it. If the output is
    not a terminal, print the progress every ``LOG_SECONDS``."""
    shortest = 0.0 if console.is_terminal else LOG_SECONDS  # seconds between updates
    next_line = time.monotonic() + shortest
    with Live(console=console, auto_refresh=False, transient=True) if not quiet else nullcontext() as live:
        while pool.poll():
            began = time.monotonic()
            if live and began >= next_line:
                summary = summarize_runs(pool, runs)
                if console.is_terminal:
                    live.update(Group(summary, extra_display()), refresh=True)
                else:
                    console.print(summary)
                # Draw for at most a twentieth of the time, since long metrics files are slow to read.
                next_line = began + max(shortest, (time.monotonic() - began) / 0.05)
            time.sleep(0.25)


def summarize_runs(pool: JobPool, runs: Sequence[Run]) -> RenderableType:
    """Return the status table of all runs. If there are more than ``MAX_LISTED_RUNS``, return their counts by state,
    and the table of some running ones."""
    if len(runs) <= MAX_LISTED_RUNS:
        return build_status_table(runs)
    running = [run for group, _ in pool.running for run in group]
    counts = {"failed": len(pool.failed), "submitted": len(running), "waiting": sum(map(len, pool.waiting))}
    counts = {"done": len(runs) - sum(counts.values())} | counts
    counted = f"{len(runs):,} runs: {', '.join(f'{count:,} {name}' for name, count in counts.items())}"
    return Group(counted, build_status_table(running[:MAX_LISTED_RUNS]))


def build_status_table(runs: Sequence[Run]) -> Table:
    """Return a table with a line per run: name, steps, exact match at the watched sizes, loss, and time left."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    has_several_seeds = len({run.recipe.name for run in runs}) < len(runs)
    for run in runs:
        name = f"{run.recipe.name} {run.recipe.seed}" if has_several_seeds else run.recipe.name
        rows, total, steps, note = run.rows("metrics"), run.recipe.steps, 0, "waiting"
        if step_rows := [row for row in rows if "rate" in row]:  # rows of steps; the others hold validation scores
            last, watched = step_rows[-1], [row["exact"] for row in rows if row.get("exact")]
            steps, seconds = last["step"], last.get("wall_s", 0.0)
            latest = watched[-1] if watched else {}
            exact = "  ".join(f"{size}: {format_share(share)}" for size, share in latest.items())
            length = f"length {last['length']}" if "length" in last else ""
            time_left = f"{format_duration((total - steps) * seconds / (steps - run.recipe.start))} left"
            note = "  ".join(filter(None, [exact, length, format_loss(last), time_left]))
            if run.done:
                note = f"{exact}  trained in {format_duration(seconds)}, {len(run.rows('scores'))} scores"
        table.add_row(name, ProgressBar(total=total, completed=steps, width=12), str(steps), note)
    return table
