"""Folders of results as plain data. Only this module and ``run``, which reads and writes weights and checkpoints,
depend on the names of the files.

A run is ``runs/<name>-<id>/`` (or under ``$LENGTHWISE_RUNS``):

    config.json         the recipe             } together a folder of weights, in the Hugging Face layout
    model.safetensors   the trained weights    } (written at the end of training)
    metrics.jsonl       training metrics, a row per logged step
    scores.jsonl        evaluation scores, a row per size, kind of problems and stopping rule
    depth.jsonl         accuracy after every loop, a row per size
    anatomy.jsonl       error analyses, a row per size
    code.json           hashes of the user-defined classes that the run was trained with, if there are any
    state.pt            the checkpoint, until training ends
    final.pt            the state at the end of training, if requested (--keep-state)
    about.json          versions, commit, device, time; and the recipe's outline
    tracked-*.json      number of rows sent to a tracker
    failed.json         why training or evaluation last failed, and whether training diverged

An inquiry to a language model is ``runs/ask-<model>-<task>-<id>/``:

    asked.json          the inquiry and its outline
    replies.jsonl       the replies, a row per prompt
    scores.jsonl        exact match, a row per size whose prompts all have a reply

Beside them, ``.operations.json`` caches the operations per training step of recipes, which ``report`` measures once.

No file can run code, and no file is written through a link. This module does not import torch; ``run`` loads recipes
and weights.
"""

from __future__ import annotations

import json
import os
import platform
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from lengthwise import __version__
from lengthwise.base import fields
from lengthwise.base.errors import UsageError, remove_controls
from lengthwise.base.files import (
    append,
    is_folder,
    read_json_object,
    read_rows,
    read_text,
    remove,
    remove_temporary_files,
    to_path,
    translate_disk_errors,
    write,
    write_json,
)
from lengthwise.base.results import InquiryOutline, RunOutline
from lengthwise.base.schemas import ROW_SCHEMAS, AboutFile

DIVERGED = "diverged"  # the verdict on a run whose loss became NaN or infinite
OPERATIONS_FILE = ".operations.json"
SHIPPED_FOLDER = Path(__file__).parents[1] / "weights"
_FileState = tuple[int, int, int]  # a file's size, inode and time of change: they differ after any change to the file


def get_runs_folder() -> Path:
    """Return the folder of all runs. Raises UsageError if LENGTHWISE_RUNS names the home of an unknown user."""
    name = os.environ.get("LENGTHWISE_RUNS") or "runs"
    try:
        return Path(name).expanduser()
    except RuntimeError:
        raise UsageError(f"LENGTHWISE_RUNS={name}: there is no such home folder") from None


def require_run(name: str | Path) -> Path:
    """Return the folder of an existing run, given its path or name. Raises UsageError if there is none."""
    if path := find_run(name):
        return path
    raise UsageError(f"{name}: there is no such run; `lengthwise list` shows all runs")


def find_run(name: str | Path) -> Path | None:
    """Return the folder at the path ``name`` or, if there is none, the folder of the run with this name; None if
    neither exists."""
    return next((path for path in (to_path(name), get_runs_folder() / name) if is_folder(path)), None)


def check_is_run(folder: Path) -> None:
    """Raise UsageError if a folder holds no recipe; the message names folders inside that do."""
    if (folder / "config.json").exists():
        return
    for kind, kinds, file in (("run", "runs", "config.json"), ("folder of results", "folders of results", "runs.json")):
        if inside := sorted(path.parent for path in folder.glob(f"*/{file}")):
            held = f"one {kind}: name" if len(inside) == 1 else f"{len(inside)} {kinds}: name one or more, e.g."
            raise UsageError(f"{folder} is not a run's folder; it holds {held} {inside[0]}")
    raise UsageError(f"{folder} is not a run's folder: it has no config.json")


def find_inquiry(name: str | Path) -> Path | None:
    """Return the folder of an inquiry to a language model, given its path or name; None if there is no such folder."""
    paths = (Path(name), get_runs_folder() / name)
    return next((path for path in paths if is_folder(path) and (path / "asked.json").is_file()), None)


def list_shipped_weights() -> list[str]:
    """Return the names of the shipped weights, which come with the package."""
    return sorted(path.parent.name for path in SHIPPED_FOLDER.glob("*/config.json"))


