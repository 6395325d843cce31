"""What verbs print, and where."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.progress import Progress as Bars
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from lengthwise.base.files import json_text
from lengthwise.base.progress import Progress
from lengthwise.base.quantities import duration
from lengthwise.base.streams import results
from lengthwise.base.terminal import Terminal

if TYPE_CHECKING:
    from lengthwise.experiment.resources import ResourceEstimate
    from lengthwise.models import Model
    from lengthwise.run import Run

LONG = 60.0  # seconds that are said beforehand
MANY = 200  # lines that are not worth a table
SOON = 2.0  # seconds after which one wants to know that something happens

out = Terminal()
err = Terminal(stderr=True)


@contextmanager
def doing(what: str, *, quiet: bool = False) -> Iterator[Progress]:
    """Say what takes long, and for how long already; further lines may be added."""
    with Progress(quiet=quiet, console=err) as shown:
        shown.line(what)
        yield shown


def say(args: argparse.Namespace, result: Any, *renderables: Any) -> int:
    """The result, as JSON or for people."""
    if args.json:
        print(json_text(result), file=results())
    else:
        for renderable in renderables:
            out.print(renderable)
    return 0


def code_changed(run: Run, model: Model | None = None) -> bool:
    """Has a user's own code changed since this run, or its ``model``, was trained? Then that is said: what is measured
    now is of something else."""
    if changed := run.changed_code(model):
        err.print(
            f"{', '.join(changed)} changed since {run.folder.name} was trained: scores are not kept", style="yellow"
        )
    return bool(changed)


def say_page(args: argparse.Namespace, page: str, **more: Any) -> int:
    """Write a page to where ``--html`` says, and say so; ``more`` goes into the JSON."""
    from lengthwise.viewer.document import write_page

    path, size = write_page(args.html, page), len(page.encode())
    told = f"{path}  {size / 1e6:.1f} MB: open it in a browser; it asks the network for nothing"
    return say(args, {"file": str(path), "bytes": size, **more}, told)


def measuring(sizes: Sequence[object]) -> str:
    """What measuring so many sizes is called."""
    return f"measuring {len(sizes)} size{'s' * (len(sizes) != 1)}"


def foresee(what: str, demand: ResourceEstimate) -> None:
    """Say how long something takes, if that is long. UsageError if this machine cannot hold it."""
    demand.check(what)
    if demand.seconds > LONG:
        err.print(f"{what} takes about {duration(demand.seconds)} of one CPU thread", highlight=False, markup=False)


@contextmanager
def waiting(what: str, demand: ResourceEstimate) -> Iterator[None]:
    """Say after some seconds that something is at work, and how long it takes, on standard error: on a terminal with
    the time that has passed."""
    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
    bar = Bars(*columns, console=err, transient=True, disable=not err.is_terminal)
    text = f"{what}: about {duration(demand.seconds)}"

    def begin() -> None:
        bar.add_task(text, total=None)
        bar.start()
        if bar.disable:
            err.print(text, highlight=False, markup=False)

    timer = threading.Timer(SOON, begin)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


def columns(head: Text, rows: Sequence[tuple[str, Text]], *, gap: bool = False) -> RenderableType:
    """Names with what is said of each beside it; below it where the names are long beside the terminal."""
    longest = max((len(name) for name, _ in rows), default=0)
    if len(rows) > MANY and all(longest + len(said.plain) + 4 <= out.width for _, said in rows):
        lines = "\n".join(f"  {name:{longest}}  {said.plain}" for name, said in rows)
        return Group(head, Text(lines, no_wrap=True), *([""] * gap))  # a table of thousands takes seconds
    if longest > out.width // 3:
        stacked = [Group(Text(name, "bold"), Padding(said, (0, 0, 0, 4))) for name, said in rows]
        return Group(head, *stacked, *([""] * gap))
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, said in rows:
        table.add_row(Text(f"  {name}", "bold", no_wrap=True), said)
    return Group(head, table, *([""] * gap))
