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

A language model that was asked has ``runs/ask-<model>-<task>-<id>/``:

    asked.json          the inquiry, and its outline
    replies.jsonl       the replies, a row per prompt
    scores.jsonl        exact match, a row per size for which every prompt has a reply

Files are replaced atomically or appended to, so a crash leaves at most one incomplete last line, which is ignored. No
file can run code. This module does not import torch; ``run`` loads recipes and weights.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

from lengthwise.base import fields
from lengthwise.base.errors import UsageError
from lengthwise.base.results import InquiryOutline, RunOutline

SHIPPED = Path(__file__).parent / "weights"


def runs_folder() -> Path:
    """The folder of all runs."""
    return Path(os.environ.get("LENGTHWISE_RUNS", "runs"))


def shipped() -> list[str]:
    """The names of the weights that come with the package."""
    return sorted(path.parent.name for path in SHIPPED.glob("*/config.json"))


# Files


def write(path: Path, content: bytes) -> None:
    """Replace a file atomically. Raises UsageError if it cannot be written."""
    with _disk(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}")
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
    write(path, (json.dumps(tree, indent=1) + "\n").encode())


def read_text(path: Path) -> str:
    """Read a text file. Raises UsageError if it cannot be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"{path.parent}: its {path.name} cannot be read ({reason})") from None


def read_tree(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises UsageError if the file cannot be read or holds something else."""
    text = read_text(path)
    try:
        tree = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON ({one_line(error)})") from None
    if not isinstance(tree, dict):
        raise UsageError(f"{path}: not a JSON object")
    return tree


def one_line(error: Exception) -> str:
    """An error's message, shortened to one line."""
    return clean(str(error))[:200]


def clean(text: str) -> str:
    """Foreign text that can be printed on one line: control characters, escape sequences with them, are left out."""
    return "".join(character for character in " ".join(text.split()) if character.isprintable())


def _cut_short(file: BinaryIO) -> bool:
    """Whether a file's last line is incomplete."""
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read() != b"\n"


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"{folder}: cannot write there ({error.strerror or error})") from None


# Folders


class Folder:
    """A folder with JSON Lines files, one row per line, to which rows are appended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"

    def append(self, name: str, *rows: dict[str, Any]) -> None:
        """Append rows to ``<name>.jsonl``; an incomplete last line is removed first."""
        with _disk(self.folder), (self.folder / f"{name}.jsonl").open("ab+") as file:
            if _cut_short(file):
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
            file.write("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode())

    def rows(self, name: str) -> list[dict[str, Any]]:
        """All rows of ``<name>.jsonl``, without an incomplete last line; empty if there is no file. Raises UsageError
        if a line is not a JSON object."""
        path = self.folder / f"{name}.jsonl"
        try:
            rows = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
        except FileNotFoundError:
            return []
        except ValueError as error:
            raise UsageError(f"{path}: a line is not JSON ({one_line(error)})") from None
        if not all(isinstance(row, dict) for row in rows):
            raise UsageError(f"{path}: a line is not a row")
        return rows


class RunFolder(Folder):
    """A run's folder: rows of ``metrics``, ``scores``, ``depth`` and ``anatomy``, and the recipe as plain values."""

    @contextmanager
    def locked(self, *, wait: bool = False) -> Iterator[None]:
        """A context in which no other process works on this run. UsageError where one does already, unless to ``wait``
        for it. The system frees the lock of a process that has ended, however it did; on a network file system it
        reaches as far as that system's own locks do."""
        from filelock import FileLock, Timeout  # late: only training needs it

        lock, owner = FileLock(self.folder / ".lock", is_singleton=True), self.folder / ".owner"
        with _disk(self.folder):
            try:
                lock.acquire(timeout=-1 if wait else 0)
            except Timeout:
                who = owner.read_text(errors="replace") if owner.exists() else "another process"
                raise UsageError(f"{self.folder}: {clean(who)} works on this run; --wait waits for it") from None
        try:
            with _disk(self.folder):
                owner.write_text(f"process {os.getpid()} on {platform.node()}")
            yield
        finally:
            if lock.lock_counter == 1:  # the outermost of nested calls
                owner.unlink(missing_ok=True)
            lock.release()

    @property
    def done(self) -> bool:
        """True if training has ended."""
        return (self.folder / "model.safetensors").exists()

    def config(self) -> dict[str, Any]:
        """The recipe as plain values. Raises UsageError if it cannot be read."""
        return read_tree(self.folder / "config.json")

    @cached_property
    def outline(self) -> RunOutline:
        """The facts of the recipe that a report shows, from about.json once the run is done."""
        if kept := self._about().get("outline"):
            return fields.decode(RunOutline, kept, f"{self.folder / 'about.json'}: outline")
        # For unfinished runs and folders of earlier versions, the recipe's classes compute them: they import torch.
        from lengthwise.recipe.outline import outline
        from lengthwise.recipe.recipe import Recipe

        return outline(Recipe.read(read_text(self.folder / "config.json")))

    def about(self) -> dict[str, Any]:
        """Versions, commit, device and time of a finished run; empty before. Raises UsageError if it is damaged."""
        return {name: value for name, value in self._about().items() if name != "outline"}

    def describe(self, about: dict[str, Any]) -> None:
        """Write about.json."""
        write_json(self.folder / "about.json", about | {"outline": fields.encode(self.outline)})

    def _about(self) -> dict[str, Any]:
        path = self.folder / "about.json"
        return read_tree(path) if path.exists() else {}

    def cut(self, name: str, step: int) -> None:
        """Remove the rows of steps after ``step``, which a resumed run will log again. Raises UsageError if a row has
        no step."""
        rows = self.rows(name)
        if not all(isinstance(row.get("step"), int) for row in rows):
            raise UsageError(f"{self.folder / name}.jsonl: a row has no step")
        kept = [json.dumps(row) + "\n" for row in rows if row["step"] <= step]
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
