"""Read problems from a file: JSON Lines, CSV, or a Hugging Face data set on disk."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from lengthwise.base.errors import UsageError, quote_value
from lengthwise.base.extras import import_library
from lengthwise.base.files import format_error, is_folder, read_bytes
from lengthwise.base.rows import extract_windows, zero_after
from lengthwise.base.types import Problems, Purpose, Vocab, smallest_integer_type

PARTS: tuple[Purpose, ...] = get_args(Purpose)
TextForm = Literal["characters", "words", "grid"]  # what symbols are; "grid": characters of square grids
MAX_ERRORS = 20  # at most this many errors of a file are listed
# Similar characters that stand for white space and for the symbols that layouts reserve.
STAND_INS = {mark: chr(ord(mark) + 0xFEE0) for mark in "=$#^_"} | {" ": "␣", "\n": "␤", "\t": "␉"}
_TO_SYMBOLS, _TO_TEXT = str.maketrans(STAND_INS), str.maketrans({sign: mark for mark, sign in STAND_INS.items()})


class FileProblem(NamedTuple):
    """One problem of a file, with prompt and answer as ``to_symbols`` converts them."""

    prompt: str
    answer: str
    size: int
    rounds: int
    part: Purpose | None  # None: chosen by a hash of the prompt


@dataclass(frozen=True, eq=False)
class ProblemCollection:
    """The distinct problems of a file. Texts are stored one after the other, because one long prompt would make padded
    rows large."""

    symbols: tuple[str, ...]
    digest: str  # 16 hexadecimal digits of the SHA-256 of the file
    repeat_count: int  # number of problems that repeat an earlier one
    ids: Int[Tensor, " total"]  # of all texts, then as many zeros as the longest text has symbols
    start: Int[Tensor, "n 2"]  # index in ``ids`` of the first symbol of prompt and answer
    length: Int[Tensor, "n 2"]
    size: Int[Tensor, " n"]
    rounds: Int[Tensor, " n"]
    part: Int[Tensor, " n"]  # index in ``PARTS``
    row_by_prompt: Mapping[str, int]

    def build_problems(self, rows: Int[Tensor, " b"]) -> Problems:
        """Return the problems in these rows, in the given order."""
        start, length = self.start[rows], self.length[rows]
        longest = length.amax(0).tolist() if len(rows) else [0, 0]
        prompt, answer = (zero_after(extract_windows(self.ids, start[:, i], longest[i]), length[:, i]) for i in (0, 1))
        return Problems(self.size[rows, None], prompt, length[:, 0], answer, length[:, 1], self.rounds[rows])


def to_symbols(text: str, words: bool = False) -> str:
    """Convert a file's text to symbols: one character each or, with ``words``, words separated by single spaces."""
    return " ".join(word.translate(_TO_SYMBOLS) for word in text.split()) if words else text.translate(_TO_SYMBOLS)


def choose_form(*, words: bool, grid: bool) -> TextForm:
    """Return how a file's texts are read: as characters, words or a grid. Raises UsageError if both options are set."""
    if words and grid:
        raise UsageError("words and grid exclude each other: the symbols of a grid are characters")
    return "words" if words else "grid" if grid else "characters"


def join_lines(text: str, name: str) -> str:
    """Return the symbols of a square grid, row by row. Raises a UsageError that begins with ``name`` unless the
    text is a square grid with ``/`` between its lines."""
    lines = text.split("/")
    if any(len(line) != len(lines) for line in lines):
        raise UsageError(f"{name} must be a square grid with / between its lines, e.g. 12/34")
    return "".join(lines)


def to_text(symbols: str) -> str:
    """Convert symbols back to a file's text."""
    return symbols.translate(_TO_TEXT)


