"""Tasks: one file each, found by the catalog. A task makes problems and knows nothing of models."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Generator, Tensor

from lengthwise.base.fields import Config, kebab
from lengthwise.base.rows import zero_after
from lengthwise.base.types import Problems, Purpose, UsageError, integer_type
from lengthwise.base.vocab import Vocab
from lengthwise.tasks.family import Family
from lengthwise.tasks.patterns import Pattern, every_row, suitable_patterns

# Methods of a task before 0.4, and their names today.
FORMER_NAMES = {"typed": "to_text", "every": "enumerate", "traits": "difficulty_features", "solved": "from_rows"}


class Task(Config):
    """A family of problems of every size. Subclasses are frozen dataclasses whose fields are their configuration.

    ``symbols`` are what prompts and answers are written in, ``signs`` those of them that stand between numbers; where
    a prompt's numbers are written the other way round than its answer, they are ``mirrored``. ``axes`` name the sizes:
    one axis makes a curve, two a map; ``smallest`` is the least size on each, ``largest`` the greatest that is drawn.
    """

    symbols: tuple[str, ...]
    signs: tuple[str, ...] = ()
    mirrored: bool = False
    axes: tuple[str, ...] = ("length",)
    smallest: int = 1
    largest: int | None = None
    harder: str = "hard"  # what the harder set is called among the families
    reads: tuple[str, ...] = ()  # those symbols that prompts hold, where answers hold others; (): all of them
    writes: tuple[str, ...] = ()  # those symbols that answers hold, where prompts hold others; (): all of them
    answers_each_symbol: bool = False  # does an answer have one symbol for each symbol of its prompt, in this order?
    answers_numbers: bool = False  # are answers numbers, as people write them? Then leading zeros change nothing

    def __init_subclass__(cls, **keywords: Any) -> None:
        """Raise UsageError for a method under the name that it had before 0.4: it would be ignored."""
        super().__init_subclass__(**keywords)
        for old, new in FORMER_NAMES.items():
            if old in vars(cls):
                raise UsageError(f"{cls.__name__}.{old} is now called {new}: rename it")

    @property
    def name(self) -> str:
        return kebab(type(self).__name__)

    @property
    def chance(self) -> float:
        """The accuracy per symbol of guessing: 1 / the number of symbols that answers hold, unless a task knows better
        (such as the share of the commonest class)."""
        return 1 / len(self.writes or self.symbols)

    @abstractmethod
    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        """One problem per row of sizes, without a Python loop over rows."""

    def sample_hard(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        """Problems of given sizes from the task's harder set, where it has one. UsageError where it has none."""
        raise UsageError(f"{self.name} has no harder set of problems: leave `hard` at 0")

    @property
    def has_harder(self) -> bool:
        """Has the task a harder set?"""
        return type(self).sample_hard is not Task.sample_hard

    @property
    def families(self) -> Sequence[Family]:
        """Structured problems, by name: what uniform problems hardly ever are, and what people type. The harder set is
        one of them. None unless a task knows some."""
        if not self.has_harder:
            return ()
        return (Family(self.harder, "The harder set that training may draw from.", self.sample_hard),)

    @property
    def listed_sizes(self) -> Sequence[int] | None:
        """The sizes that there are, ascending, of a task whose problems are a fixed collection; None for a task that
        has problems of every size."""
        return None

    def part(self, purpose: Purpose) -> Task:
        """The task with only those problems that may be used for ``purpose``: itself, unless its problems are a fixed
        collection."""
        return self

    def enumerate(self, size: Sequence[int], most: int) -> Problems | None:
        """All problems of one size, each once, if they are at most so many; None where they are more, or where a task
        does not know."""
        return None

    def pool(self, count: int, low: int, high: int, generator: Generator) -> Problems:
        """So many problems of the task's own distribution over sizes from ``low`` to ``high``: each size is uniform, on
        every axis, unless a task knows better. UsageError where the task has no such sizes."""
        self.check_pool(count, low, high)
        return self.sample(torch.randint(low, high + 1, (count, len(self.axes)), generator=generator), generator)

    def check_pool(self, count: int, low: int, high: int) -> None:
        """UsageError unless one problem or more is asked for, of sizes that the task has."""
        if count < 1:
            raise UsageError(f"{self.name}: a pool has one problem or more, not {count}")
        if not self.smallest <= low <= high:
            raise UsageError(
                f"{self.name}: sizes from {low} to {high} must be from {self.smallest} up, and not descend"
            )

    @abstractmethod
    def parse(self, text: str) -> Problems:
        """One problem, from what a person types. UsageError in one line if it is none."""

    def format(self, answer: Int[Tensor, " a"]) -> str:
        """An answer as a person reads it: its symbols, unless a task knows better."""
        return self.vocab.decode(answer)

    def to_text(self, prompt: Int[Tensor, " p"]) -> str:
        """A prompt as a person types it: ``parse`` reads it back. Its symbols, unless a task knows better."""
        return self.vocab.decode(prompt)

    @property
    def question(self) -> str:
        """What is to be done with a prompt as it is typed, in a sentence or two that tell all that a reader must know
        to answer as ``format`` does. Unless a task says it better, its docstring's first sentence; UsageError where
        there is none."""
        about = type(self).__doc__ or ""
        if not about or about.startswith(f"{type(self).__name__}("):  # what dataclasses say of themselves
            raise UsageError(f"{self.name}: its class says nowhere what the problem is: give it a `question`")
        return re.split(r"(?<=\.)\s", " ".join(about.split("\n\n")[0].split()))[0]

    @abstractmethod
    def reference(self, prompt: str) -> str:
        """The answer by the plainest algorithm; both are written in the task's own symbols and order."""

    @abstractmethod
    def answer_slots(self, sizes: Int[Tensor, "b axes"]) -> Int[Tensor, " b"]:
        """Symbols that any answer at these sizes may take: never the true answer's length."""

    def shape(self, size: Sequence[int]) -> tuple[int, int] | None:
        """The lines and columns of a prompt of this size, which is a grid written line after line; None: it is not."""
        return None

    def difficulty_features(self, problems: Problems) -> dict[str, Int[Tensor, " b"]]:
        """What may make a problem of a given size hard, by name: a number per problem. None unless a task knows."""
        return {}

    @property
    def vocab(self) -> Vocab:
        return Vocab(self.symbols)


