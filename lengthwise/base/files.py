"""Read and write files: a crash loses nothing, nothing is written outside a folder, and every error is one line.

Files are replaced atomically or appended to, so a crash leaves at most one incomplete last line, which is ignored. A
folder may come from a stranger, so no link in it is followed for writing, and no file is read without a bound. This is
the only module of the package that writes files; a test checks that.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import platform
import re
import secrets
import stat
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

from lengthwise.base import fields
from lengthwise.base.errors import UsageError, clean, message_of, quote_value
from lengthwise.base.quantities import DAY, bytes_text

MAX_TEXT_BYTES = 2**28  # of a file of rows or of JSON: some hundred thousand times a usual row
TEMPORARY_AGE = DAY  # seconds from which on a temporary file is a remnant, wherever its writer ran
# The name of a temporary file: the file that it becomes, and where, by which process and in which call it was made.
_TEMPORARY = re.compile(
    r"\.(?P<name>.+)\.lengthwise-(?P<place>[0-9a-f]{12})-(?P<process>\d{1,10})-[0-9a-f]{16}", re.DOTALL
)
# What a system lacks is 0. Without O_NONBLOCK a pipe that stands where a file was could be waited for.
_FLAGS = sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


def write(path: Path, content: bytes, *, make: bool = True) -> None:
    """Replace a file atomically; its folder is made if needed, or has to be there. Raises UsageError if it cannot be
    written, or is a link."""
    with disk(path.parent):
        if make:
            path.parent.mkdir(parents=True, exist_ok=True)
        check_no_link(path)
        sweep(path.parent, path.name)
        part = path.with_name(_temporary_name(path.name))
        try:
            with open(part, "xb", opener=_open) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


def append(path: Path, text: bytes) -> int:
    """Add lines at a file's end, all or none; an incomplete last line is removed first. Return the file's size, bytes.
    Raises UsageError if the file is a link or too large, OSError if it cannot be written."""
    check_no_link(path)
    with open(path, "ab+", buffering=0, opener=_open) as file:
        state = os.fstat(file.fileno())
        _refuse_link(path, state)  # another may have been put there meanwhile
        _check_size(path, state.st_size + len(text), MAX_TEXT_BYTES)
        if ends_incomplete(file):
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
        return append_text(file, text)


def remove(path: Path) -> None:
    """Remove a file if it is there; of a link, the link alone. Raises UsageError if the system does not let it go."""
    with disk(path.parent):
        path.unlink(missing_ok=True)


def inside(folder: Path, *names: str) -> Path:
    """Return the path of ``names`` below a folder that the user named. The folder may be a link, or lie below one;
    raises UsageError if a name below it is a link: it would lead out."""
    path = folder
    for name in filter(None, names):
        path = path / name
        if path.is_symlink() or getattr(os.path, "isjunction", lambda _: False)(path):
            raise UsageError(f"{path}: a link, and nothing is written through links; name the folder that it leads to")
    return path


def check_tree(folder: Path) -> Path:
    """Return a folder that a library writes to by itself. Raises UsageError if a link in it leads out of it, or a file
    has other hard links."""
    where = folder.resolve()
    with disk(folder):
        for path in (Path(at, name) for at, folders, files in os.walk(folder) for name in (*folders, *files)):
            state = path.lstat()
            leads_out = stat.S_ISLNK(state.st_mode) and not path.resolve().is_relative_to(where)
            if leads_out or stat.S_ISREG(state.st_mode):
                _refuse_link(path, state)
    return folder


def check_no_link(path: Path) -> None:
    """Raise UsageError if a file that is to be written is a link, has other hard links, or is no regular file."""
    with suppress(OSError):  # where it cannot be looked at, it cannot be written either
        _refuse_link(path, path.lstat())


def _refuse_link(path: Path, state: os.stat_result) -> None:
    if stat.S_ISLNK(state.st_mode):
        raise UsageError(f"{path}: a link, and nothing is written through links; put a file there, or delete it")
    if not stat.S_ISREG(state.st_mode):
        raise UsageError(f"{path}: not a regular file; take it away")
    if state.st_nlink > 1:
        raise UsageError(f"{path}: it has {state.st_nlink} hard links, so writing could change other files; copy it")


def _open(name: str, flags: int) -> int:
    return os.open(name, flags | _FLAGS, 0o666)


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
    check_no_link(path)
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
        raise UsageError(f"a name or a folder is needed, not {quote_value(value)}")
    try:
        Path(value).exists()
    except OSError as error:
        raise UsageError(f"{quote_value(str(value))}: no folder can be called so ({error.strerror})") from None
    return Path(value)


def is_folder(path: Path) -> bool:
    """Is there such a folder? No, where the system cannot say: a name may be too long, or a folder closed."""
    try:
        return path.is_dir()
    except OSError:
        return False


def read_bytes(path: Path, most: float = MAX_TEXT_BYTES) -> bytes:
    """Read a file of at most ``most`` bytes. Raises UsageError if it is larger or no regular file, OSError if it cannot
    be read."""
    with regular(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        _check_size(path, size, most)
        return file.read(size)  # no further: of what looks like a file some, as the system's own, have no end


def _check_size(path: Path, size: int, most: float) -> None:
    if size > most:
        raise UsageError(f"{path}: too large, {bytes_text(size)}: at most {bytes_text(most)} are read")


def read_text(path: Path) -> str:
    """Read a text file. Raises UsageError if it cannot be read."""
    try:
        return read_bytes(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"{path.parent}: its {path.name} cannot be read ({reason})") from None


def read_tree(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises UsageError if the file cannot be read or holds something else."""
    return parse_object(read_text(path), str(path))