def read_collection(path: Path, split_ratio: tuple[int, int, int], form: TextForm = "characters") -> ProblemCollection:
    """Read a file's problems. In a file without a column ``split``, a hash of the prompt assigns each problem to
    training, validation or test in the proportions ``split_ratio``. Raises UsageError, with the line's number, for the
    first error."""
    files = sorted(path.rglob("*")) if is_folder(path) else [path]
    file_state = tuple((file.name, (status := file.stat()).st_mtime_ns, status.st_size) for file in files)
    return _read_cached(path, file_state, split_ratio, form)


def list_errors(path: Path, form: TextForm = "characters") -> list[str]:
    """Return up to ``MAX_ERRORS`` errors of a file, with their line numbers. Raises UsageError if the file cannot be
    read."""
    errors: list[str] = []
    _read_entries(path, errors, form)
    return errors


@lru_cache(maxsize=8)
def _read_cached(
    path: Path, file_state: tuple[Any, ...], split_ratio: tuple[int, int, int], form: TextForm
) -> ProblemCollection:
    """Read a file's problems, cached until ``file_state`` (the names, times and sizes of the files) changes."""
    entries, digest = _read_entries(path, None, form)
    distinct = list(dict.fromkeys(entries))
    texts = [text for entry in distinct for text in (entry.prompt, entry.answer)]
    if form == "words":
        split = [text.split() for text in texts]
        distinct_symbols, ids = np.unique([word for text in split for word in text], return_inverse=True)
        symbols = tuple(distinct_symbols.tolist())
    else:
        split, codes = texts, np.frombuffer("".join(texts).encode("utf-32-le"), dtype=np.uint32)
        distinct_symbols, ids = np.unique(codes, return_inverse=True)
        symbols = tuple(map(chr, distinct_symbols.tolist()))
    length, between = torch.tensor([*map(len, split)]).view(-1, 2), Vocab(symbols).separator
    small = torch.from_numpy(ids.reshape(-1)).to(smallest_integer_type(len(distinct_symbols)))
    return ProblemCollection(
        symbols=symbols,
        digest=digest,
        repeat_count=len(entries) - len(distinct),
        ids=torch.nn.functional.pad(small, (0, int(length.max()))),
        start=(length.flatten().cumsum(0) - length.flatten()).view(-1, 2),
        length=length,
        size=torch.tensor([entry.size for entry in distinct]),
        rounds=torch.tensor([entry.rounds for entry in distinct]),
        part=torch.tensor([_choose_part_index(entry, split_ratio) for entry in distinct]),
        row_by_prompt={entry.prompt.replace(" ", between): number for number, entry in enumerate(distinct)},
    )


def _choose_part_index(entry: FileProblem, split_ratio: tuple[int, int, int]) -> int:
    code = hashlib.blake2b(entry.prompt.encode(), digest_size=8).digest()
    hash_value = int.from_bytes(code, "little") % sum(split_ratio)
    return (
        PARTS.index(entry.part) if entry.part else (hash_value >= split_ratio[0]) + (hash_value >= sum(split_ratio[:2]))
    )


def _read_entries(path: Path, errors: list[str] | None, form: TextForm) -> tuple[list[FileProblem], str]:
    """Return a file's problems and its digest. Errors are appended to ``errors``; without such a list, the first error
    raises UsageError."""
    first_lines: dict[str, tuple[FileProblem, int]] = {}
    entries: list[FileProblem] = []
    try:
        content = b"" if is_folder(path) else read_bytes(path)
    except OSError as error:
        raise UsageError(f"{path}: this file of problems cannot be read ({error.strerror})") from None
    digest = hashlib.sha256(content)
    for number, row in _read_rows(path, content):
        if is_folder(path):
            digest.update(json.dumps(row, sort_keys=True, default=str).encode() + b"\n")
        try:
            entry = _read_entry(row, form)
            first, line = first_lines.setdefault(entry.prompt, (entry, number))
            if first != entry:
                raise UsageError(f"this prompt has another answer, size, rounds or split in line {line}")
            if entries and (entry.part is None) != (entries[0].part is None):
                raise UsageError("write split in every line or in no line")
        except UsageError as error:
            if errors is None:
                raise UsageError(f"{path}: line {number}: {error}") from None
            errors.append(f"line {number}: {error}")
            if len(errors) == MAX_ERRORS:
                break
        else:
            entries.append(entry)
    if not entries and not errors:
        raise UsageError(f"{path}: the file has no problems")
    return entries, digest.hexdigest()[:16]


