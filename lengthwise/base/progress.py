"""A terminal that is safe for foreign text, and a progress display on standard error: a moving line on a terminal, an
HTML bar in a notebook, a line of text every ten seconds in a pipe or log file."""

from __future__ import annotations

import html
import math
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.segment import Segment
from rich.text import Text

from lengthwise.base.formatting import format_duration

LOG_SECONDS = 10.0  # seconds between lines in a log
BAR_CHARACTERS = 12  # characters of a bar
NOTEBOOK_SECONDS = 1.0  # seconds between updates in a notebook
# The fraction of the work after which the remaining time is estimated; earlier estimates are often far too short.
MIN_ESTIMABLE_FRACTION = 0.005


class Terminal(Console):
    """A rich console that prints strings without interpreting markup or emoji codes, and drops control characters."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def render(self, renderable: RenderableType, options: Any = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            text, style, control = segment
            if not control and not text.isprintable():
                segment = Segment("".join(char for char in text if char.isprintable() or char == "\n"), style)
            yield segment

    def on_broken_pipe(self) -> None:
        raise


class ProgressLine:
    """The progress of one piece of work: ``done`` of ``total``, in any unit, and a note."""

    def __init__(self, label: str, total: float | None, amount_done: float = 0.0) -> None:
        self.label, self.total, self.note = label, total, ""
        self.done = self.initial = amount_done
        self.start, self.end = time.monotonic(), math.inf

    def update(self, amount_done: float, note: str = "") -> None:
        """Update the amount done and the note."""
        self.done, self.note = amount_done, note
        if self.total and amount_done >= self.total:
            self.end = min(self.end, time.monotonic())

    @property
    def fraction(self) -> float:
        """The fraction done, 0 to 1."""
        return min(1.0, self.done / self.total) if self.total else 0.0

    def describe_time(self) -> str:
        """Return the fraction done and, once it can be estimated, the remaining time."""
        seconds, advanced = min(self.end, time.monotonic()) - self.start, self.done - self.initial
        if self.end < math.inf:
            return f"done in {format_duration(seconds)}"
        time_text = f"{format_duration(seconds)} so far"
        if self.total and advanced >= MIN_ESTIMABLE_FRACTION * self.total:
            time_text = f"{format_duration(seconds * (self.total - self.done) / advanced)} left"
        return f"{self.fraction:.0%}  {time_text}" if self.total else time_text

    def describe(self) -> str:
        """Return the progress and the note on one line."""
        return "  ".join(filter(None, [self.describe_time(), self.note]))


class Progress:
    """A context manager that displays lines of progress; with ``quiet``, it displays nothing."""

    def __init__(self, *, quiet: bool = False, console: Console | None = None) -> None:
        self.quiet, self.console = quiet, console or Terminal(stderr=True)
        self.lines: list[ProgressLine] = []
        self.notebook_output: Any = None  # the handle of a notebook's output
        self.display: AbstractContextManager[None] | None = None

    def __enter__(self) -> Self:
        self.display = self._show()
        self.display.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        if self.display:
            self.display.__exit__(*error)
            if self.notebook_output is not None:
                self._update_notebook()
        self.display, self.lines = None, []

    def note(self, text: str) -> None:
        """Print a message, even if ``quiet``."""
        self.console.print(f"lengthwise: {text}", markup=False, highlight=False, soft_wrap=True)

    def add_line(self, label: str, total: float | None = None, amount_done: float = 0.0) -> ProgressLine:
        """Add a line for work of size ``total`` (None: unknown), of which ``amount_done`` is finished already."""
        self.lines.append(ProgressLine(label, total, amount_done))
        return self.lines[-1]

    @contextmanager
    def _show(self) -> Iterator[None]:
        # A notebook's process is a Jupyter kernel, which has imported IPython.
        in_notebook = hasattr(getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)(), "kernel")
        if self.quiet:
            yield
            return
        if self.console.is_terminal and not in_notebook:
            # rich redraws the lines four times a second, so that the time advances between updates.
            with Live(console=self.console, get_renderable=self._draw, transient=True, refresh_per_second=4):
                yield
            return
        show, seconds = (self._update_notebook, NOTEBOOK_SECONDS) if in_notebook else (self._print_line, LOG_SECONDS)
        stopped = threading.Event()

        def show_repeatedly() -> None:
            while not stopped.wait(seconds):
                show()

        thread = threading.Thread(target=show_repeatedly, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join()

    def _draw(self) -> RenderableType:
        """Return a line with label, bar and time for each piece of work, and below it the work's note."""
        parts: list[RenderableType] = []
        for line in self.lines:
            full = round(line.fraction * BAR_CHARACTERS)
            bar = [Text.assemble(("━" * full, "green"), ("━" * (BAR_CHARACTERS - full), "dim"))] if line.total else []
            parts.append(Text(" ").join([Text(line.label), *bar, Text(line.describe_time(), "cyan")]))
            if line.note and line.end == math.inf:
                parts.append(Padding(Text(line.note), (0, 0, 0, 2)))
        return Group(*parts)

    def _print_line(self) -> None:
        for line in self.lines[-1:]:  # earlier lines are done
            self.console.print(f"{line.label}: {line.describe()}", highlight=False, markup=False, soft_wrap=True)

    def _update_notebook(self) -> None:
        from IPython.display import HTML, display  # type: ignore[import-not-found] (a notebook has it)

        rows = HTML("".join(format_bar(line) for line in self.lines))
        if self.notebook_output is None:
            self.notebook_output = display(rows, display_id=True)
        else:
            self.notebook_output.update(rows)


def format_bar(line: ProgressLine) -> str:
    """Format a line as plain HTML."""
    value = f' value="{line.fraction:.4f}"' if line.total else ""
    return f"<div>{html.escape(line.label)} <progress{value}></progress> {html.escape(line.describe())}</div>"
