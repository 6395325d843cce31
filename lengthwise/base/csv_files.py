"""Write rows as CSV, and read them back."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lengthwise.base import fields
from lengthwise.base.errors import UsageError
from lengthwise.base.files import MAX_TEXT_BYTES, format_error, read_bytes, read_text, remove, write
from lengthwise.base.formatting import format_bytes
from lengthwise.base.schemas import SizeText
from lengthwise.base.score_rows import Row, format_size

# Columns that are always read as text: a run's id may look like a number, as 2276e59742 does.
TEXT_COLUMNS = frozenset(
    ("recipe_name", "id", "sealed", "family", "task", "weights", "stopping", "problems", "recipe", "model")
)


def write_csv(path: Path, rows: Iterable[Row], *, max_plain_bytes: float = math.inf) -> Path:
    """Write rows atomically; return the path of the file. Lists are written as 20x40, dictionary entries as columns
    ``exact.8``, None as an empty cell. A file larger than ``max_plain_bytes`` is compressed, as ``path`` + .gz."""
    columns, flat = flatten_rows(rows)
    if not flat:
        raise UsageError(f"{path}: there are no rows to write")
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(map(row.get, columns) for row in flat)
    content, packed = text.getvalue().encode(), path.with_name(f"{path.name}.gz")
    target, other = (path, packed) if len(content) <= max_plain_bytes else (packed, path)
    write(target, content if target == path else gzip.compress(content, mtime=0))
    remove(other)
    return target


def flatten_rows(rows: Iterable[Row]) -> tuple[list[str], list[Row]]:
    """Return the columns' names, and the rows as flat dictionaries (see ``write_csv``)."""
    flat = []
    for row in rows:
        cells: Row = {}
        for name, value in row.items():
            cells |= {f"{name}.{key}": part for key, part in value.items()} if type(value) is dict else {name: value}
        flat.append({name: format_size(cell) if type(cell) in (list, tuple) else cell for name, cell in cells.items()})
    return list(dict.fromkeys(name for names in dict.fromkeys(map(tuple, flat)) for name in names)), flat


def read_csv(path: Path) -> list[Row]:
    """Read rows written by ``write_csv``, from ``path`` or ``path`` + .gz; no rows if neither exists. Sizes become
    lists again, and the column ``exact.8`` becomes an entry of ``exact``."""
    packed, text = path.with_name(f"{path.name}.gz"), ""
    if path.exists():
        text = read_text(path)
    elif packed.exists():
        try:
            with gzip.GzipFile(fileobj=io.BytesIO(read_bytes(packed))) as file:
                content = file.read(MAX_TEXT_BYTES + 1)
            text = content.decode()
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise UsageError(f"{packed}: not a gzip file of UTF-8 text, or cut short ({format_error(error)})") from None
        if len(content) > MAX_TEXT_BYTES:
            raise UsageError(f"{packed}: too large: the limit is {format_bytes(MAX_TEXT_BYTES)} of text")
    try:
        return [_parse_row(path, number, line) for number, line in enumerate(csv.DictReader(text.splitlines()), 1)]
    except csv.Error as error:
        raise UsageError(f"{path}: not CSV ({error})") from None


def _parse_row(path: Path, row_number: int, cells: Mapping[str, str]) -> Row:
    """Parse one row, given as cells by column; errors name the file and ``row_number``."""
    row: Row = {}
    if None in cells:
        raise UsageError(f"{path}: row {row_number} has more cells than the header")
    for column, cell in cells.items():
        if not cell and column != "stopping":  # an empty rule is kept: language models have none
            continue
        name, _, key = column.partition(".")
        target = row.setdefault(name, {}) if key else row
        if not isinstance(target, dict):
            raise UsageError(f"{path}: has both a column {name} and a column {column}")
        if (key or name) == "sizes":
            fields.validate(SizeText, cell, f"{path}: row {row_number}: sizes")
            target[key or name] = [int(size) for size in cell.split("x")]
        else:
            target[key or name] = _parse_cell(key or name, cell)
    return row


def _parse_cell(column: str, cell: str) -> Any:
    """Parse a cell as a bool or a finite number. Any other cell, or a cell of a text column, is returned unchanged."""
    if column in TEXT_COLUMNS:
        return cell
    if cell in ("True", "False"):
        return cell == "True"
    for kind in (int, float):
        with suppress(ValueError):
            if math.isfinite(value := kind(cell)):
                return value
    return cell
