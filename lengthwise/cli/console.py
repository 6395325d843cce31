"""Print the results, warnings and progress of commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lengthwise.base.files import format_json
from lengthwise.base.formatting import format_duration
from lengthwise.base.process import get_result_stream
from lengthwise.base.progress import Progress, Terminal
from lengthwise.cli.shared import OutputOptions

if TYPE_CHECKING:
    from torch import nn

    from lengthwise.experiment.resources import ResourceEstimate
    from lengthwise.runs.run import Run

ANNOUNCE_SECONDS = 60.0  # longer work is announced in advance
MAX_TABLE_ROWS = 200  # maximum number of rows in a rich table

out = Terminal()
err = Terminal(stderr=True)


@contextmanager
def show_elapsed(label: str, *, quiet: bool = False) -> Iterator[Progress]:
    """Show the elapsed time beside a label during a ``with`` block, whose code may add lines to the progress."""
    with Progress(quiet=quiet, console=err) as progress:
        progress.add_line(label)
        yield progress


def print_result(args: OutputOptions, result: Any, *renderables: Any) -> int:
    """Print the result as JSON, or the renderables as text; return the exit status 0."""
    if args.json:
        print(format_json(result), file=get_result_stream())
    else:
        for renderable in renderables:
            out.print(renderable)
    return 0


def print_files(args: OutputOptions, files: Sequence[Path], *renderables: Any, **result: Any) -> int:
    """Print results and, below them, the paths of files that were written; return the exit status 0."""
    return print_result(args, {"files": [*map(str, files)]} | result, *renderables, "\n".join(map(str, files)))


def warn(text: str) -> None:
    """Print a line on standard error."""
    err.print(f"lengthwise: {text}", highlight=False, soft_wrap=True)


def has_code_changed(run: Run, model: nn.Module | None = None) -> bool:
    """Return whether the user's own code has changed since a run was trained, and print a warning if it has."""
    if changed := run.list_changed_classes(model):
        advice = "scores are not kept; undo the change, or train again"
        warn(f"{', '.join(changed)} changed since {run.folder.name} was trained: {advice}")
    return bool(changed)


def save_page(args: OutputOptions, file: str, page: str, **extra_results: Any) -> int:
    """Write an HTML page, and print its path and size, with ``extra_results`` in the JSON; return the exit status 0."""
    from lengthwise.viewer.document import write_page

    path, size = write_page(file, page), len(page.encode())
    written = f"{path}  {size / 1e6:.1f} MB: open it in a browser; it works offline"
    return print_result(args, {"file": str(path), "bytes": size, **extra_results}, written)


def announce_duration(description: str, estimate: ResourceEstimate) -> None:
    """Print the estimated duration of work if it is over a minute. Raises UsageError if there is too little memory."""
    estimate.check(description)
    if estimate.seconds > ANNOUNCE_SECONDS:
        err.print(f"{description} takes about {format_duration(estimate.seconds)} of one CPU thread", highlight=False)


def format_columns(title: Text, rows: Sequence[tuple[str, Text]], *, blank_line_after: bool = False) -> RenderableType:
    """Format a title, then each name with its text beside it, or below it if names are too long for the terminal."""
    longest_name = max((len(name) for name, _ in rows), default=0)
    lines: list[RenderableType]
    if len(rows) > MAX_TABLE_ROWS:  # a rich table of thousands of rows takes seconds
        lines = [Text("\n".join(f"  {name:{longest_name}}  {text.plain}" for name, text in rows))]
    elif longest_name > out.width // 3:
        lines = [Group(Text(name, "bold"), Padding(text, (0, 0, 0, 4))) for name, text in rows]
    else:
        lines = [table := Table.grid(padding=(0, 2, 0, 0))]
        for name, text in rows:
            table.add_row(Text(f"  {name}", "bold", no_wrap=True), text)
    return Group(title, *lines, *([""] * blank_line_after))
