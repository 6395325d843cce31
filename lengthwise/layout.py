"""How a problem is written as a row of tokens, and how an answer is read off it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lengthwise.tasks import Stackable, Task, within
from lengthwise.types import Batch, Inputs, Problems, UsageError
from lengthwise.vocab import Vocab

EQUALS, END, PAUSE, START, PAD = "=", "$", "#", "^", "_"


class Layout(ABC):
    """Problems → a Batch. Subclasses are frozen dataclasses."""

    causal: ClassVar[bool]  # may a position see only itself and those before it?
    decodes: ClassVar[bool]  # are answer tokens fed back, so that solving takes decoding, token by token?

    @abstractmethod
    def accepts(self, task: Task) -> bool:
        """Can this task's problems be written so?"""

    @abstractmethod
    def vocabs(self, task: Task) -> tuple[Vocab, Vocab]:
        """What a model reads, and what it writes."""

    @abstractmethod
    def end(self, task: Task) -> int | None:
        """The id, among what is written, that ends an answer; None where every slot is part of it."""

    @abstractmethod
    def write(self, problems: Problems, task: Task) -> Batch:
        """One row per problem. UsageError if the task is not accepted."""

    @abstractmethod
    def answer(self, said: Int[Tensor, " a"], task: Task) -> Int[Tensor, " m"]:
        """What was said in a row's slots, as an answer in the task's own order, without its end. An untrained model may
        say symbols that are not the task's: their ids are those of what is written."""

    def check(self, task: Task) -> None:
        """UsageError unless the task is accepted."""
        if not self.accepts(task):
            raise UsageError(f"the layout {type(self).__name__} does not accept the task {task.name}")


@dataclass(frozen=True)
class _Row(Layout):
    """``prompt = answer $``. The answer's first symbol is read off the last place before it (the ``=``, or the last
    pause), the end one place after the answer's last symbol; so it takes no more slots than the task's room + 1."""

    pauses: int = 0  # pause tokens between the equals sign and the answer (Goyal et al. 2024)
    framed: bool = False  # a start symbol before the prompt, and a symbol of its own where a row has ended

    causal = True

    def __post_init__(self) -> None:
        if self.pauses < 0:
            raise UsageError(f"pauses must be 0 or more, not {self.pauses}")

    def accepts(self, task: Task) -> bool:
        return not {EQUALS, END, PAUSE, START, PAD} & set(task.symbols)

    def vocabs(self, task: Task) -> tuple[Vocab, Vocab]:
        further = [PAUSE] * bool(self.pauses) + [START, PAD] * self.framed
        vocab = Vocab((*task.symbols, EQUALS, END, *further))
        return vocab, vocab

    def end(self, task: Task) -> int | None:
        return self.vocabs(task)[1].id(END)

    def write(self, problems: Problems, task: Task) -> Batch:
        self.check(task)
        vocab = self.vocabs(task)[0]
        slots = task.room(problems.sizes) + 1
        equals = problems.prompt_length[:, None] + self.framed  # where it stands
        first = equals + self.pauses  # where the answer's first symbol is read off
        length = first[:, 0] + slots
        place = torch.arange(int(length.max())).expand(len(problems), -1)

        def spread(row: Tensor, start: Tensor | int) -> Tensor:  # row[0] to `start`, row[1] to the next place, …
            return row.gather(1, (place - start).clamp(0, row.shape[1] - 1))

        end = vocab.id(END)
        answer = spread(problems.answer, first)
        targets = torch.where(place < first + problems.answer_length[:, None], answer, end)
        tokens = torch.where(place < equals, spread(problems.prompt, int(self.framed)), vocab.id(EQUALS))
        if self.pauses:
            tokens = torch.where(place > equals, vocab.id(PAUSE), tokens)
        if self.framed:
            tokens[:, 0] = vocab.id(START)
        tokens = torch.where(place > first, self._slot(targets, end), tokens)
        present = within(length, place.shape[1])
        room = (place >= first) & present
        asked = room & (place <= first + problems.answer_length[:, None])
        tokens = tokens.where(present, vocab.id(PAD) if self.framed else end)
        targets = targets.where(room, end)
        signs = self._signs(task)[tokens] & (place <= first)
        inputs = Inputs(tokens, place, places(signs, first if task.mirrored else None), present)
        return Batch(inputs, targets, asked, room, problems.rounds, problems.sizes)

    def _signs(self, task: Task) -> Bool[Tensor, " v"]:
        """Which symbols stand between numbers."""
        signs = {*task.signs, EQUALS, PAUSE, START}
        return torch.tensor([symbol in signs for symbol in self.vocabs(task)[0].symbols])

    @abstractmethod
    def _slot(self, targets: Int[Tensor, "b t"], end: int) -> Int[Tensor, "b t"]:
        """The tokens that stand after the place where the answer's first symbol is read off."""

    def answer(self, said: Int[Tensor, " a"], task: Task) -> Int[Tensor, " m"]:
        return said[: int(until_end(said, self.end(task)).sum())]


