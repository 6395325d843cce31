"""How a problem is written as a row of tokens, and how an answer is read off it."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import pairwise
from typing import ClassVar, NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lengthwise.base.rows import clipped, shifted, windows, within
from lengthwise.base.types import Batch, Inputs, Problems, UsageError, integer_type
from lengthwise.base.vocab import Vocab
from lengthwise.tasks import Stackable, Task

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
    def answer(self, predicted: Int[Tensor, " a"], task: Task) -> Int[Tensor, " m"]:
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
        ids = _ids(self.vocabs(task)[0], tuple(task.signs), self.pauses, self.framed)
        end, small = ids.around[-1], ids.dtype
        first = problems.prompt_length + (self.framed + self.pauses)  # where the answer's first symbol is read off
        over = first + problems.answer_length + 1  # the place after its end
        length = first + task.answer_slots(problems.sizes) + 1
        width = int(length.max())
        before, prompted, answered, padding_mask = within(torch.stack([first, first + 1, over, length]), width).unbind()
        # As what differs from the end symbol, an answer is 0 wherever it does not stand.
        answer = shifted(clipped(problems.answer.to(small) ^ end, problems.answer_length), first, width)
        tokens = windows(_around(ids.around, width, small), width + self.pauses - first, width)
        # What was taken out of a larger batch may have more padding than this one is wide.
        prompt = clipped(problems.prompt.to(small), problems.prompt_length)[:, : width - self.framed]
        tokens[:, self.framed : self.framed + prompt.shape[1]].bitwise_or_(prompt)
        if self.decodes:
            tokens[:, 1:].bitwise_xor_(answer[:, :-1])
        if self.framed:
            tokens[:, 0] = ids.start
            tokens = tokens.where(padding_mask, ids.pad)
        index = torch.arange(width)
        last = int(first.max())  # from here on there is no sign
        signs = _signs(tokens[:, :last], ids.edges) & prompted[:, :last]
        position = torch.empty(tokens.shape, dtype=torch.long)
        position[:, :last] = digit_positions(signs, before[:, :last] if task.mirrored else None)
        position[:, last:] = index[last:] - first[:, None]
        inputs = Inputs(tokens.long(), index.expand(len(problems), -1), position, padding_mask)
        targets, loss_mask, answer_slots = (answer ^ end).long(), before ^ answered, before ^ padding_mask
        return Batch(inputs, targets, loss_mask, answer_slots, problems.rounds, problems.sizes)

    def answer(self, predicted: Int[Tensor, " a"], task: Task) -> Int[Tensor, " m"]:
        return predicted[: int(until_end(predicted, self.end(task)).sum())]


def digit_positions(
    signs: Bool[Tensor, "b t"] | Int[Tensor, "b t"], mirrored: Bool[Tensor, "b t"] | None = None
) -> Int[Tensor, "b t"]:
    """Where each symbol stands in its own run of symbols that are no signs, from 1; 0 for a sign, which is True or 1.
    Where a row is ``mirrored``, runs are counted from their ends."""
    count = torch.arange(1, signs.shape[1] + 1, dtype=integer_type(signs.shape[1]))
    position = count - (signs * count).cummax(1).values
    if mirrored is not None:
        back = count.flip(0)
        following = (signs * back).flip(1).cummax(1).values.flip(1)
        position = torch.where(mirrored, back - following, position)
    return position


class _Ids(NamedTuple):
    """What a layout has to know of a task's symbols."""

    dtype: torch.dtype  # that is large enough for all
    around: tuple[int, ...]  # what stands between a prompt and its answer, and the end
    edges: tuple[int, ...]  # from the first of these ids on there are signs, from the second on none, and so on
    start: int
    pad: int


@lru_cache(maxsize=64)
def _ids(vocab: Vocab, signs: tuple[str, ...], pauses: int, framed: bool) -> _Ids:
    between = [EQUALS, *[PAUSE] * pauses, END]
    # What ends a row stands for a sign too: nobody asks there.
    known = [symbol in (*signs, *between, START, PAD) for symbol in vocab.symbols]
    edges = (i for i, (was, now) in enumerate(pairwise([False, *known])) if was != now)
    start, pad = (vocab.id(symbol) if framed else -1 for symbol in (START, PAD))
    return _Ids(integer_type(len(vocab)), tuple(map(vocab.id, between)), tuple(edges), start, pad)


def _signs(tokens: Int[Tensor, "b t"], edges: tuple[int, ...]) -> Int[Tensor, "b t"]:
    """1 where these stand between numbers, else 0."""
    # 1 from an edge on: a comparison would take ten times as long, and looking each up thirty times.
    return reduce(operator.xor, ((tokens - (edge - 1)).clamp_(0, 1) for edge in edges))


@lru_cache(maxsize=64)
def _around(ids: tuple[int, ...], width: int, dtype: torch.dtype) -> Int[Tensor, " n"]:
    """So many zeros, then these, the last of them again and again: as they stand around prompts and answers."""
    row = torch.full((2 * width + 1,), ids[-1], dtype=dtype)
    row[:width] = 0
    row[width : width + len(ids)] = torch.tensor(ids)
    return row


@dataclass(frozen=True)
class FullOutput(_Row):
    """Full-output prediction (FOP): the answer's places hold the end symbol, and all of it is read off at once
    (Fan et al. 2025, section 4). With ``whole_tail``, as in its official code, every place after the answer is
    supervised too, for the end symbol."""

    whole_tail: bool = False

    decodes = False

    def write(self, problems: Problems, task: Task) -> Batch:
        batch = super().write(problems, task)
        return replace(batch, loss_mask=batch.answer_slots) if self.whole_tail else batch


@dataclass(frozen=True)
class NextToken(_Row):
    """Next-token prediction (NTP): the right answer is fed in, and each place predicts the next symbol."""

    decodes = True


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
        tokens = columns[..., 0].long() * task.base + columns[..., 1]
        tokens = torch.nn.functional.pad(tokens, (0, width - tokens.shape[1]))
        padding_mask = within(count + self.carry, width)
        targets = task.digits(problems, width).long().where(padding_mask, 0)
        position = torch.arange(width).expand(len(problems), -1)
        inputs = Inputs(tokens, position, position + 1, padding_mask)
        return Batch(inputs, targets, padding_mask, padding_mask, problems.rounds, problems.sizes)

    def answer(self, predicted: Int[Tensor, " a"], task: Task) -> Int[Tensor, " m"]:
        assert isinstance(task, Stackable)
        return task.answer(predicted)


def until_end(predicted: Int[Tensor, "*k a"], end: int | None) -> Bool[Tensor, "*k a"]:
    """True before each row's first end symbol; everywhere where there is none."""
    if end is None:
        return torch.ones_like(predicted, dtype=torch.bool)
    return (predicted == end).cumsum(-1) == 0


def up_to_end(predicted: Int[Tensor, "*k a"], end: int | None) -> Bool[Tensor, "*k a"]:
    """True up to each row's first end symbol, and there too: the end is part of what is said."""
    before = until_end(predicted, end)
    return torch.cat([torch.ones_like(before[..., :1]), before[..., :-1]], -1)
