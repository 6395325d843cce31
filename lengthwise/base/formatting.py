"""Small text and HTML tables for Python's prompt and for notebooks."""

from __future__ import annotations

import html
import textwrap
from collections.abc import Iterable, Sequence

MAX_WIDTH = 100  # characters of a line


def format_listing(title: str, rows: Iterable[tuple[str, str]]) -> str:
    """Format a title and, below it, one line for each name and its text; long texts are wrapped."""
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0) + 4
    lines = [textwrap.fill(text, MAX_WIDTH, initial_indent=f"  {name}".ljust(width), subsequent_indent=" " * width)
             for name, text in rows]  # fmt: skip
    return "\n".join([title, *lines])


def format_html_table(title: str, rows: Iterable[Sequence[str]], headings: Sequence[str] = ()) -> str:
    """Format a table for a notebook; all text is escaped."""
    top = "".join(f"<th>{html.escape(head)}</th>" for head in headings)
    body = "".join(
        "<tr>" + "".join(f'<td style="text-align:left">{html.escape(text)}</td>' for text in row) + "</tr>"
        for row in rows
    )
    head = f"<thead><tr>{top}</tr></thead>" if headings else ""
    return f"<p><b>{html.escape(title)}</b></p><table>{head}<tbody>{body}</tbody></table>"


class PrintedTable:
    """A mixin for results that print as a table, in a notebook too."""

    title_above = True  # in text; a notebook always shows it above

    def title(self) -> str:
        """Return the table's title."""
        raise NotImplementedError

    def table(self) -> tuple[Sequence[str], list[list[str]]]:
        """Return the table's heads and its rows of cells."""
        raise NotImplementedError

    def __str__(self) -> str:
        heads, rows = self.table()
        widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
        lines = ["  ".join(map(str.rjust, cells, widths)) for cells in (heads, *rows)]
        return "\n".join([self.title(), *lines] if self.title_above else [*lines, self.title()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        heads, rows = self.table()
        return format_html_table(self.title(), rows, heads)


class Listing(dict[str, str]):
    """Names, each with a sentence that describes it; printed as a table."""

    def __str__(self) -> str:
        return format_listing(f"{len(self)} found", self.items())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return format_html_table(f"{len(self)} found", self.items())
