"""Folders of results as plain data: the only code that reads and writes them, except weights and checkpoints (``run``).

A run is ``runs/<name>-<id>/`` (or under ``$LENGTHWISE_RUNS``):

    config.json         the recipe             } together a folder of weights, in the Hugging Face layout
    model.safetensors   the trained weights    } (written at the end of training)
    metrics.jsonl       training metrics, a row per line
    scores.jsonl        evaluation scores, a row per line
    depth.jsonl         accuracy after every loop, a row per size
    anatomy.jsonl       error analyses, a row per size
    state.pt            the checkpoint, until training ends
    about.json          versions, commit, device, time; and the recipe's outline
    tracked-*.json      how many rows a tracker was sent
    failed.json         why training, or what follows it, failed the last time; and the verdict, if there is one

A language model that was asked has ``runs/ask-<model>-<task>-<id>/``:

    asked.json          the inquiry, and its outline
    replies.jsonl       the replies, a row per prompt
    scores.jsonl        exact match, a row per size for which every prompt has a reply

Beside them, ``.operations.json`` keeps what a training step of recipes costs, which ``report`` measures once.

Files are replaced atomically or appended to, so a crash leaves at most one incomplete last line, which is ignored. No
file can run code. This module does not import torch; ``run`` loads recipes and weights.
"""

from __future__ import annotations

import errno
import json
import math
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from glob import escape
from pathlib import Path
from typing import Any, BinaryIO

from lengthwise.base import fields
from lengthwise.base.errors import UsageError, clean, shown
from lengthwise.base.results import InquiryOutline, RunOutline
from lengthwise.base.schemas import ROWS, About

DIVERGED = "diverged"  # the verdict on a training whose loss is no number any more
SHIPPED = Path(__file__).parent / "weights"


def runs_folder() -> Path:
    """The folder of all runs."""
    return Path(os.environ.get("LENGTHWISE_RUNS", "runs"))


def run_path(name: str | Path) -> Path:
    """The folder of an existing run, by its path or its name among the runs. Raises UsageError if there is none."""
    for path in (path_of(name), runs_folder() / name):
        if is_folder(path):
            return path
    raise UsageError(f"{name}: there is no such run; `lengthwise list` shows those that are there")


def shipped() -> list[str]:
    """The names of the weights that come with the package."""
    return sorted(path.parent.name for path in SHIPPED.glob("*/config.json"))


# Files


def write(path: Path, content: bytes, *, make: bool = True) -> None:
    """Replace a file atomically; its folder is made if needed, or has to be there. Raises UsageError if it cannot be
    written."""
    with _disk(path.parent):
        if make:
            path.parent.mkdir(parents=True, exist_ok=True)
        _sweep(path.parent)
        part = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}")
        try:
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


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
    """The same path. Raises UsageError if it is there and no file: to read a pipe would take for ever."""
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


def one_line(error: Exception) -> str:
    """An error's message, shortened to one line."""
    return clean(str(error))[:200]


def _cut_short(file: BinaryIO) -> bool:
    """Whether a file's last line is incomplete."""
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read() != b"\n"


def _added(file: BinaryIO, text: bytes) -> int:
    """Write at a file's end, all or nothing: a full disk may take the beginning. The file's size."""
    size = file.seek(0, os.SEEK_END)
    try:
        if file.write(text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    except OSError:
        file.truncate(size)
        raise
    return size + len(text)


def _sweep(folder: Path) -> None:
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
def _disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"{folder}: cannot write there ({error.strerror or error})") from None


def _rows(schema: Any, path: Path) -> list[dict[str, Any]]:
    """The rows of a file: as one list, which is read in half the time; line by line where one has to be named."""
    lines = path.read_bytes().split(b"\n")[:-1]
    with suppress(ValueError, RecursionError):
        rows = _DECODER.decode(f"[{b','.join(lines).decode()}]")
        if len(rows) == len(lines) and fields.all_fit(schema, rows):
            return rows
    return [_row(schema, line, f"{path}: line {number}") for number, line in enumerate(lines, 1)]


def _row(schema: Any, line: bytes, where: str) -> dict[str, Any]:
    try:
        return fields.decode(schema, parsed(line, where), where)
    except UsageError as error:
        raise UsageError(f"{error}; take that line out") from None


# Folders


class Folder:
    """A folder with JSON Lines files, one row per line, to which rows are appended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._written: dict[str, int] = {}  # bytes that files had after the last append
        # They are told of rows that were appended.
        self.listeners: list[Callable[[str, Sequence[dict[str, Any]]], None]] = []
        self._read: dict[str, tuple[object, list[dict[str, Any]]]] = {}  # rows as they were read, and from which state

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"

    def append(self, name: str, *rows: dict[str, Any]) -> None:
        """Append rows to ``<name>.jsonl``, all or none; an incomplete last line is removed first. Raises UsageError if
        the disk is full, or rows that were appended before have vanished."""
        path = regular(self.folder / f"{name}.jsonl")
        text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()
        with _disk(self.folder):
            if self._written.get(name, 0) > (path.stat().st_size if path.exists() else 0):
                raise UsageError(
                    f"{path}: rows have vanished while others were added; put the file back, or go on without"
                )
            with path.open("ab+", buffering=0) as file:
                if _cut_short(file):
                    file.seek(0)
                    file.truncate(file.read().rfind(b"\n") + 1)
                self._written[name] = _added(file, text)
        for hear in self.listeners:
            hear(name, rows)

    def keep(self, name: str, *rows: dict[str, Any]) -> None:
        """Append those rows that are not there yet: what is measured again comes out the same."""
        known = {json.dumps(row, sort_keys=True) for row in self.rows(name)}
        if new := [row for row in rows if json.dumps(row, sort_keys=True) not in known]:
            self.append(name, *new)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Whole rows of ``<name>.jsonl``; none without a file. Raises UsageError for one not as ``schemas`` has it."""
        path = regular(self.folder / f"{name}.jsonl")
        try:
            state = path.stat()
            now = state.st_ino, state.st_size, state.st_mtime_ns
            if name not in self._read or self._read[name][0] != now:
                self._read[name] = now, _rows(ROWS[name], path)
            return [*self._read[name][1]]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror})") from None

    def forget(self) -> None:
        """Read rows again when they are next asked for: who watches many runs has no room for all."""
        self._read.clear()


