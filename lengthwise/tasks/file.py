"""A task whose problems are read from a file."""

from __future__ import annotations

import json
import math
import operator
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor

from lengthwise.base.files import format_error, to_path, write
from lengthwise.base.ranges import OneLine, Pattern, Size
from lengthwise.base.types import Problems, Purpose, UsageError
from lengthwise.tasks import Task, UnknownAnswerError, parse_symbols, problem_file, separate_lines


@dataclass(frozen=True)
class File(Task):
    """Problems from a file: JSON Lines or CSV with the columns prompt and answer, or a Hugging Face data set on disk.

    Optional columns: ``size``, by default the number of symbols of the prompt; ``rounds``, T(n) for looped models, by
    default the size; ``split``: train, validation or test, by default decided by a hash of the prompt. Symbols are the
    characters of the texts or, with ``words``, their words. In training, a size without problems is replaced by a
    random size of the file, up to the largest requested size; in evaluation it is an error. A recipe's id depends on
    the digest, not on the path.
    """

    path: OneLine = field(metadata={"identity": False})  # a file, or a folder that save_to_disk wrote
    digest: Annotated[str, Pattern("[0-9a-f]{16}|", "16 hexadecimal digits")] = ""  # content hash; empty: computed
    shares: tuple[Size, Size, Size] = (10, 2, 1)  # training : validation : test, if there is no column ``split``
    words: bool = False  # symbols are words, separated by spaces, not characters
    grid: bool = False  # prompts and answers are square grids, with / between lines; the size is the number of lines
    final_after: OneLine = ""  # symbol after whose last occurrence an answer's final part begins
    purpose: Literal["all", "train", "validation", "test"] = field(
        default="all", metadata={"shown": False}
    )  # whose problems are drawn

    is_collection = True

    def __post_init__(self) -> None:
        super().__post_init__()
        path = to_path(os.path.expanduser(self.path))  # unlike Path.expanduser, leaves unknown users as they are
        # On another machine, the file may be in the working folder instead.
        path = path if path.exists() or not Path(path.name).exists() else Path(path.name)
        if not path.exists():
            raise UsageError(f"task: {path}: there is no such file of problems")
        object.__setattr__(self, "path", str(path.resolve()))
        digest = self.collection.digest
        if self.digest not in ("", digest):
            advice = "restore that file, or use the new one: task=File(path=…)"
            raise UsageError(f"task: {path}: its digest is {digest}, but the recipe's file had {self.digest}: {advice}")
        object.__setattr__(self, "digest", digest)
        object.__setattr__(self, "final_after", problem_file.to_symbols(self.final_after))
        if self.final_after and self.final_after not in self.writes:
            final_after = problem_file.to_text(self.final_after)
            raise UsageError(f"task: {path}: final_after={final_after}: no answer contains this symbol")

    @staticmethod
    def of(rows: Iterable[Mapping[str, Any]], path: str | Path) -> File:
        """Write problems to a JSON Lines file at ``path``, and return the file's task. ``rows`` are dictionaries with
        "prompt" and "answer", or a Hugging Face data set. Raises UsageError if a row is not a problem."""
        try:  # numpy's numbers have an index
            lines = [json.dumps(dict(row), ensure_ascii=False, default=operator.index) + "\n" for row in rows]
        except (TypeError, ValueError) as error:
            advice = "as frame.to_dict('records') returns for a data frame"
            raise UsageError(f"rows must be dicts with prompt and answer, {advice} ({format_error(error)})") from None
        write(to_path(path), "".join(lines).encode())
        return File(str(path))

    @cached_property
    def collection(self) -> problem_file.ProblemCollection:
        """All problems of the file."""
        form = problem_file.choose_form(words=self.words, grid=self.grid)
        return problem_file.read_collection(Path(self.path), self.shares, form)

    def shape(self, size: Sequence[int]) -> tuple[int, int] | None:
        return (size[0], size[0]) if self.grid else None

    @property
    def name(self) -> str:
        stem = re.sub(r"[^a-z0-9]+", "-", Path(self.path).stem.lower()).strip("-") or "file"
        return f"{stem[:60]}-{self.digest[:6]}"

    @property
    def symbols(self) -> tuple[str, ...]:  # type: ignore[override]
        return self.collection.symbols

    @cached_property
    def _symbol_counts(self) -> Int[Tensor, "2 s"]:
        """The number of times that each symbol occurs in prompts (row 0) and in answers (row 1)."""
        length, ids = self.collection.length.flatten(), self.collection.ids
        is_answer = torch.arange(2).repeat(len(length) // 2).repeat_interleave(length).bool()
        ids = ids[: len(is_answer)].long()
        return torch.stack([ids[part].bincount(minlength=len(self.symbols)) for part in (~is_answer, is_answer)])

    @cached_property
    def reads(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.symbols[i] for i in self._symbol_counts[0].nonzero()[:, 0].tolist())

    @cached_property
    def writes(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(self.symbols[i] for i in self._symbol_counts[1].nonzero()[:, 0].tolist())

    @property
    def chance(self) -> float:
        """The fraction of answer symbols that equal the most frequent one."""
        return float(self._symbol_counts[1].max() / max(1, int(self._symbol_counts[1].sum())))

    @cached_property
    def answers_each_symbol(self) -> bool:  # type: ignore[override]
        return bool((self.collection.length[:, 0] == self.collection.length[:, 1]).all())

    @property
    def listed_sizes(self) -> Sequence[int]:
        return self._rows_by_size[1].tolist()

    @property
    def smallest(self) -> int:  # type: ignore[override]
        return self.listed_sizes[0]

    @property
    def largest(self) -> int:  # type: ignore[override]
        return self.listed_sizes[-1]

    def select_part(self, purpose: Purpose) -> Task:
        return _build_part(self, purpose)

    @property
    def _is_in_part(self) -> Bool[Tensor, " n"]:
        """A mask of the problems for ``purpose``."""
        part = self.collection.part
        return part >= 0 if self.purpose == "all" else part == problem_file.PARTS.index(self.purpose)

    @cached_property
    def _rows_by_size(self) -> tuple[Int[Tensor, " n"], Int[Tensor, " s"], Int[Tensor, " s"]]:
        """The indices of the problems for ``purpose``, ordered by size; their distinct sizes; each size's number of
        problems."""
        rows = self._is_in_part.nonzero()[:, 0]
        size = self.collection.size[rows]
        return rows[size.sort(stable=True).indices], *size.unique(return_counts=True)

    def replace_missing_sizes(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Int[Tensor, "b axes"]:
        return sizes  # ``sample`` replaces them

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        rows, listed_sizes, counts = self._rows_by_size
        first = counts.cumsum(0) - counts
        index = torch.searchsorted(listed_sizes, super().replace_missing_sizes(sizes, generator)[:, 0])
        drawn = torch.empty_like(index)
        for number in index.unique().tolist():
            same_size = index == number
            drawn[same_size] = first[number] + _draw_shuffled(int(same_size.sum()), int(counts[number]), generator)
        return self.collection.build_problems(rows[drawn])

    def sample_natural(self, count: int, low: int, high: int, generator: Generator) -> Problems:
        rows = self._rows_by_size[0]
        rows = rows[(self.collection.size[rows] >= low) & (self.collection.size[rows] <= high)]
        if not len(rows):
            raise UsageError(f"{self.name} has no problems of sizes {low} to {high}")
        return self.collection.build_problems(rows[_draw_shuffled(count, len(rows), generator)])

    def enumerate(self, size: Sequence[int], limit: int) -> Problems | None:
        rows = self._rows_by_size[0]
        rows = rows[self.collection.size[rows] == size[0]]
        return self.collection.build_problems(rows) if len(rows) <= limit else None

    def parse(self, text: str) -> Problems:
        symbols = problem_file.to_symbols(text, self.words)
        if self.grid:
            symbols = problem_file.join_lines(symbols, f"{self.name}: a prompt")
        row = self.collection.row_by_prompt.get(symbols.replace(" ", self.vocab.separator))
        if row is not None and self._is_in_part[row]:
            return self.collection.build_problems(torch.tensor([row]))
        prompt, collection = parse_symbols(self, symbols), self.collection
        unknown = f"{self.name}: {text[:60]!r} is not a prompt of the file, so its answer is unknown"
        counts_symbols = torch.equal(collection.size ** (1 + self.grid), collection.length[:, 0])
        if not counts_symbols or not torch.equal(collection.size, collection.rounds):
            raise UsageError(f"{unknown}, and so are its size and rounds, which only the file defines")
        length = torch.tensor([len(prompt)])
        size = torch.tensor([math.isqrt(len(prompt))]) if self.grid else length
        count = length if self.answers_each_symbol else self.answer_slots(size[:, None]).clamp(max=1)
        answer = torch.zeros(1, int(count), dtype=torch.long)
        raise UnknownAnswerError(unknown, Problems(size[:, None], prompt[None], length, answer, count, size))

    def to_text(self, prompt: Int[Tensor, " p"]) -> str:
        text = problem_file.to_text((" " if self.words else "").join(self.symbols[i] for i in prompt.tolist()))
        return separate_lines(text, math.isqrt(len(text))) if self.grid else text

    def format(self, answer: Int[Tensor, " a"]) -> str:
        return self.to_text(answer)

    @property
    def question(self) -> str:
        return f"Answer as the problems of {Path(self.path).name} are answered."

    def reference(self, prompt: str) -> str:
        problems = self.collection.build_problems(torch.tensor([self.collection.row_by_prompt[prompt]]))
        return self.vocab.decode(problems.answer[0])

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        sizes_in_file, longest = self._longest_answers
        return longest[(torch.searchsorted(sizes_in_file, sizes[:, 0], right=True) - 1).clamp(min=0)]

    @cached_property
    def _longest_answers(self) -> tuple[Int[Tensor, " s"], Int[Tensor, " s"]]:
        """The sizes in the file and, for each size, the length of the longest answer up to this size."""
        sizes, index = self.collection.size.unique(return_inverse=True)
        longest = torch.zeros_like(sizes).scatter_reduce_(0, index, self.collection.length[:, 1], "amax")
        return sizes, longest.cummax(0).values


@cache
def _build_part(task: File, purpose: Purpose) -> File:
    """Return the task with only the problems for ``purpose``; results are cached. Raises UsageError if there are
    none."""
    part = replace(task, purpose=purpose)
    if not part._is_in_part.any():
        raise UsageError(f"{task.name}: no problem falls into the {purpose} part: add problems, or change shares")
    return part


def _draw_shuffled(count: int, limit: int, generator: Generator) -> Int[Tensor, " count"]:
    """Draw ``count`` integers below ``limit``: every integer once before any is drawn again."""
    return torch.cat([torch.randperm(limit, generator=generator) for _ in range(0, count, limit)])[:count]
