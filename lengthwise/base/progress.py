"""Progress display for long work.

A terminal shows a moving line, a notebook a plain HTML bar, and a pipe or log file a line of text every ten seconds.
All output goes to standard error; a terminal's line is erased at the end.
"""

from __future__ import annotations

import html
import math
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.text import Text

from lengthwise.base.quantities import duration
from lengthwise.base.terminal import Terminal

EVERY = 10.0  # seconds between lines in a log
BAR = 12  # characters of a bar
SOON = 1.0  # seconds between updates in a notebook
TELLING = 0.005  # fraction of the work after which the remaining time is estimated; the first pieces are often small


class Line:
    """The progress of one piece of work: ``done`` of ``total``, in any unit, and a note."""

    def __init__(self, what: str, total: float | None, done: float = 0.0) -> None:
        self.what, self.total, self.note = what, total, ""
        self.done = self.first = done
        self.start, self.end = time.monotonic(), math.inf

    def show(self, done: float, note: str = "") -> None:
        """Update the amount done and the note."""
        self.done, self.note = done, note
        if self.total and done >= self.total:
            self.end = min(self.end, time.monotonic())

    @property
    def seconds(self) -> float:
        """Seconds from the start to now, or to the end if it is done."""
        return min(self.end, time.monotonic()) - self.start

    @property
    def fraction(self) -> float:
        """The fraction done, 0 to 1."""
        return min(1.0, self.done / self.total) if self.total else 0.0

    def seconds_left(self) -> float | None:
        """Return the estimated remaining seconds; None if there is no basis for an estimate yet."""
        gone = self.done - self.first
        if not self.total or gone < TELLING * self.total:
            return None
        return self.seconds * (self.total - self.done) / gone

    def describe_time(self) -> str:
        """Return the fraction done and the remaining time as text."""
        left = self.seconds_left()
        share = [f"{self.fraction:.0%}"] if self.total else []
        if self.end < math.inf:
            return f"done in {duration(self.seconds)}"
        return "  ".join([*share, f"{duration(self.seconds)} so far" if left is None else f"{duration(left)} left"])

    def describe(self) -> str:
        """Return the progress and the note on one line."""
        return "  ".join(filter(None, [self.describe_time(), self.note]))


class View(Protocol):
    """A display of progress lines."""

    def add(self, line: Line) -> None:
        """Add a line."""

    def close(self) -> None:
        """End the display."""


class Progress:
    """A context that displays the progress of pieces of work; with ``quiet``, nothing."""

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        self.quiet, self.console = quiet, console or Terminal(stderr=True)
        self.view: View | None = None

    def __enter__(self) -> Self:
        if not self.quiet:
            moving = _TerminalView if self.console.is_terminal else _LogView
            self.view = _NotebookView() if _in_notebook() else moving(self.console)
        return self

    def __exit__(self, *_: object) -> None:
        if self.view:
            self.view.close()
            self.view = None

    def note(self, text: str) -> None:
        """Print a message, even if ``quiet``."""
        self.console.print(f"lengthwise: {text}", markup=False, highlight=False, soft_wrap=True)

    def line(self, what: str, total: float | None = None, done: float = 0.0) -> Line:
        """Add a piece of work, ``done`` of which an earlier call has completed; without ``total``, no remaining time is
        shown."""
        line = Line(what, total, done)
        if self.view:
            self.view.add(line)
        return line


class _TerminalView:
    """Progress in a terminal, redrawn four times a second so that the clock advances between reports."""

    def __init__(self, console: Console) -> None:
        self.lines: list[Line] = []
        self.live = Live(console=console, get_renderable=self._draw, transient=True, refresh_per_second=4)
        self.live.start()

    def add(self, line: Line) -> None:
        self.lines.append(line)

    def close(self) -> None:
        self.live.stop()

    def _draw(self) -> RenderableType:
        return Group(*(part for line in self.lines for part in _as_text(line)))


def _as_text(line: Line) -> Iterator[RenderableType]:
    """Yield a line with name, bar and time, and the note below it."""
    full = round(line.fraction * BAR)
    bar = [("━" * full, "green"), ("━" * (BAR - full), "dim")] if line.total else []
    yield Text(" ").join([Text(line.what), *([Text.assemble(*bar)] if bar else []), Text(line.describe_time(), "cyan")])
    if line.note and line.end == math.inf:
        yield Padding(Text(line.note), (0, 0, 0, 2))


class _PeriodicView:
    """Base of displays that a thread updates every ``every`` seconds."""

    def __init__(self, every: float) -> None:
        self.lines: list[Line] = []
        self.every, self.over = every, threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def add(self, line: Line) -> None:
        self.lines.append(line)

    def close(self) -> None:
        self.over.set()
        self.thread.join()

    def _run(self) -> None:
        while not self.over.wait(self.every):
            self.tick()

    def tick(self) -> None:
        raise NotImplementedError


class _LogView(_PeriodicView):
    """Progress in a pipe or a log file."""

    def __init__(self, console: Console) -> None:
        self.console = console
        super().__init__(EVERY)

    def tick(self) -> None:
        for line in self.lines[-1:]:  # the lines before it are done
            self.console.print(f"{line.what}: {line.describe()}", highlight=False, markup=False, soft_wrap=True)


class _NotebookView(_PeriodicView):
    """Progress in a notebook: one output, which is replaced."""

    def __init__(self) -> None:
        self.handle: Any = None
        super().__init__(SOON)

    def tick(self) -> None:
        from IPython.display import HTML, display  # type: ignore[import-not-found] (a notebook has it)

        rows = "".join(as_bar(line) for line in self.lines)
        if self.handle is None:
            self.handle = display(HTML(rows), display_id=True)
        else:
            self.handle.update(HTML(rows))

    def close(self) -> None:
        super().close()
        if self.handle is not None:
            self.tick()


def as_bar(line: Line) -> str:
    """Format a line as plain HTML."""
    value = f' value="{line.fraction:.4f}"' if line.total else ""
    return f"<div>{html.escape(line.what)} <progress{value}></progress> {html.escape(line.describe())}</div>"


def _in_notebook() -> bool:
    """Return whether this process is a Jupyter kernel, which has imported IPython."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and hasattr(shell, "kernel")
