"""What verbs print, and where."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from lengthwise.folder import json_text
from lengthwise.recipe.demand import Demand, time_text

LONG = 60.0  # seconds that are said beforehand
SOON = 2.0  # seconds after which one wants to know that something happens

out = Console()
progress = Console(stderr=True)


def say(args: argparse.Namespace, result: Any, *renderables: Any) -> int:
    """The result, as JSON or for people."""
    if args.json:
        print(json_text(result))
    else:
        for renderable in renderables:
            out.print(renderable)
    return 0


def foresee(what: str, demand: Demand) -> None:
    """Say how long something takes, if that is long. UsageError if this machine cannot hold it."""
    demand.check(what)
    if demand.seconds > LONG:
        progress.print(f"{what} takes about {time_text(demand.seconds)} of one thread", highlight=False, markup=False)


@contextmanager
def waiting(what: str, demand: Demand) -> Iterator[None]:
    """Say after some seconds that something is at work, and how long it takes, on standard error: on a terminal with
    the time that has passed."""
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    bar = Progress(*columns, console=progress, transient=True, disable=not progress.is_terminal)
    text = f"{what}: about {time_text(demand.seconds)}"

    def begin() -> None:
        bar.add_task(text, total=None)
        bar.start()
        if bar.disable:
            progress.print(text, highlight=False, markup=False)

    timer = threading.Timer(SOON, begin)
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        bar.stop()


def summary_of(function: Callable[..., Any]) -> str:
    """The first paragraph of a function's docstring."""
    return (function.__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " ")
