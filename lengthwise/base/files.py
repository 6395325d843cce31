"""Files, read and written so that a crash loses nothing, and what is damaged is said in one line.

Files are replaced atomically or appended to, so a crash leaves at most one incomplete last line, which is ignored.
"""

from __future__ import annotations

import errno
import json
import math
import os
import platform
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from typing import Any, BinaryIO

from lengthwise.base import fields
from lengthwise.base.errors import UsageError, clean, message_of, shown


def write(path: Path, content: bytes, *, make: bool = True) -> None:
    """Replace a file atomically; its folder is made if needed, or has to be there. Raises UsageError if it cannot be
    written."""
    with disk(path.parent):
        if make:
            path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path.parent)
        part = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}")
        try:
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """UsageError where nothing can be written in a folder, which is made if needed: asked before long work."""
    with disk(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass


def check_file(option: str, path: Path) -> None:
    """UsageError where a file that an option names cannot be written: asked before long work."""
    if is_folder(path):
        raise UsageError(f"{option} {path}: that is a folder; name a file in it")
    check_writable(path.parent)


def write_json(path: Path, tree: Any) -> None:
    """Replace a JSON file atomically. Raises UsageError if it cannot be written."""
    write(path, (json_text(tree, indent=1) + "\n").encode())


def json_text(tree: Any, indent: int | None = None) -> str:
    """JSON that any parser reads: what is not a finite number is null."""
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


def regular(path: Path) -> Path:
    """Return the path. Raises UsageError if it is there and no file: to read a pipe would take for ever."""
    if path.exists() and not path.is_file():
        raise UsageError(f"{path}: not a regular file; take it away")
    return path


def path_of(value: str | Path) -> Path:
    """What was passed as a path. Raises UsageError if it is none, or too long to be one."""
    if not isinstance(value, (str, Path)) or "\0" in str(value):
        raise UsageError(f"a name or a folder is needed, not {shown(value)}")
    try:
        Path(value).exists()
    except OSError as error:
        raise UsageError(f"{shown(str(value))}: no folder can be called so ({error.strerror})") from None
    return Path(value)


def is_folder(path: Path) -> bool:
    """Is there such a folder? No, where the system cannot say: a name may be too long, or a folder closed."""
    try:
        return path.is_dir()
    except OSError:
        return False


def read_text(path: Path) -> str:
    """Read a text file. Raises UsageError if it cannot be read."""
    try:
        return regular(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"{path.parent}: its {path.name} cannot be read ({reason})") from None


def read_tree(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises UsageError if the file cannot be read or holds something else."""
    return parsed(read_text(path), str(path))


def parsed(text: str | bytes, where: str) -> dict[str, Any]:
    """A JSON object, its numbers that are not finite as null. Raises UsageError, with ``where`` it stands, if it is
    something else."""
    try:
        tree = _DECODER.decode(text if isinstance(text, str) else text.decode())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON ({one_line(error)})") from None
    if not isinstance(tree, dict):
        raise UsageError(f"{where}: not a JSON object")
    return tree


def _number(text: str) -> float | None:
    return value if math.isfinite(value := float(text)) else None


_DECODER = json.JSONDecoder(parse_float=_number, parse_constant=_number)  # earlier versions wrote NaN


def one_line(error: BaseException) -> str:
    """An error's message, shortened to one line."""
    return clean(message_of(error))[:200]


def cut_short(file: BinaryIO) -> bool:
    """Whether a file's last line is incomplete."""
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read() != b"\n"


def added(file: BinaryIO, text: bytes) -> int:
    """Write at a file's end, all or nothing: a full disk may take the beginning. The file's size."""
    size = file.seek(0, os.SEEK_END)
    try:
        if file.write(text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        file.truncate(size)
        raise
    return size + len(text)


def sweep(folder: Path) -> None:
    """Remove what is left of files whose writers were killed on this machine."""
    for part in folder.glob(f".*.{escape(platform.node())}.*"):
        if part.suffix[1:].isdigit() and not _alive(int(part.suffix[1:])):
            part.unlink(missing_ok=True)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


@contextmanager
def disk(folder: Path) -> Iterator[None]:
    """UsageError where the system cannot write in a folder."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{folder}: cannot write there ({error.strerror or error})") from None


def read_rows(schema: Any, path: Path, damaged: list[UsageError] | None = None) -> list[dict[str, Any]]:
    """The rows of a file: as one list, which is read in half the time; line by line where one has to be named.

    Raises UsageError for a damaged row; if ``damaged`` is given, such rows are left out, and their errors appended to
    it.
    """
    lines = path.read_bytes().split(b"\n")[:-1]
    with suppress(ValueError, RecursionError):
        rows = _DECODER.decode(f"[{b','.join(lines).decode()}]")
        if len(rows) == len(lines) and fields.all_fit(schema, rows):
            return rows
    rows = []
    for number, line in enumerate(lines, 1):
        where = f"{path}: line {number}"
        try:
            rows.append(fields.decode(schema, parsed(line, where), where))
        except UsageError as error:
            if damaged is None:
                raise UsageError(f"{error}; take that line out") from None
            damaged.append(error)
    return rows