def _read_rows(path: Path, content: bytes) -> Iterator[tuple[int, Any]]:
    """Yield each line's number, from 1, and its row; for a line that is not JSON, the row is a UsageError."""
    if is_folder(path):
        # A Hugging Face data set that ``save_to_disk`` wrote, with ``split`` if it has several.
        reason = f"{path}: reading a folder as a Hugging Face data set needs datasets"
        datasets = import_library("datasets", "datasets", reason)
        try:
            loaded = datasets.load_from_disk(str(path))
        except Exception as error:  # the library raises various errors for other folders
            raise UsageError(f"{path} is not a data set that save_to_disk wrote ({format_error(error)})") from None
        parts = loaded.items() if isinstance(loaded, Mapping) else [(None, loaded)]
        rows = ({**row, **({"split": name} if name else {})} for name, rows in parts for row in rows)
        yield from enumerate(rows, 1)
        return
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UsageError(f"{path}: line {line}: not UTF-8 text") from None
    if path.suffix.lower() == ".csv":
        reader = csv.DictReader(io.StringIO(text, newline=""), strict=True)
        try:
            for row in reader:
                yield reader.line_num, row
        except csv.Error as error:
            raise UsageError(f"{path}: line {reader.line_num}: {error}") from None
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield number, json.loads(line)
            except (ValueError, RecursionError) as error:
                yield number, UsageError(f"not JSON ({format_error(error)})")


def _read_entry(row: Any, form: TextForm) -> FileProblem:
    if isinstance(row, UsageError):
        raise row
    if not isinstance(row, Mapping):
        raise UsageError('not a JSON object; write {"prompt": "12+3", "answer": "15"}')
    prompt, answer = (_read_text(row, name, words=form == "words") for name in ("prompt", "answer"))
    if not prompt:
        raise UsageError("prompt must be text of one symbol or more")
    size = len(prompt.split() if form == "words" else prompt)
    if form == "grid":
        size = len(prompt.split("/"))
        prompt, answer = join_lines(prompt, "prompt"), join_lines(answer, "answer")
        if len(prompt) != len(answer):
            raise UsageError("answer must have as many lines as prompt")
        if _read_whole_number(row, "size", size) != size:
            raise UsageError(f"size must be the number of lines, {size}, or be omitted")
    size = _read_whole_number(row, "size", size)
    part = row.get("split") or None
    if part not in (None, *PARTS):
        raise UsageError(f"split must be one of {', '.join(PARTS)}, not {quote_value(part)}")
    return FileProblem(prompt, answer, size, _read_whole_number(row, "rounds", size), part)


def _read_text(row: Mapping[str, Any], name: str, *, words: bool) -> str:
    value = row.get(name)
    if type(value) is int:
        value = str(value)
    if not isinstance(value, str):
        raise UsageError(f"{name} " + ("is missing" if value is None else f"must be text, not {quote_value(value)}"))
    symbols = to_symbols(value, words)
    if to_text(symbols) != (" ".join(value.split()) if words else value) or not symbols.isprintable():
        invalid = next(mark for mark in value if mark in STAND_INS.values() or not to_symbols(mark).isprintable())
        raise UsageError(f"{name} holds {invalid!r}, which a problem cannot contain; use another character")
    return symbols


def _read_whole_number(row: Mapping[str, Any], name: str, default: int) -> int:
    value = row.get(name)
    if value in (None, ""):
        return default
    if isinstance(value, str) and value.isascii() and value.isdigit():  # from CSV
        value = int(value)
    if type(value) is not int or not 1 <= value <= 10**6:
        raise UsageError(f"{name} must be a whole number from 1 to a million, not {quote_value(value)}")
    return value
