"""Tasks draw problems, independently of models. The catalog finds every task in this folder."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.fields import Config, to_kebab_case
from lengthwise.base.formatting import format_ranges
from lengthwise.base.rows import zero_after
from lengthwise.base.types import Problems, Purpose, UsageError, Vocab, smallest_integer_type
from lengthwise.tasks.family import Family, Pattern, RowSampler, enumerate_rows, select_patterns


class UnknownAnswerError(UsageError):
    """Raised by ``parse`` for a valid prompt whose right answer is unknown. ``problem`` holds the prompt and a
    placeholder answer."""

    def __init__(self, message: str, problem: Problems) -> None:
        super().__init__(message)
        self.problem = problem


class Task(Config):
    """A kind of problem, such as addition, in all sizes. Subclasses are frozen dataclasses whose fields configure the
    task.

    A problem has one size per name in ``axes``; reports draw scores as a curve if there is one axis, and as a map if
    there are two. Sizes range from ``smallest`` to ``largest`` on each axis; a task that lacks some sizes lists the
    valid sizes in ``listed_sizes``, in ascending order, such as range(3, 300, 3) or (4, 8, 16).
    """

    symbols: tuple[str, ...]  # all symbols that prompts and answers may contain
    signs: tuple[str, ...] = ()  # symbols between numbers
    mirrored: bool = False  # numbers have opposite digit orders in prompts and answers
    axes: tuple[str, ...] = ("length",)
    smallest: int = 1  # set from ``listed_sizes``, as ``largest`` is, unless ``listed_sizes`` is a property
    largest: int | None = None  # None: no limit
    listed_sizes: Sequence[int] | None = None
    is_collection: bool = False  # a fixed collection of problems, which ``select_part`` splits
    harder: str = "hard"  # name of the harder set, which is one of the families
    reads: tuple[str, ...] = ()  # symbols that may occur in prompts; (): all symbols
    writes: tuple[str, ...] = ()  # symbols that may occur in answers; (): all symbols
    answers_each_symbol: bool = False  # the i-th symbol of an answer belongs to the i-th symbol of its prompt
    final_after: str = ""  # symbol after whose last occurrence an answer's final part begins; "": no final part
    answers_numbers: bool = False  # answers are numbers, equal if they differ only in leading zeros
    patterns: tuple[Callable[..., Any], ...] = ()  # functions that define families, see ``draw_pattern``

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Raise UsageError for ``listed_sizes`` that do not ascend."""
        super().__init_subclass__(**keywords)
        if isinstance(listed := vars(cls).get("listed_sizes"), Sequence):
            if not listed or listed[0] < 1 or any(b <= a for a, b in pairwise(listed)):
                raise UsageError(f"{cls.__name__}.listed_sizes must ascend from 1 or more, e.g. range(3, 300, 3)")
            cls.smallest, cls.largest = listed[0], listed[-1]

    @property
    def name(self) -> str:
        return to_kebab_case(type(self).__name__)

    @property
    def chance(self) -> float:
        """The accuracy per symbol of random guessing: by default 1 / the number of answer symbols, as papers compute
        it. ``File`` overrides it with the fraction of the most frequent answer symbol."""
        return 1 / len(self.writes or self.symbols)

    @abstractmethod
    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        """Draw one problem per row of ``sizes``, without a Python loop over rows."""

    def sample_hard(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        """Draw problems of these sizes from the task's harder set. Raises UsageError if the task has no such set."""
        raise UsageError(f"{self.name} has no harder set of problems")

    @property
    def has_harder_set(self) -> bool:
        """Whether the class defines ``sample_hard``."""
        return type(self).sample_hard is not Task.sample_hard

    @property
    def families(self) -> Sequence[Family]:
        """The task's families: kinds of structured problems that uniform sampling rarely draws but people often type.
        By default, these are the harder set, if there is one, and one family per function in ``patterns``."""
        hard = Family(self.harder, "The harder set that training may draw from.", self.sample_hard)
        return (
            *([hard] if self.has_harder_set else []),
            *(Family.from_function(pattern, partial(self.draw_pattern, pattern)) for pattern in self.patterns),
        )

    def draw_pattern(self, pattern: Callable[..., Any], sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        """Draw one problem of a pattern per row of ``sizes``. A task with ``patterns`` must define this method."""
        raise NotImplementedError

    def list_smallest_sizes(self, count: int) -> Sequence[int]:
        """Return the ``count`` smallest sizes, or all if there are fewer."""
        if self.listed_sizes is not None:
            return self.listed_sizes[:count]
        end = self.smallest + count
        return range(self.smallest, end if self.largest is None else min(end, self.largest + 1))

    def round_to_valid_size(self, size: int) -> int:
        """Return the largest valid size up to ``size``, else the smallest; without ``listed_sizes``, ``size``
        itself."""
        listed = self.listed_sizes
        return size if listed is None else max((valid for valid in listed if valid <= size), default=listed[0])

    def replace_missing_sizes(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Int[Tensor, "b axes"]:
        """Replace sizes that ``listed_sizes`` lacks by random listed sizes, up to the largest of ``sizes``."""
        if self.listed_sizes is None:
            return sizes
        valid = torch.tensor(self.listed_sizes)
        index = torch.searchsorted(valid, sizes).clamp(max=len(valid) - 1)
        valid_count = max(1, int(torch.searchsorted(valid, int(sizes.max()), right=True)))
        replacement = torch.randint(valid_count, sizes.shape, generator=generator)
        return torch.where(valid[index] == sizes, sizes, valid[replacement])

    def select_part(self, purpose: Purpose) -> Task:
        """Return a task that has only the problems for ``purpose``. By default, return the task itself; fixed
        collections of problems override this."""
        return self

    def enumerate(self, size: Sequence[int], limit: int) -> Problems | None:
        """Return each problem of one size once, or None if there are more than ``limit``. By default, return None."""
        return None

    def sample_natural(self, count: int, low: int, high: int, generator: Generator) -> Problems:
        """Draw ``count`` problems from the task's own distribution over sizes from ``low`` to ``high``: by default,
        uniform sizes on every axis. Raises UsageError if the task lacks such sizes."""
        self.check_natural_sizes(count, low, high)
        valid = torch.tensor([size for size in self.listed_sizes or range(low, high + 1) if low <= size <= high])
        return self.sample(valid[torch.randint(len(valid), (count, len(self.axes)), generator=generator)], generator)

    def check_natural_sizes(self, count: int, low: int, high: int) -> None:
        """Raise UsageError if ``count`` is below 1, or the task lacks sizes from ``low`` to ``high``."""
        if count < 1:
            raise UsageError(f"{self.name}: count must be 1 or more, not {count}")
        if not self.smallest <= low <= high:
            raise UsageError(f"{self.name}: sizes must ascend from {self.smallest} or more, not {low} to {high}")
        if self.listed_sizes is not None and not any(low <= size <= high for size in self.listed_sizes):
            raise UsageError(f"{self.name} has no problems of sizes {low} to {high}")

    @abstractmethod
    def parse(self, text: str) -> Problems:
        """Read one problem from typed text. Raises UsageError if the text is not a problem."""

    def format(self, answer: Int[Tensor, " a"]) -> str:
        """Return an answer as people read it: by default, its symbols."""
        return self.vocab.decode(answer)

    def to_text(self, prompt: Int[Tensor, " p"]) -> str:
        """Return a prompt as people type it, so that ``parse`` reads it back: by default, its symbols."""
        return self.vocab.decode(prompt)

    @property
    def question(self) -> str:
        """The instruction for a prompt, in one or two sentences that also explain the answer's form. By default, the
        first sentence of the class's docstring; raises UsageError if there is none."""
        about = type(self).__doc__ or ""
        if not about or about.startswith(f"{type(self).__name__}("):  # the default docstring of dataclasses
            raise UsageError(f"{self.name}: its class has no docstring: describe the problem there, or in `question`")
        return re.split(r"(?<=[.?])\s", " ".join(about.split("\n\n")[0].split()))[0]

    @abstractmethod
    def reference(self, prompt: str) -> str:
        """Compute the answer by the simplest algorithm; prompt and answer are in the task's symbols and order."""

    @abstractmethod
    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        """Return the largest number of symbols of an answer at these sizes, independent of the true answer's length."""

    def shape(self, size: Sequence[int]) -> tuple[int, int] | None:
        """Return the numbers of lines and columns of prompts of this size, or None if prompts are not grids. Grids are
        written line after line."""
        return None

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        """Return a dictionary of properties that may make problems of one size hard, each with a number per problem. By
        default, there are none."""
        return {}

    @property
    def vocab(self) -> Vocab:
        return Vocab(self.symbols)


class SequenceTask(Task):
    """A task whose prompts are n symbols, drawn uniformly from ``reads`` or, if ``reads`` is empty, from
    ``symbols``."""

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        count, width = len(self.reads or self.symbols), int(sizes.max())
        rows = torch.randint(count, (len(sizes), width), generator=generator, dtype=smallest_integer_type(count))
        return self.from_rows(sizes, zero_after(self._to_ids(rows), sizes[:, 0]))

    def _to_ids(self, rows: Int[Tensor, "b p"]) -> Int[Tensor, "b p"]:
        """Convert indices in ``reads`` to symbol ids. If ``reads`` is empty, return the rows unchanged."""
        return rows if not self.reads else self.vocab.encode(self.reads).to(rows.dtype)[rows.long()]

    def parse(self, text: str) -> Problems:
        row = parse_symbols(self, text)
        if self.listed_sizes is not None and len(row) not in self.listed_sizes:
            sizes = format_ranges(self.listed_sizes)
            raise UsageError(f"{self.name} has no prompt of {len(row)} symbols; its sizes are {sizes}")
        if fault := self.find_fault(self.vocab.decode(row)):
            raise UsageError(f"{self.name}: {fault}")
        return self.from_rows(torch.tensor([[len(row)]]), row[None])

    @property
    def patterns(self) -> tuple[Pattern, ...]:  # type: ignore[override]
        return select_patterns(len(self.reads or self.symbols))

    def draw_pattern(self, pattern: Pattern, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        row = pattern(RowSampler(sizes[:, 0], int(sizes.max()), len(self.reads or self.symbols), generator))
        return self.from_rows(sizes, zero_after(self._to_ids(row), sizes[:, 0]))

    def enumerate(self, size: Sequence[int], limit: int) -> Problems | None:
        rows = enumerate_rows(len(self.reads or self.symbols), size[0], limit)
        if rows is None:
            return None
        rows = self._to_ids(rows)
        if type(self).find_fault is not SequenceTask.find_fault:
            rows = rows[[not self.find_fault(self.vocab.decode(prompt)) for prompt in rows]]
        return self.from_rows(torch.full((len(rows), 1), size[0]), rows)

    def find_fault(self, prompt: str) -> str:
        """Return the reason why a row of symbols is not a problem of the task; by default "", which accepts the row."""
        return ""

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        """Return the number of answer slots of each row: by default its prompt's length, as no answer is longer."""
        return sizes[:, 0]

    @abstractmethod
    def from_rows(self, sizes: Int[Tensor, "b axes"], rows: Int[Tensor, "b p"]) -> Problems:
        """Return problems with their answers, given prompts as rows padded with zeros."""


class SquareGridTask(Task):
    """A task whose prompts and answers are square grids, stored line after line and typed with ``/`` between lines."""

    answers_each_symbol = True

    @abstractmethod
    def side(self, size: Any) -> Any:
        """Return the number of lines of a grid of size ``size``, which is a number or a tensor."""

    def shape(self, size: Sequence[int]) -> tuple[int, int]:
        return self.side(size[0]), self.side(size[0])

    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        return self.side(sizes[:, 0]) ** 2

    def format(self, answer: Int[Tensor, " a"]) -> str:
        return separate_lines(self.vocab.decode(answer), round(len(answer) ** 0.5))

    def to_text(self, prompt: Int[Tensor, " p"]) -> str:
        return self.format(prompt)

    @staticmethod
    def draw_by_size(sizes: Int[Tensor, "b 1"], draw: Callable[[int, int], Problems]) -> Problems:
        """Draw one problem per row of ``sizes``. ``draw(size, count)`` must return ``count`` problems of one size."""
        distinct_sizes, counts = sizes[:, 0].unique(return_counts=True)
        parts = [draw(size, count) for size, count in zip(distinct_sizes.tolist(), counts.tolist(), strict=True)]
        return Problems.join(parts).take(sizes[:, 0].argsort(stable=True).argsort())


def separate_lines(text: str, columns: int) -> str:
    """Insert ``/`` between the lines of a grid, given its symbols row by row."""
    return "/".join(text[i : i + columns] for i in range(0, len(text), columns))


def parse_symbols(task: Task, text: str) -> Int[Tensor, " n"]:
    """Return the symbol ids of typed text, split into words if a symbol of the task has several letters, else into
    characters. Raises UsageError with the task's name and the first unknown symbol."""
    symbols = task.vocab.split(text if task.vocab.separator else "".join(text.split()))
    readable = Vocab(task.reads or task.symbols)
    if not symbols:
        raise UsageError(f"{task.name}: the prompt is empty; its symbols are: {' '.join(readable.symbols)}")
    try:
        readable.encode(symbols)
        return task.vocab.encode(symbols)
    except UsageError as error:
        raise UsageError(f"{task.name}: {error}") from None


def iterate_texts(task: Task, problems: Problems) -> Iterator[tuple[str, str]]:
    """Yield each problem's prompt as people type it, and its answer as people read it."""
    lengths = zip(problems.prompt_length.tolist(), problems.answer_length.tolist(), strict=True)
    for prompt, answer, (prompt_length, answer_length) in zip(problems.prompt, problems.answer, lengths, strict=True):
        yield task.to_text(prompt[:prompt_length]), task.format(answer[:answer_length])
