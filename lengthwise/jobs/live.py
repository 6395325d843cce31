"""Progress display for runs that train in other processes, read from their folders."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from lengthwise.base.progress import EVERY
from lengthwise.base.quantities import duration
from lengthwise.base.score_rows import loss_text, share_text
from lengthwise.jobs.pool import JobPool
from lengthwise.runs.run import Run

MOST = 24  # maximum number of runs shown individually
SHARE = 0.05  # maximum share of time spent on the display, since long metrics files are slow to read


def follow(
    pool: JobPool,
    runs: Sequence[Run],
    console: Console,
    *,
    quiet: bool = False,
    extra: Callable[[], RenderableType] | None = None,
) -> None:
    """Poll the pool until all runs are done and show their progress, with ``extra`` below if given. If the output is
    not a terminal, the status is printed every ``EVERY`` seconds."""

    def draw() -> RenderableType:
        return Group(overview(pool, runs), extra()) if extra else overview(pool, runs)

    least = 0.0 if console.is_terminal else EVERY  # seconds between updates
    due = time.monotonic() + least
    with Live(console=console, auto_refresh=False, transient=True) if not quiet else nullcontext() as live:
        while pool.poll():
            began = time.monotonic()
            if live and began >= due:
                if console.is_terminal:
                    live.update(draw(), refresh=True)
                else:
                    console.print(overview(pool, runs))
                due = began + max(least, (time.monotonic() - began) / SHARE)
            time.sleep(0.25)


def overview(pool: JobPool, runs: Sequence[Run]) -> RenderableType:
    """Return the ``status`` of all runs; if there are many, their counts by state and the ``status`` of some running
    ones."""
    if len(runs) <= MOST:
        return status(runs)
    running = [run for together, _ in pool.running for run in together]
    counts = {"failed": len(pool.failed), "submitted": len(running), "waiting": sum(map(len, pool.waiting))}
    counts = {"done": len(runs) - sum(counts.values())} | counts
    counted = f"{len(runs):,} runs: {', '.join(f'{count:,} {name}' for name, count in counts.items())}"
    return Group(counted, status(running[:MOST]))


def status(runs: Sequence[Run]) -> Table:
    """Return a table with a line per run: steps, loss, exact match at the watched sizes, time left."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    several = len({run.recipe.name for run in runs}) < len(runs)
    for run in runs:
        name = f"{run.recipe.name} {run.recipe.seed}" if several else run.recipe.name
        steps, note = _read_progress(run)
        table.add_row(name, ProgressBar(total=run.recipe.steps, completed=steps, width=12), str(steps), note)
    return table


def _read_progress(run: Run) -> tuple[int, str]:
    """Return the number of steps done, and a note with exact match, loss and time."""
    rows = run.rows("metrics")
    taken = [row for row in rows if "rate" in row]  # rows of steps; the others hold validation scores
    watched = [row["exact"] for row in rows if row.get("exact")]
    if not taken:
        return 0, "waiting"
    last, total = taken[-1], run.recipe.steps
    steps, seconds = last["step"], last.get("wall_s", 0.0)
    exact = "  ".join(f"{size}: {share_text(share)}" for size, share in watched[-1].items()) if watched else ""
    if run.done:
        return steps, f"{exact}  trained in {duration(seconds)}, {len(run.rows('scores'))} scores"
    length = f"length {last['length']}" if "length" in last else ""
    left = f"{duration((total - steps) * seconds / steps)} left"
    return steps, "  ".join(filter(None, [exact, length, loss_text(last), left]))
