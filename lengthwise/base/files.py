"""Read and write files safely, with one-line errors.

Files are replaced atomically or appended to, so a crash leaves at most one incomplete last line, which is ignored. A
folder may come from a stranger: writing follows no link in it, and reading has a size limit. No other module of the
package writes files; a test checks that.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from lengthwise.base import fields
from lengthwise.base.errors import UsageError, error_text, quote_value, remove_controls
from lengthwise.base.formatting import bytes_text

MAX_TEXT_BYTES = 2**28  # size of a JSON or JSON Lines file: about a hundred thousand rows
TEMPORARY_AGE_SECONDS = 600  # age from which a temporary file counts as abandoned
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.lengthwise-[0-9a-f-]{16,}", re.DOTALL)  # earlier versions added the process
# Flags that the system lacks count as 0. Without O_NONBLOCK, opening a pipe put in a file's place could block.
_OPEN_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


def write(path: Path, content: bytes, *, make_folder: bool = True) -> None:
    """Replace a file atomically; with ``make_folder``, create its folder if needed. Raises UsageError for a link."""
    with translate_disk_errors(path.parent):
        if make_folder:
            path.parent.mkdir(parents=True, exist_ok=True)
        check_no_link(path)
        remove_temporary_files(path.parent, path.name)
        # An unpredictable name, so that no one can place a link there first.
        part = path.with_name(f".{_shorten_name(path.name)}.lengthwise-{secrets.token_hex(8)}")
        try:
            with open(part, "xb", opener=_open) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


def append(path: Path, lines: bytes) -> int:
    """Append all lines to a file or none, after removing an incomplete last line. Return the file's size in bytes."""
    check_no_link(path)
    with open(path, "ab+", buffering=0, opener=_open) as file:
        state = os.fstat(file.fileno())
        _refuse_link(path, state)  # the file may have been replaced since the check
        _check_size(path, state.st_size + len(lines), MAX_TEXT_BYTES)
        size = file.seek(0, os.SEEK_END)
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
        return size + len(lines)


def remove(path: Path) -> None:
    """Remove a file if it exists; a link is removed, not its target. Raises UsageError if the system refuses."""
    with translate_disk_errors(path.parent):
        path.unlink(missing_ok=True)


def remove_empty_folder(folder: Path) -> None:
    """Remove a folder, unless it holds files or the system refuses."""
    with suppress(OSError):
        folder.rmdir()


def path_inside(folder: Path, *names: str) -> Path:
    """Return the path of ``names`` below a folder that the user named, which may be a link. Raises UsageError if a name
    below it is a link, which may lead out of it."""
    path = folder
    for name in filter(None, names):
        path = path / name
        if path.is_symlink() or getattr(os.path, "isjunction", lambda _: False)(path):
            raise UsageError(f"{path}: a link, and nothing is written through links; name its target")
    return path


def check_links_inside(folder: Path) -> Path:
    """Return a folder that a library may write to. Raises UsageError for a link that leads out, and for a hard link."""
    resolved = folder.resolve()
    with translate_disk_errors(folder):
        for path in (Path(parent, name) for parent, folders, files in os.walk(folder) for name in (*folders, *files)):
            state = path.lstat()
            leads_out = stat.S_ISLNK(state.st_mode) and not path.resolve().is_relative_to(resolved)
            if leads_out or stat.S_ISREG(state.st_mode):
                _refuse_link(path, state)
    return folder


def check_no_link(path: Path) -> None:
    """Raise UsageError if a file that is to be written is a link, has other hard links, or is not a regular file."""
    with suppress(OSError):  # a file that cannot be inspected cannot be written either
        _refuse_link(path, path.lstat())


def _refuse_link(path: Path, state: os.stat_result) -> None:
    if stat.S_ISLNK(state.st_mode):
        raise UsageError(f"{path}: a link, and nothing is written through links; replace it by a file, or delete it")
    if not stat.S_ISREG(state.st_mode):
        raise UsageError(f"{path}: not a regular file; remove it")
    if state.st_nlink > 1:
        raise UsageError(f"{path}: it has {state.st_nlink} hard links, so writing could change other files; copy it")


def _open(name: str, flags: int) -> int:
    return os.open(name, flags | _OPEN_FLAGS, 0o666)


def check_writable(option: str, path: Path) -> None:
    """Raise UsageError if the file named by an option cannot be written: before long work."""
    if is_folder(path):
        raise UsageError(f"{option} {path}: that is a folder; name a file in it")
    check_no_link(path)
    with translate_disk_errors(path.parent):
        existing = next(folder for folder in path.parents if folder.exists())
        with tempfile.TemporaryFile(dir=existing):
            pass