def parse_object(text: str | bytes, where: str) -> dict[str, Any]:
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


def ends_incomplete(file: BinaryIO) -> bool:
    """Whether a file's last line is incomplete."""
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read() != b"\n"


def append_text(file: BinaryIO, text: bytes) -> int:
    """Write at a file's end, all or nothing: a full disk may take the beginning. The file's size."""
    size = file.seek(0, os.SEEK_END)
    try:
        if file.write(text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        file.truncate(size)
        raise
    return size + len(text)


def sweep(folder: Path, name: str | None = None) -> None:
    """Remove temporary files of killed writers, all or those of one file. Only what is named as ``write`` names them is
    touched, and only if its process is known to have ended, or it is a day old."""
    try:
        entries = [*os.scandir(folder)]
    except PermissionError:  # such a folder may still be written to
        return
    for entry in entries:
        named = _TEMPORARY.fullmatch(entry.name)
        if named and (name is None or named["name"] == _shorten_name(name)):
            with suppress(FileNotFoundError):
                state = entry.stat(follow_symlinks=False)
                ended = named["place"] == _place() and not _alive(int(named["process"]))
                if stat.S_ISREG(state.st_mode) and (ended or state.st_mtime < time.time() - TEMPORARY_AGE):
                    os.unlink(entry.path)


def _temporary_name(name: str) -> str:
    """A name that nobody can foresee, so that nothing can be put there before."""
    return f".{_shorten_name(name)}.lengthwise-{_place()}-{os.getpid()}-{secrets.token_hex(8)}"


def _shorten_name(name: str) -> str:
    """A name of at most 150 bytes: file systems allow 255, and a temporary file's says more."""
    return name.encode(errors="surrogateescape")[:150].decode(errors="ignore")


@cache
def _place() -> str:
    """Tell where process numbers mean the same: on this machine since it was started, in this container. Machines and
    containers may share a disk, and have the same name."""
    told = [platform.node()]
    try:
        told += [Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii"), os.readlink("/proc/self/ns/pid")]
    except OSError:  # not Linux
        told.append(str(uuid.getnode()))
    return hashlib.blake2b("\n".join(told).encode(errors="replace"), digest_size=6).hexdigest()


def _alive(process: int) -> bool:
    if os.name == "nt":  # where signal 0 is Ctrl-C
        return True
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
    lines = read_bytes(path).split(b"\n")[:-1]
    with suppress(ValueError, RecursionError):
        rows = _DECODER.decode(f"[{b','.join(lines).decode()}]")
        if len(rows) == len(lines) and fields.all_fit(schema, rows):
            return rows
    rows = []
    for number, line in enumerate(lines, 1):
        where = f"{path}: line {number}"
        try:
            rows.append(fields.decode(schema, parse_object(line, where), where))
        except UsageError as error:
            if damaged is None:
                raise UsageError(f"{error}; take that line out") from None
            damaged.append(error)
    return rows
