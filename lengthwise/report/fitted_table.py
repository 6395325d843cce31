"""Tables that fit their terminal: at any width, no number is cut and no word is split."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

COLUMN_GAP = 2  # characters between columns
NAME_WIDTH = 16  # characters of a name in the first column that are kept on one line if possible

Grid = list[list[Text]]  # cells by column, headings first


class FittedTable(Table):
    """A table that adapts to the width of the terminal. Columns are never narrower than their longest word. If the
    table is too wide, words may break after a hyphen; next, column ``optional_column``, counted from 0, is dropped. If
    it still does not fit, each row becomes a paragraph: its first cell, then the other cells with their headings."""

    def __init__(
        self,
        *headings: str,
        title: str | None = None,
        caption: str | Text | None = None,
        left_aligned: Container[str] | None = None,
        no_wrap: Container[str] = (),
        optional_column: int | None = None,
    ) -> None:
        """Align all columns left, or only those in ``left_aligned``; do not wrap those in ``no_wrap``."""
        super().__init__(title=title, caption=Text(caption) if isinstance(caption, str) else caption)
        self.optional = optional_column
        for heading in headings:
            justify = "left" if left_aligned is None or heading in left_aligned else "right"
            self.add_column(heading, justify=justify, no_wrap=heading in no_wrap)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if self.title:
            yield _to_text(self.title)
        plain = [column for number, column in enumerate(self.columns) if number != self.optional]
        for columns, words in ((self.columns, str.split), (self.columns, _split_words), (plain, _split_words)):
            grid = [[_to_text(cell) for cell in (column.header, *column.cells)] for column in columns]
            breaks = [str.splitlines if column.no_wrap else words for column in columns]
            minima = [_measure_max_width(cells, split) for cells, split in zip(grid, breaks, strict=True)]
            if sum(minima) <= options.max_width - COLUMN_GAP * len(grid):
                yield _build_table(columns, grid, minima, options.max_width)
                break
        else:
            yield from _write_paragraphs(grid, options.max_width)
        if self.caption:
            yield _to_text(self.caption)


def _build_table(columns: Sequence[Column], grid: Grid, min_widths: Sequence[int], max_width: int) -> Table:
    """Return a table whose columns have at least the widths ``min_widths``. Spare width goes first to the names in the
    first column, then to the columns that need the least width. Long words are broken after hyphens."""
    maxima = [_measure_max_width(cells, str.splitlines) for cells in grid]
    widths, spare = list(min_widths), max_width - COLUMN_GAP * len(min_widths) - sum(min_widths)
    by_need = sorted(range(len(widths)), key=lambda number: maxima[number] - min_widths[number])
    for number, max_column_width in [
        (0, min(NAME_WIDTH, maxima[0])),
        *((number, maxima[number]) for number in by_need),
    ]:
        extra = min(spare, max(0, max_column_width - widths[number]))
        widths[number], spare = widths[number] + extra, spare - extra
    table, fitted = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0)), []
    for column, cells, width in zip(columns, grid, widths, strict=True):
        head, *others = [
            cell
            if _measure_max_width([cell], str.split) <= width
            else Text(textwrap.fill(cell.plain, width, break_long_words=False), cell.style)
            for cell in cells
        ]
        table.add_column(head, width=width, justify=column.justify)
        fitted.append(others)
    for row in zip(*fitted, strict=True):
        table.add_row(*row)
    return table


def _to_text(cell: Any) -> Text:
    return cell if isinstance(cell, Text) else Text(str(cell))


def _split_words(text: str) -> list[str]:
    """Split a text at spaces, and words also after each hyphen between lower-case letters."""
    return re.split(r"\s+|(?<=[a-z]-)(?=[a-z])", text)


def _measure_max_width(cells: Iterable[Text], split_text: Callable[[str], list[str]]) -> int:
    return max((Text(piece).cell_len for cell in cells for piece in split_text(cell.plain)), default=0)


def _write_paragraphs(grid: Grid, width: int) -> Iterable[Text | Padding]:
    """Yield each row as lines of text: its first cell, then its other cells with their headings. Lines break only
    between cells. Consecutive rows with the same first cell share its line."""
    heads, above = [cells[0].plain for cells in grid], None
    for first, *others in zip(*(cells[1:] for cells in grid), strict=True):
        named = " ".join(first.plain.split())
        if named != above:
            yield Text.assemble((f"{heads[0]} " if heads[0] else "", "dim"), (named, "bold"))
        above = named
        line = Text()
        for head, cell in zip(heads[1:], others, strict=True):
            if not (content := " ".join(cell.plain.split())):
                continue
            entry = Text.assemble((f"{head} " if head else "", "dim"), (content, cell.style))
            if line and line.cell_len + 3 + entry.cell_len > width - 2:
                yield Padding(line, (0, 0, 0, 2))
                line = Text()
            line.append("   " if line else "").append_text(entry)
        yield Padding(line, (0, 0, 0, 2))