def write_json(path: Path, tree: Any) -> None:
    """Replace a JSON file atomically. Raises UsageError if the file cannot be written."""
    write(path, (json_text(tree, indent=1) + "\n").encode())


def write_json_rows(path: Path, rows: Iterable[Any]) -> None:
    """Replace a JSON file atomically by a list, with an entry per line. Raises UsageError if writing fails."""
    entries = ",\n".join(map(json_text, rows))
    write(path, f"[\n{entries}\n]\n".encode())


def json_text(tree: Any, indent: int | None = None) -> str:
    """Return standard JSON: NaN and infinity are written as null."""
    try:
        return json.dumps(tree, indent=indent, allow_nan=False)
    except ValueError:
        return json.dumps(_finite_or_null(tree), indent=indent, allow_nan=False)


def _finite_or_null(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _finite_or_null(part) for name, part in tree.items()}
    if isinstance(tree, list | tuple):
        return [_finite_or_null(part) for part in tree]
    return None if isinstance(tree, float) and not math.isfinite(tree) else tree


def check_regular(path: Path) -> Path:
    """Return the path. Raises UsageError if it is not a regular file, e.g. a pipe, which could block a reader."""
    if path.exists() and not path.is_file():
        raise UsageError(f"{path}: not a regular file; remove it")
    return path


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
    """Read a file. Raises UsageError if it exceeds ``max_bytes`` or is not regular, OSError if reading fails."""
    with check_regular(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        _check_size(path, size, max_bytes)
        return file.read(size)  # bounded: some system files have no end


def _check_size(path: Path, size: int, max_bytes: float) -> None:
    if size > max_bytes:
        raise UsageError(f"{path}: too large: {bytes_text(size)}; the limit is {bytes_text(max_bytes)}")


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
    """Parse a JSON object; NaN and infinity become None. Raises UsageError, naming ``source``, for other text."""
    try:
        tree = _DECODER.decode(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{source}: not JSON ({error_line(error)})") from None
    if not isinstance(tree, dict):
        raise UsageError(f"{source}: not a JSON object")
    return tree


def _parse_number(text: str) -> float | None:
    return value if math.isfinite(value := float(text)) else None


_DECODER = json.JSONDecoder(parse_float=_parse_number, parse_constant=_parse_number)  # earlier versions wrote NaN


def error_line(error: BaseException) -> str:
    """Return an error's message on one line, shortened."""
    return remove_controls(error_text(error))[:200]


def remove_temporary_files(folder: Path, name: str | None = None) -> None:
    """Remove files of ``write`` that killed processes left ten minutes ago or earlier: of all files, or of ``name``."""
    try:
        entries = [*os.scandir(folder)]
    except PermissionError:  # such a folder may still be writable
        return
    for entry in entries:
        match = _TEMPORARY.fullmatch(entry.name)
        if not match or (name is not None and match["name"] != _shorten_name(name)):
            continue
        with suppress(FileNotFoundError):
            state = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(state.st_mode) and state.st_mtime < time.time() - TEMPORARY_AGE_SECONDS:
                os.unlink(entry.path)


def _shorten_name(name: str) -> str:
    """Shorten a name to 150 bytes: file systems allow 255, and a temporary name is longer."""
    return name.encode(errors="surrogateescape")[:150].decode(errors="ignore")


@contextmanager
def translate_disk_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError in a ``with`` block into a UsageError about writing in ``folder``."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{folder}: cannot be written to ({error.strerror or error})") from None


def read_rows(schema: Any, path: Path, errors: list[UsageError] | None = None) -> list[dict[str, Any]]:
    """Return the rows of a JSON Lines file. All lines are first parsed as one list, which takes half the time; a file
    with a damaged row is then read line by line.

    Raises UsageError for a damaged row; if ``errors`` is given, such rows are left out and their errors are appended.
    """
    lines = read_bytes(path).split(b"\n")[:-1]
    with suppress(ValueError, RecursionError):
        rows = _DECODER.decode(f"[{b','.join(lines).decode()}]")
        if len(rows) == len(lines) and fields.are_valid_rows(schema, rows):
            return rows
    rows = []
    for number, line in enumerate(lines, 1):
        where = f"{path}: line {number}"
        try:
            rows.append(fields.decode(schema, parse_object(line, where), where))
        except UsageError as error:
            if errors is None:
                raise UsageError(f"{error}; delete that line") from None
            errors.append(error)
    return rows