class Folder:
    """Base class of folders of JSON Lines files to which rows are appended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Called with the name and the rows after each append.
        self.listeners: list[Callable[[str, Sequence[dict[str, Any]]], None]] = []
        self._cache: dict[str, tuple[_FileState, list[dict[str, Any]]]] = {}  # by name: a file's state and its rows

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"

    def append(self, name: str, *rows: dict[str, Any]) -> None:
        """Append rows to ``<name>.jsonl``, all or none, after removing an incomplete last line. Raises UsageError if
        the disk is full."""
        path = self.folder / f"{name}.jsonl"
        try:
            text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode()
        except ValueError:  # JSON has neither infinity nor NaN
            raise UsageError(f"{path}: a measured number is not finite: do the weights hold NaN?") from None
        with translate_disk_errors(self.folder):
            before = _read_file_state(path)
            append(path, text)
        cached_state, cached_rows = self._cache.get(name, (None, []))
        state = _read_file_state(path)
        # A map of thousands of cells is appended row by row: do not read the whole file again for each.
        if before and state and before == cached_state and state[0] == before[0] + len(text):
            self._cache[name] = state, [*cached_rows, *map(json.loads, text.splitlines())]
        for listener in self.listeners:
            listener(name, rows)

    def append_new(self, name: str, *rows: dict[str, Any]) -> None:
        """Append only those rows that are not in ``<name>.jsonl`` yet: repeated measurements give equal rows."""
        stored = self.rows(name)
        distinct = {json.dumps(row, sort_keys=True): row for row in rows}
        if new := [row for text, row in distinct.items() if json.loads(text) not in stored]:
            self.append(name, *new)

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the complete rows of ``<name>.jsonl``; an empty list if there is no such file. Raises UsageError for a
        row that does not fit its schema, or that does not have one size per axis of the task."""
        path = self.folder / f"{name}.jsonl"
        try:
            state = _read_file_state(path)
            if state and (name not in self._cache or self._cache[name][0] != state):
                rows = read_rows(ROW_SCHEMAS[name], path)
                check_axes(rows, self.axes, f"{path}: line")
                self._cache[name] = state, rows
            return [*self._cache[name][1]] if state else []
        except FileNotFoundError:
            return []
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror})") from None

    def axes(self) -> Sequence[str]:
        """Return the names of the task's axes; empty if the task is unknown."""
        with suppress(UsageError):  # damaged, or a part is not imported: code that needs the outline reports it
            outline: RunOutline | InquiryOutline | None = getattr(self, "outline", None)
            return outline.axes if outline else ()
        return ()

    @contextmanager
    def lock(self, *, wait: bool = False, folder_kind: str = "run") -> Iterator[None]:
        """Keep other processes from working on this folder during a ``with`` block. If a process already works on the
        folder, raise UsageError or, with ``wait``, wait until it has ended. The system releases the lock when
        its process ends, even by a crash. A network file system locks across machines only if it supports locks."""
        from filelock import FileLock, Timeout  # imported late, because only training needs it

        path, owner = self.folder / ".lock", self.folder / ".owner"
        lock = FileLock(path, is_singleton=True)
        # filelock warns where the system has no locks
        with translate_disk_errors(self.folder), warnings.catch_warnings(action="ignore"):
            try:
                lock.acquire(timeout=-1 if wait else 0)
            except Timeout:
                holder = remove_controls(read_text(owner) if owner.exists() else "another process")
                advice = "; --wait (in Python wait=True) waits for it" if folder_kind == "run" else ""
                raise UsageError(f"{self.folder}: {holder} works on this {folder_kind}{advice}") from None
        try:
            write(owner, f"process {os.getpid()} on {platform.node()}".encode())
            with translate_disk_errors(self.folder):
                remove_temporary_files(self.folder)
            yield
        finally:
            if lock.lock_counter == 1:  # the outermost of nested calls
                remove(owner)
            lock.release()

    def clear_cache(self) -> None:
        """Delete cached rows, which are read again when needed: the rows of many runs do not fit in memory."""
        self._cache.clear()


def _read_file_state(path: Path) -> _FileState | None:
    """Return a file's size, inode and time of change; None if there is no such file."""
    try:
        state = path.stat()
    except FileNotFoundError:
        return None
    return state.st_size, state.st_ino, state.st_mtime_ns


def check_axes(rows: Sequence[Mapping[str, Any]], axes: Callable[[], Sequence[str]], location: str) -> None:
    """Raise UsageError if a row does not have one size for each axis of the task. The message begins with ``location``
    and the row's number."""
    sized = [(number, row["sizes"]) for number, row in enumerate(rows, 1) if "sizes" in row]
    names = axes() if sized else ()
    for number, sizes in sized if names else ():
        if len(sizes) != len(names):
            requirement = f"sizes must be {len(names)} ({', '.join(names)}), not {len(sizes)}"
            raise UsageError(f"{location} {number}: {requirement}; delete that line")