class RunFolder(Folder):
    """A run's folder: rows of ``metrics``, ``scores``, ``depth`` and ``anatomy``, and the recipe as plain values."""

    @contextmanager
    def locked(self, *, wait: bool = False) -> Iterator[None]:
        """A context in which no other process works on this run. UsageError where one does already, unless to ``wait``
        for it. The system frees the lock of a process that has ended, however it did; on a network file system it
        reaches as far as that system's own locks do."""
        from filelock import FileLock, Timeout  # late: only training needs it

        lock = FileLock(regular(self.folder / ".lock"), is_singleton=True)
        owner = regular(self.folder / ".owner")
        with _disk(self.folder):
            try:
                lock.acquire(timeout=-1 if wait else 0)
            except Timeout:
                who = owner.read_text(errors="replace") if owner.exists() else "another process"
                raise UsageError(f"{self.folder}: {clean(who)} works on this run; --wait waits for it") from None
        try:
            with _disk(self.folder):
                owner.write_text(f"process {os.getpid()} on {platform.node()}")
                _sweep(self.folder)
            yield
        finally:
            if lock.lock_counter == 1:  # the outermost of nested calls
                owner.unlink(missing_ok=True)
            lock.release()

    @property
    def done(self) -> bool:
        """True if training has ended."""
        return (self.folder / "model.safetensors").exists()

    def fail(self, reason: str, verdict: str = "") -> None:
        """Keep why the run failed, and its ``verdict``: diverged, or none."""
        write_json(self.folder / "failed.json", {"reason": reason, "verdict": verdict})

    def forgive(self) -> None:
        """Forget an earlier failure."""
        with _disk(self.folder):
            (self.folder / "failed.json").unlink(missing_ok=True)

    @property
    def diverged(self) -> bool:
        """True if training ended, or went on, with a loss that is no number."""
        failed = self.folder / "failed.json"
        return bool(self._about().get("diverged") or (failed.exists() and read_tree(failed).get("verdict") == DIVERGED))

    def config(self) -> dict[str, Any]:
        """The recipe as plain values. Raises UsageError if it cannot be read."""
        return read_tree(self.folder / "config.json")

    @cached_property
    def outline(self) -> RunOutline:
        """The facts of the recipe that a report shows, from about.json once the run is done."""
        if kept := self._about().get("outline"):
            return self._held(RunOutline, kept, "outline")
        # For unfinished runs and folders of earlier versions, the recipe's classes compute them: they import torch.
        from lengthwise.recipe.outline import outline
        from lengthwise.recipe.recipe import Recipe

        return outline(Recipe.read(read_text(self.folder / "config.json")))

    def about(self) -> dict[str, Any]:
        """Versions, commit, device and time of a finished run; empty before. Raises UsageError if it is damaged."""
        about = {name: value for name, value in self._about().items() if name != "outline"}
        return self._held(About, about, "it") if about else {}

    def _held(self, kind: Any, value: Any, where: str) -> Any:
        path = self.folder / "about.json"
        try:
            return fields.decode(kind, value, f"{path}: {where}")
        except UsageError as error:
            raise UsageError(f"{error}; delete {path.name}: a report does without it") from None

    def describe(self, about: dict[str, Any]) -> None:
        """Write about.json."""
        write_json(self.folder / "about.json", about | {"outline": fields.encode(self.outline)})

    def _about(self) -> dict[str, Any]:
        path = self.folder / "about.json"
        return read_tree(path) if path.exists() else {}

    def cut(self, name: str, step: int) -> None:
        """Remove the rows of steps after ``step``, which a resumed run will log again."""
        rows = self.rows(name)
        kept = [json.dumps(row) + "\n" for row in rows if row["step"] <= step]
        self._written.pop(name, None)
        write(self.folder / f"{name}.jsonl", "".join(kept).encode())


class InquiryFolder(Folder):
    """The folder of an asked language model: rows of ``replies`` and ``scores``, and the inquiry as plain values."""

    def config(self) -> dict[str, Any]:
        """The inquiry as plain values. Raises UsageError if it cannot be read."""
        return {name: value for name, value in self._asked().items() if name != "outline"}

    @cached_property
    def outline(self) -> InquiryOutline:
        """The facts of the inquiry that a report shows. Raises UsageError if an earlier version wrote the folder."""
        return fields.decode(InquiryOutline, self._asked().get("outline"), f"{self.folder / 'asked.json'}: outline")

    def _asked(self) -> dict[str, Any]:
        return read_tree(self.folder / "asked.json")