class SequenceTask(Task):
    """A task on n symbols in a row, each uniform over those that the task ``reads``: unless it says so, all its own."""

    def sample(self, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        count, width = len(self._read_symbols), int(sizes.max())
        row = torch.randint(count, (len(sizes), width), generator=generator, dtype=integer_type(count))
        return self.from_rows(sizes, zero_after(self._ids(row), sizes[:, 0]))

    @property
    def _read_symbols(self) -> tuple[str, ...]:
        return self.reads or self.symbols

    def _ids(self, row: Int[Tensor, "b p"]) -> Int[Tensor, "b p"]:
        """Numbers of symbols that the task reads as their ids."""
        return row if not self.reads else self.vocab.encode(self.reads).to(row.dtype)[row.long()]

    def parse(self, text: str) -> Problems:
        row = symbols_of(self, text)
        return self.from_rows(torch.tensor([[len(row)]]), row[None])

    @property
    def families(self) -> Sequence[Family]:
        shared = suitable_patterns(len(self._read_symbols))
        return (*super().families, *(Family.of(pattern, partial(self._draw_pattern, pattern)) for pattern in shared))

    def _draw_pattern(self, pattern: Pattern, sizes: Int[Tensor, "b axes"], generator: Generator) -> Problems:
        row = pattern(sizes[:, 0], int(sizes.max()), len(self._read_symbols), generator)
        return self.from_rows(sizes, zero_after(self._ids(row), sizes[:, 0]))

    def enumerate(self, size: Sequence[int], most: int) -> Problems | None:
        row = every_row(len(self._read_symbols), size[0], most)
        return None if row is None else self.from_rows(torch.full((len(row), 1), size[0]), self._ids(row))

    @abstractmethod
    def from_rows(self, sizes: Int[Tensor, "b axes"], row: Int[Tensor, "b p"]) -> Problems:
        """These rows, padded with zeros, as problems with their answers."""


class TwoOperandTask(Task):
    """A task on two numbers that can be written one above the other, digit by digit, least significant first."""

    base: int

    @abstractmethod
    def stack(self, problems: Problems) -> tuple[Int[Tensor, "b n 2"], Int[Tensor, " b"]]:
        """The operands' digits in columns, least significant first and padded with zeros; and each row's columns."""

    @abstractmethod
    def digits(self, problems: Problems, count: int) -> Int[Tensor, "b count"]:
        """The answers' lowest ``count`` digits, least significant first, padded with zeros."""

    @abstractmethod
    def answer(self, digits: Int[Tensor, " n"]) -> Int[Tensor, " a"]:
        """An answer in the task's own order, from digits least significant first."""


def longest_run(flags: Bool[Tensor, "b n"]) -> Int[Tensor, " b"]:
    """How many True stand side by side in each row, at most."""
    position = torch.arange(1, flags.shape[1] + 1)
    return (position - torch.where(flags, 0, position).cummax(1).values).amax(1)


def symbols_of(task: Task, text: str) -> Int[Tensor, " n"]:
    """What a person typed as ids; UsageError names the task and the first foreign symbol."""
    text, known = "".join(text.split()), Vocab(task.reads or task.symbols)
    if not text:
        raise UsageError(f"{task.name}: the prompt is empty; its symbols are: {' '.join(known.symbols)}")
    try:
        known.encode(text)
        return task.vocab.encode(text)
    except UsageError as error:
        raise UsageError(f"{task.name}: {error}") from None