class RunFolder(Folder):
    """The folder of a run: rows of ``metrics``, ``scores``, ``depth`` and ``anatomy``, and the recipe's plain
    values."""

    @property
    def done(self) -> bool:
        """True if training has ended."""
        return (self.folder / "model.safetensors").exists()

    @property
    def continue_advice(self) -> str:
        """Advice, for error messages, on how to continue the training of this run."""
        is_among_runs = self.folder.resolve().parent == get_runs_folder().resolve()
        return f"`lengthwise train {self.folder}` continues it" if is_among_runs else "repeat the call that trained it"

    @property
    def measure_advice(self) -> str:
        """Advice, for error messages, on how to get scores of this run, which has none."""
        if self.done or self.diverged:
            return "`lengthwise evaluate RUN` measures a run"
        return f"its training has not ended; {self.continue_advice}"

    @property
    def failure_file(self) -> Path:
        """The file that records the last failure. It is deleted when training starts again."""
        return self.folder / "failed.json"

    def record_failure(self, reason: str, verdict: str = "") -> None:
        """Store why the run failed, and a ``verdict``: ``DIVERGED``, or empty for other failures."""
        write_json(self.failure_file, {"reason": reason, "verdict": verdict})

    def clear_failure(self) -> None:
        """Delete the record of an earlier failure."""
        remove(self.failure_file)

    @property
    def diverged(self) -> bool:
        """True if the loss became NaN or infinite in training."""
        verdict = read_json_object(self.failure_file).get("verdict") if self.failure_file.exists() else None
        return bool(self._read_about().get("diverged")) or verdict == DIVERGED

    @property
    def is_run(self) -> bool:
        """True if the folder belongs to a run, so that scores are saved in it. Folders of weights alone, such as
        shipped weights, are never changed."""
        return (self.folder / "metrics.jsonl").exists()

    def config(self) -> dict[str, Any]:
        """Return the recipe as plain values. Raises UsageError if it cannot be read."""
        return read_json_object(self.folder / "config.json")

    @cached_property
    def outline(self) -> RunOutline:
        """The facts of the recipe that a report shows, from about.json once the run is done."""
        if stored := self._read_about().get("outline"):
            return self._validate(RunOutline, stored, "outline")
        # For unfinished runs and earlier versions' folders, compute it from the recipe, which imports torch.
        from lengthwise.experiment.recipe import Recipe, build_outline

        text = read_text(path := self.folder / "config.json")
        try:
            return build_outline(Recipe.read(text))
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None

    def about(self) -> dict[str, Any]:
        """Return versions, commit, device and time of a finished run, from about.json; empty if training has not ended.
        Raises UsageError if the file is damaged."""
        about = {name: value for name, value in self._read_about().items() if name != "outline"}
        return self._validate(AboutFile, about, "it") if about else {}

    def _validate(self, kind: Any, value: Any, location: str) -> Any:
        path = self.folder / "about.json"
        try:
            return fields.decode(kind, value, f"{path}: {location}")
        except UsageError as error:
            raise UsageError(f"{error}; delete {path.name}, which a report does not need") from None

    def write_about(self, about: dict[str, Any]) -> None:
        """Write about.json: versions, commit, device and time, and the recipe's outline."""
        write_json(self.folder / "about.json", about | {"outline": fields.encode(self.outline)})

    def _read_about(self) -> dict[str, Any]:
        path = self.folder / "about.json"
        return read_json_object(path) if path.exists() else {}

    def remove_rows_after(self, name: str, step: int) -> None:
        """Remove rows of steps after ``step`` from ``<name>.jsonl``: a resumed run logs these steps again."""
        lines = [json.dumps(row) + "\n" for row in self.rows(name) if row["step"] <= step]
        write(self.folder / f"{name}.jsonl", "".join(lines).encode())


class InquiryFolder(Folder):
    """The folder of an inquiry to a language model: the inquiry itself, and rows of ``replies`` and ``scores``."""

    def config(self) -> dict[str, Any]:
        """Return the inquiry as plain values. Raises UsageError if it cannot be read."""
        return {name: value for name, value in self._read_inquiry().items() if name != "outline"}

    @cached_property
    def outline(self) -> InquiryOutline:
        """The facts of the inquiry that a report shows. Raises UsageError if an earlier version wrote the folder."""
        path = f"{self.folder / 'asked.json'}: outline"
        return fields.decode(InquiryOutline, self._read_inquiry().get("outline"), path)

    def _read_inquiry(self) -> dict[str, Any]:
        return read_json_object(self.folder / "asked.json")


# The cache of operations per training step


def read_operations() -> dict[str, float]:
    """Return the cached operations per training step of recipes, by ``seedless_id``; empty if another version measured
    them."""
    try:
        cached = read_json_object(get_runs_folder() / OPERATIONS_FILE)
        operations = cached.get("operations") if cached.get("lengthwise") == __version__ else {}
        return fields.decode(dict[str, float], operations)
    except UsageError:  # no file, or a damaged one
        return {}


def cache_operations(operations: Mapping[str, float]) -> None:
    """Add operations per training step of recipes, by ``seedless_id``, to the cache, if the folder of runs exists and
    is writable."""
    if not get_runs_folder().is_dir():
        return
    with suppress(UsageError):
        operations = read_operations() | {**operations}
        write_json(get_runs_folder() / OPERATIONS_FILE, {"lengthwise": __version__, "operations": operations})
