"""Read and write files safely, with one-line errors.

Files are replaced atomically or appended to, so a crash leaves at most one incomplete last line, which is ignored. A
folder may come from a stranger: files that are links are replaced or refused, not followed, and reading has a size
limit. No other module of the package writes files; a test checks that.
"""

from __future__ import annotations

import errno
import glob
import json
import math
import os
import secrets
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lengthwise.base.errors import UsageError, quote_value, remove_controls
from lengthwise.base.formatting import format_bytes
from lengthwise.base.schemas import validate_row

MAX_TEXT_BYTES = 2**28  # size of a JSON or JSON Lines file: about a hundred thousand rows
TEMPORARY_AGE_SECONDS = 600  # age from which a temporary file counts as abandoned


def write(path: Path, content: bytes, *, make_folder: bool = True) -> None:
    """Replace a file atomically; with ``make_folder``, create its folder if needed."""
    with translate_disk_errors(path.parent):
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        remove_temporary_files(path.parent, glob.escape(path.name))
        part = path.with_name(f".{path.name}.lengthwise-{secrets.token_hex(8)}")
        try:
            with open(part, "xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


def append(path: Path, lines: bytes) -> None:
    """Append all lines or, if that fails, none; remove an incomplete last line first. Raises OSError for a link."""
    with open(path, "ab+", buffering=0, opener=_open_without_links) as file:
        size = file.seek(0, os.SEEK_END)
        _check_size(path, size + len(lines), MAX_TEXT_BYTES)
        file.seek(max(0, size - 1))
        if file.read() not in (b"", b"\n"):
            file.seek(0)
            size = file.truncate(file.read().rfind(b"\n") + 1)
        try:
            if file.write(lines) < len(lines):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:  # e.g. the disk is full: remove the part that was written
            file.truncate(size)
            raise


def remove(path: Path) -> None:
    """Remove a file if it exists; a link is removed, not its target. Raises UsageError if the system refuses."""
    with translate_disk_errors(path.parent):
        path.unlink(missing_ok=True)


def remove_empty_folder(folder: Path) -> None:
    """Remove a folder if it is empty and the system permits it."""
    with suppress(OSError):
        folder.rmdir()


def _open_without_links(name: str, flags: int) -> int:
    return os.open(name, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def check_writable(option: str, path: Path) -> None:
    """Raise UsageError, before long work, if the file ``path`` that ``option`` names cannot be written."""
    if is_folder(path):
        raise UsageError(f"{option} {path}: that is a folder; name a file in it")
    with translate_disk_errors(path.parent):
        existing = next(folder for folder in path.parents if folder.exists())
        with tempfile.TemporaryFile(dir=existing):
            pass


def write_json(path: Path, tree: Any) -> None:
    """Replace a JSON file atomically. Raises UsageError if the file cannot be written."""
    write(path, (format_json(tree, indent=1) + "\n").encode())


def write_json_rows(path: Path, rows: Iterable[Any]) -> None:
    """Replace a JSON file atomically by a list, one entry per line. Raises UsageError if the file cannot be written."""
    entries = ",\n".join(map(format_json, rows))
    write(path, f"[\n{entries}\n]\n".encode())


def format_json(tree: Any, indent: int | None = None) -> str:
    """Return standard JSON: NaN and infinity are written as null."""
    try:
        return json.dumps(tree, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_replace_non_finite(tree), indent=indent, allow_nan=False)


def _replace_non_finite(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _replace_non_finite(part) for name, part in tree.items()}
    if isinstance(tree, list | tuple):
        return [_replace_non_finite(part) for part in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def to_path(value: str | Path) -> Path:
    """Return an argument as a path. Raises UsageError if the path is invalid or too long."""
    if not isinstance(value, (str, Path)) or "\0" in str(value):
        raise UsageError(f"give a name or a path, not {quote_value(value)}")
    try:
        Path(value).exists()
    except OSError as error:
        raise UsageError(f"{quote_value(str(value))}: not a valid path ({error.strerror})") from None
    return Path(value)


def is_folder(path: Path) -> bool:
    """Return whether the folder exists; False if the system cannot tell, e.g. because a name is too long."""
    try:
        return path.is_dir()
    except OSError:
        return False


def read_bytes(path: Path, max_bytes: float = MAX_TEXT_BYTES) -> bytes:
    """Read a file. Raises UsageError if it exceeds ``max_bytes``, OSError if reading fails."""
    _check_size(path, path.stat().st_size, max_bytes)
    return path.read_bytes()


def _check_size(path: Path, size: int, max_bytes: float) -> None:
    if size > max_bytes:
        raise UsageError(f"{path}: too large: {format_bytes(size)}; the limit is {format_bytes(max_bytes)}")


def read_text(path: Path) -> str:
    """Read a text file. Raises UsageError if the file cannot be read."""
    try:
        return read_bytes(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise UsageError(f"{path}: cannot be read ({reason})") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises UsageError if the file cannot be read or holds something else."""
    return parse_object(read_text(path), str(path))


def parse_object(text: str | bytes, source: str) -> dict[str, Any]:
    """Parse a JSON object. Raises UsageError, naming ``source``, for other text."""
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source}: not JSON ({format_error(error)})") from None
    if not isinstance(tree, dict):
        raise UsageError(f"{source}: not a JSON object")
    return tree


def format_error(error: BaseException) -> str:
    """Return an error's message on one line, shortened."""
    return remove_controls(str(error))[:200]


def remove_temporary_files(folder: Path, name: str = "*") -> None:
    """Remove temporary files of ``name``, a pattern, that killed processes left more than ten minutes ago."""
    for path in folder.glob(f".{name}.lengthwise-{'?' * 16}"):
        with suppress(OSError):
            if path.stat().st_mtime < time.time() - TEMPORARY_AGE_SECONDS:
                path.unlink()


@contextmanager
def translate_disk_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError in a ``with`` block into a UsageError about writing in ``folder``."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written to ({error.strerror or error})") from None


def read_rows(schema: Any, path: Path) -> list[dict[str, Any]]:
    """Return the rows of a JSON Lines file. Raises UsageError for a damaged row."""
    rows = []
    for number, line in enumerate(read_bytes(path).split(b"\n")[:-1], 1):
        where = f"{path}: line {number}"
        try:
            rows.append(validate_row(schema, parse_object(line, where), where))
        except UsageError as error:
            raise UsageError(f"{error}; delete that line") from None
    return rows
