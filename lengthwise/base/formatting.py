"""Format names, times, memory sizes and lists of numbers for users, and small tables for Python's prompt and
notebooks."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Iterable, Sequence

MAX_WIDTH = 100  # characters of a line
DAY, YEAR = 86_400, 365 * 86_400  # seconds


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
    """A mixin for results that are printed as a text table or, in a notebook, as an HTML table."""

    title_above = True  # in text; a notebook always shows it above

    def title(self) -> str:
        """Return the table's title."""
        raise NotImplementedError

    def table(self) -> tuple[Sequence[str], list[list[str]]]:
        """Return the table's headings and its rows of cells."""
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
    """Names with their descriptions, printed as a table."""

    def __str__(self) -> str:
        return format_listing(f"{len(self)} found", self.items())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return format_html_table(f"{len(self)} found", self.items())


def format_task_name(name: str) -> str:
    """Format a task's name as a title: ``binary-sum`` as "Binary sum"."""
    return name.replace("-", " ").capitalize()


def format_duration(seconds: float) -> str:
    """Format a time: ``8 s``, ``3 min``, ``2.5 h``, ``4 days``."""
    for name, unit in (("years", YEAR), ("days", DAY)):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.0f} {name}"
    if seconds >= 6000:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 100 else f"{seconds:.0f} s"


def format_bytes(byte_count: float) -> str:
    """Format a number of bytes: ``329 MB``."""
    units = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")
    power = min(len(units) - 1, int(math.log(max(byte_count, 1), 1000)))
    return f"{byte_count / 1000**power:,.0f} {units[power]}"


def format_ranges(numbers: Sequence[int]) -> str:
    """Format ascending whole numbers as ranges: ``1–8, 12, 16–20, 30–90 in steps of 10``."""
    ranges, start = [], 0
    while start < len(numbers):
        low, end = numbers[start], start + 1
        step = numbers[end] - low if end < len(numbers) else 1
        while end < len(numbers) and numbers[end] == numbers[end - 1] + step:
            end += 1
        if step > 1 and end - start < 3:  # no range
            end = start + 1
        steps = f" in steps of {step}" * (step > 1)
        ranges.append(f"{low}–{numbers[end - 1]}{steps}" if end - start > 1 else f"{low}")
        start = end
    return ", ".join(ranges)