def places(signs: Bool[Tensor, "b t"], mirrored: Int[Tensor, "b 1"] | None = None) -> Int[Tensor, "b t"]:
    """Where each symbol stands in its own run of symbols that are no signs, from 1; 0 for a sign. Before ``mirrored``,
    where it is given, runs are counted from their ends."""
    index = torch.arange(signs.shape[1])
    place = index - torch.where(signs, index, -1).cummax(1).values
    if mirrored is None:
        return place
    following = torch.where(signs, index, signs.shape[1]).flip(1).cummin(1).values.flip(1)
    return torch.where(index < mirrored, following - index, place)


@dataclass(frozen=True)
class FullOutput(_Row):
    """Full-output prediction (FOP): the answer's places hold the end symbol, and all of it is read off at once
    (Fan et al. 2025, section 4). With ``whole_tail``, as in its official code, every place after the answer is
    supervised too, for the end symbol."""

    whole_tail: bool = False

    decodes = False

    def write(self, problems: Problems, task: Task) -> Batch:
        batch = super().write(problems, task)
        return replace(batch, asked=batch.room) if self.whole_tail else batch

    def _slot(self, targets: Int[Tensor, "b t"], end: int) -> Int[Tensor, "b t"]:
        return torch.full_like(targets, end)


@dataclass(frozen=True)
class NextToken(_Row):
    """Next-token prediction (NTP): the right answer is fed in, and each place predicts the next symbol."""

    decodes = True

    def _slot(self, targets: Int[Tensor, "b t"], end: int) -> Int[Tensor, "b t"]:
        return torch.roll(targets, 1, 1)


@dataclass(frozen=True)
class Pairs(Layout):
    """Two numbers stacked, least significant digit first: place i holds the pair (a_i, b_i) as one token, and the
    answer's digit i is written there. One blank pair (0, 0) at the end leaves room for the last carry; without
    ``carry`` there is none and the answer is taken modulo base^n."""

    carry: bool = True

    causal = False
    decodes = False

    def accepts(self, task: Task) -> bool:
        return isinstance(task, Stackable)

    def vocabs(self, task: Task) -> tuple[Vocab, Vocab]:
        assert isinstance(task, Stackable)
        digits = [str(digit) for digit in range(task.base)]
        return Vocab(tuple(a + b for a in digits for b in digits)), Vocab(tuple(digits))

    def end(self, task: Task) -> int | None:
        return None

    def write(self, problems: Problems, task: Task) -> Batch:
        self.check(task)
        assert isinstance(task, Stackable)
        columns, count = task.stack(problems)
        width = columns.shape[1] + self.carry
        tokens = columns[..., 0] * task.base + columns[..., 1]
        tokens = torch.nn.functional.pad(tokens, (0, width - tokens.shape[1]))
        present = within(count + self.carry, width)
        targets = task.digits(problems, width).where(present, 0)
        place = torch.arange(width).expand(len(problems), -1)
        inputs = Inputs(tokens, place, place + 1, present)
        return Batch(inputs, targets, present, present, problems.rounds, problems.sizes)

    def answer(self, said: Int[Tensor, " a"], task: Task) -> Int[Tensor, " m"]:
        assert isinstance(task, Stackable)
        return task.answer(said)


def until_end(said: Int[Tensor, "*k a"], end: int | None) -> Bool[Tensor, "*k a"]:
    """True before each row's first end symbol; everywhere where there is none."""
    if end is None:
        return torch.ones_like(said, dtype=torch.bool)
    return (said == end).cumsum(-1) == 0


def up_to_end(said: Int[Tensor, "*k a"], end: int | None) -> Bool[Tensor, "*k a"]:
    """True up to each row's first end symbol, and there too: the end is part of what is said."""
    before = until_end(said, end)
    return torch.cat([torch.ones_like(before[..., :1]), before[..., :-1]], -1)
