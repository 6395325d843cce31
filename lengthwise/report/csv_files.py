"""Write rows as CSV."""

from __future__ import annotations

import csv
import gzip
import io
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from lengthwise.base.errors import UsageError
from lengthwise.base.files import remove, write
from lengthwise.base.score_rows import Row, size_text

NESTED = {dict, list, tuple}


def write_csv(path: Path, rows: Iterable[Row], *, packed_above: float = math.inf) -> Path:
    """Write rows of any kind atomically; return the path written. Columns appear in the order in which rows first name
    them. Lists are written 20x40, dictionary entries as columns ``exact.8``, None as an empty cell. A file of more than
    ``packed_above`` bytes is compressed, as ``path`` + .gz. Raises UsageError without rows."""
    columns, flat = flatten_rows(rows)
    if not flat:
        raise UsageError(f"{path}: there are no rows to write")
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(map(row.get, columns) for row in flat)
    content, packed = text.getvalue().encode(), path.with_name(f"{path.name}.gz")
    target, other = (path, packed) if len(content) <= packed_above else (packed, path)
    write(target, content if target == path else gzip.compress(content, mtime=0))
    remove(other)
    return target


def flatten_rows(rows: Iterable[Row]) -> tuple[list[str], list[Row]]:
    """Return the columns in the order in which rows first name them, and the rows flattened for CSV (see
    ``write_csv``)."""
    flat = [_flat(row) for row in rows]
    return list(dict.fromkeys(name for names in dict.fromkeys(map(tuple, flat)) for name in names)), flat


def _flat(row: Row) -> dict[str, Any]:
    if NESTED.isdisjoint(map(type, row.values())):
        return row  # fast path: most rows are flat, and there may be 100,000 of them
    flat: dict[str, Any] = {}
    for name, value in row.items():
        kind = type(value)
        if kind is dict:
            flat |= {f"{name}.{key}": _plain(part) for key, part in value.items()}
        else:
            flat[name] = size_text(value) if kind in NESTED else value
    return flat


def _plain(value: Any) -> Any:
    return size_text(value) if isinstance(value, (list, tuple)) else value
