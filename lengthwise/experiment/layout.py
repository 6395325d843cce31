"""Layouts: how a problem is written as a row of tokens, and how an answer is read from predictions."""

from __future__ import annotations

import operator
from abc import abstractmethod
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from itertools import pairwise
from typing import ClassVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lengthwise.base.errors import UsageError
from lengthwise.base.fields import Config, find_part_classes
from lengthwise.base.ranges import Amount
from lengthwise.base.rows import extract_windows, length_mask, shift_right, zero_after
from lengthwise.base.types import END, EQUALS, PAD, PAUSE, START, Batch, Inputs, Problems, Vocab, smallest_integer_type
from lengthwise.tasks import Task
from lengthwise.tasks.arithmetic import Addition


class Layout(Config):
    """Base class of layouts, which write problems as a batch of rows. Subclasses are frozen dataclasses."""

    causal: ClassVar[bool]  # True if a position sees only itself and earlier positions
    decodes: ClassVar[bool]  # True if answer tokens are inputs, so that answers are decoded token by token
    ends: ClassVar[bool] = True  # True if answers end with a symbol of their own

    @abstractmethod
    def accepts(self, task: Task) -> bool:
        """Return whether the layout can write this task's problems."""

    @abstractmethod
    def vocabs(self, task: Task) -> tuple[Vocab, Vocab]:
        """Return the vocabularies of a model's inputs and outputs."""

    @abstractmethod
    def end_id(self, task: Task) -> int | None:
        """Return the output id of the end symbol; None if answers fill all their slots and have no end symbol."""

    @abstractmethod
    def write(self, problems: Problems, task: Task) -> Batch:
        """Write one row per problem. Raises UsageError if the layout does not accept the task."""

    def write_training(self, problems: Problems, task: Task) -> Batch:
        """Write a training batch. Unlike in ``write``, a row may depend on the other rows of its batch."""
        return self.write(problems, task)

    @abstractmethod
    def answer(self, predicted: Int[Tensor, " a"], task: Task) -> Int[Tensor, " m"]:
        """Return the answer, as the task's symbol ids in its digit order, without the end symbol. ``predicted`` has the
        output ids that a model predicts in a row's answer slots. Ids outside the task are possible."""

    def chance(self, task: Task) -> float | None:
        """Return the fraction of answer symbols that guessing gets right, from which scaled accuracy is computed; None
        if scaled accuracy is not reported."""
        return None

    def check(self, task: Task) -> None:
        """Raise UsageError unless the layout accepts the task."""
        if self.accepts(task):
            return
        fitting = []
        for name, kind in find_part_classes(Layout).items():
            with suppress(TypeError):  # a layout may need arguments
                if kind.__module__.startswith("lengthwise.") and kind().accepts(task):
                    fitting.append(name)
        others = f"; these do: {', '.join(fitting)}" if fitting else ""
        raise UsageError(f"the layout {type(self).__name__} does not accept the task {task.name}{others}")


@dataclass(frozen=True)
class _RowLayout(Layout):
    """A layout of rows ``prompt = answer $``. Each answer symbol is predicted at the position before its own: the first
    one at ``=`` or at the last pause. A row has one answer slot more than the task asks for, for the end symbol."""

    pauses: Amount = 0  # number of pause tokens between the equals sign and the answer (Goyal et al., 2024)
    framed: bool = False  # add a start symbol before the prompt, and use a padding symbol instead of the end symbol

    causal = True

    def accepts(self, task: Task) -> bool:
        return not {EQUALS, END, PAUSE, START, PAD} & set(task.symbols)

    def vocabs(self, task: Task) -> tuple[Vocab, Vocab]:
        further = [PAUSE] * bool(self.pauses) + [START, PAD] * self.framed
        vocab = Vocab((*task.symbols, EQUALS, END, *further))
        return vocab, vocab

    def end_id(self, task: Task) -> int | None:
        return self.vocabs(task)[1].id(END)

    def write(self, problems: Problems, task: Task) -> Batch:
        self.check(task)
        vocab = self.vocabs(task)[0]
        dtype = smallest_integer_type(len(vocab))
        fixed_ids, edges = _list_token_ids(vocab, tuple(task.signs), self.pauses)
        end = fixed_ids[-1]
        first = problems.prompt_length + (self.framed + self.pauses)  # position that predicts the first answer symbol
        answer_stop = first + problems.answer_length + 1  # one after the position that predicts the end
        length = first + task.answer_slots(problems.sizes) + 1
        width = int(length.max())
        stops = torch.stack([first, first + 1, answer_stop, length])
        before, prompted, answered, padding_mask = length_mask(stops, width).unbind()
        # Stored as XOR with the end symbol, the answer is 0 outside its own positions, and rows combine by XOR.
        answer = shift_right(zero_after(problems.answer.to(dtype) ^ end, problems.answer_length), first, width)
        # Start from rows without prompt and answer: zeros, the tokens between the two, then end symbols.
        tokens = extract_windows(_pad_ids(fixed_ids, width, dtype), width + self.pauses - first, width)
        # Problems selected from a larger batch may have more padding than this batch is wide.
        prompt = zero_after(problems.prompt.to(dtype), problems.prompt_length)[:, : width - self.framed]
        tokens[:, self.framed : self.framed + prompt.shape[1]].bitwise_or_(prompt)
        if self.decodes:
            tokens[:, 1:].bitwise_xor_(answer[:, :-1])
        if self.framed:
            tokens[:, 0] = vocab.id(START)
            tokens = tokens.where(padding_mask, vocab.id(PAD))
        index = torch.arange(width)
        last = int(first.max())  # no row has a sign at this position or later
        # Each clamp is 1 for ids from an edge on. Comparing takes ten times as long, indexing a table thirty times.
        signs = reduce(operator.xor, ((tokens[:, :last] - (edge - 1)).clamp_(0, 1) for edge in edges))
        signs = signs & prompted[:, :last]
        position = torch.empty(tokens.shape, dtype=torch.long)
        position[:, :last] = compute_digit_positions(signs, before[:, :last] if task.mirrored else None)
        position[:, last:] = index[last:] - first[:, None]
        inputs = Inputs(tokens.long(), index.expand(len(problems), -1), position, padding_mask)
        targets, loss_mask, answer_slots = (answer ^ end).long(), before ^ answered, before ^ padding_mask
        return Batch(inputs, targets, loss_mask, answer_slots, problems.rounds, problems.sizes)

    def answer(self, predicted: Int[Tensor, " a"], task: Task) -> Int[Tensor, " m"]:
        return predicted[: int(mask_before_end(predicted, self.end_id(task)).sum())]


def compute_digit_positions(
    signs: Bool[Tensor, "b t"] | Int[Tensor, "b t"], mirrored: Bool[Tensor, "b t"] | None = None
) -> Int[Tensor, "b t"]:
    """Return the digit position of every token: its index, from 1, within a run of digits; 0 for a sign.

    ``signs`` is True or 1 at signs. At tokens where ``mirrored`` is True, the index is counted from the run's end.
    """
    count = torch.arange(1, signs.shape[1] + 1, dtype=smallest_integer_type(signs.shape[1]))
    position = count - (signs * count).cummax(1).values
    if mirrored is not None:
        from_end = count.flip(0)
        following = (signs * from_end).flip(1).cummax(1).values.flip(1)
        position = torch.where(mirrored, from_end - following, position)
    return position


@lru_cache(maxsize=64)
def _list_token_ids(vocab: Vocab, signs: tuple[str, ...], pauses: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids of ``=``, the pauses and the end symbol; and the edges of the ranges of ids that are signs: first
    id, last id + 1, first id, …"""
    fixed = [EQUALS, *[PAUSE] * pauses, END]
    # The end and padding symbols count as signs too; their digit positions are not used.
    is_sign = [symbol in (*signs, *fixed, START, PAD) for symbol in vocab.symbols]
    edges = (i for i, (was, now) in enumerate(pairwise([False, *is_sign])) if was != now)
    return tuple(map(vocab.id, fixed)), tuple(edges)


@lru_cache(maxsize=64)
def _pad_ids(ids: tuple[int, ...], width: int, dtype: torch.dtype) -> Int[Tensor, " n"]:
    """Return ``width`` zeros, then ``ids``, then the last id repeated, 2 · ``width`` + 1 numbers in all: a slice of
    this tensor is a row without prompt and answer."""
    row = torch.full((2 * width + 1,), ids[-1], dtype=dtype)
    row[:width] = 0
    row[width : width + len(ids)] = torch.tensor(ids)
    return row


@dataclass(frozen=True)
class FullOutput(_RowLayout):
    """Full-output prediction (FOP; Fan et al., 2025, section 4): the answer slots hold the end symbol, and all answer
    symbols are predicted at once. With ``whole_tail``, as in the official code, the slots after the answer are
    supervised too, with the end symbol as target. With ``level``, all rows of a training batch are as long as its
    longest row, so that a model learns to predict the end symbol at positions that no training answer reaches.

    With ``causal=False`` every position sees the whole row, as in an encoder. A row has all the answer slots of its
    size, in training too, so it does not show how long its answer is."""

    whole_tail: bool = False  # supervise the slots after the answer too, with the end symbol as target
    level: bool = False  # in training, fill rows up to their batch's longest with slots after the answer
    causal: bool = True  # a position sees only itself and earlier positions; false: the whole row

    decodes = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.level and not self.whole_tail:
            raise UsageError("level adds slots after the answer, and only whole_tail trains on them: set both")

    def write(self, problems: Problems, task: Task) -> Batch:
        batch = super().write(problems, task)
        return replace(batch, loss_mask=batch.answer_slots) if self.whole_tail else batch

    def write_training(self, problems: Problems, task: Task) -> Batch:
        batch = self.write(problems, task)
        if not self.level:
            return batch
        present, end = batch.inputs.padding_mask, self.vocabs(task)[0].id(END)
        tokens, slots = batch.inputs.tokens.where(present, end), batch.answer_slots | ~present
        inputs = replace(batch.inputs, tokens=tokens, padding_mask=torch.ones_like(present))
        return replace(batch, inputs=inputs, loss_mask=slots, answer_slots=slots)  # their targets are the end


@dataclass(frozen=True)
class NextToken(_RowLayout):
    """Next-token prediction (NTP): the correct answer is part of the input; each position predicts the next symbol."""

    decodes = True


@dataclass(frozen=True)
class Pairs(Layout):
    """A layout that stacks the two numbers of a sum, least significant digit first: the token at position i is the pair
    of digits (a_i, b_i), and the target is the answer's digit i. Without ``carry``, the answer is modulo base^n."""

    carry: bool = True  # append a pair (0, 0) for the last carry

    causal = False
    decodes = False
    ends = False

    def accepts(self, task: Task) -> bool:
        return isinstance(task, Addition)

    def vocabs(self, task: Task) -> tuple[Vocab, Vocab]:
        assert isinstance(task, Addition)
        digits = [str(digit) for digit in range(task.base)]
        return Vocab(tuple(a + b for a in digits for b in digits)), Vocab(tuple(digits))

    def end_id(self, task: Task) -> int | None:
        return None

    def write(self, problems: Problems, task: Task) -> Batch:
        self.check(task)
        assert isinstance(task, Addition)
        columns, count = task.stack_columns(problems)
        width = columns.shape[1] + self.carry
        tokens = columns[..., 0].long() * task.base + columns[..., 1]
        tokens = torch.nn.functional.pad(tokens, (0, width - tokens.shape[1]))
        padding_mask = length_mask(count + self.carry, width)
        targets = task.extract_answer_digits(problems, width).long().where(padding_mask, 0)
        position = torch.arange(width).expand(len(problems), -1)
        inputs = Inputs(tokens, position, position + 1, padding_mask)
        return Batch(inputs, targets, padding_mask, padding_mask, problems.rounds, problems.sizes)

    def answer(self, predicted: Int[Tensor, " a"], task: Task) -> Int[Tensor, " m"]:
        assert isinstance(task, Addition)
        return task.order_answer(predicted)


class _ClassLayout(Layout):
    """A layout of rows without an end symbol, with one logit for each symbol that the task writes."""

    decodes = False
    ends = False
    adds_equals: ClassVar[bool] = False  # True if ``=`` follows the prompt

    def vocabs(self, task: Task) -> tuple[Vocab, Vocab]:
        return Vocab(task.reads or task.symbols), Vocab(task.writes or task.symbols)

    def end_id(self, task: Task) -> int | None:
        return None

    def write_inputs(self, problems: Problems, task: Task) -> Inputs:
        """Write prompts, each followed by ``=`` if the layout ``adds_equals``."""
        self.check(task)
        reads, length = self.vocabs(task)[0], problems.prompt_length
        prompt = _renumber(problems.prompt[:, : int(length.max())], task.vocab, reads)
        tokens = prompt.where(length_mask(length, prompt.shape[1]), 0)
        if self.adds_equals:
            tokens = torch.nn.functional.pad(tokens, (0, 1)).scatter(1, length[:, None], reads.id(EQUALS))
            length = length + 1
        padding_mask = length_mask(length, tokens.shape[1])
        signs = torch.tensor([symbol in task.signs or symbol not in task.symbols for symbol in reads.symbols])[tokens]
        digit_position = compute_digit_positions(signs | ~padding_mask, padding_mask if task.mirrored else None)
        position = torch.arange(tokens.shape[1]).expand(len(tokens), -1)
        return Inputs(tokens, position, digit_position.long(), padding_mask)

    def chance(self, task: Task) -> float | None:
        return task.chance

    def answer(self, predicted: Int[Tensor, " a"], task: Task) -> Int[Tensor, " m"]:
        return _renumber(predicted, self.vocabs(task)[1], task.vocab)


@dataclass(frozen=True)
class Tagged(_ClassLayout):
    """Sequence tagging, an output at every position: a row is the prompt, and the target at position i is the answer's
    symbol i. The task must set ``answers_each_symbol``, as tasks of running parities or group words do."""

    causal: bool = True  # a position sees only itself and earlier positions; false: the whole prompt

    def accepts(self, task: Task) -> bool:
        return task.answers_each_symbol

    def write(self, problems: Problems, task: Task) -> Batch:
        inputs = self.write_inputs(problems, task)
        if not torch.equal(problems.prompt_length, problems.answer_length):
            raise UsageError(f"{task.name} sets answers_each_symbol, but an answer is not as long as its prompt")
        answer, slots = problems.answer[:, : inputs.tokens.shape[1]], inputs.padding_mask
        targets = _renumber(answer, task.vocab, self.vocabs(task)[1]).where(slots, 0)
        return Batch(inputs, targets, slots, slots, problems.rounds, problems.sizes)


@dataclass(frozen=True)
class Grid(Tagged):
    """The layout ``Tagged`` for prompts that are grids (``Task.shape``): a token's position is its column in the grid,
    and its line is given too."""

    causal: bool = False  # a position sees only itself and earlier positions; false: the whole grid

    def accepts(self, task: Task) -> bool:
        return super().accepts(task) and task.shape([task.smallest] * len(task.axes)) is not None

    def write(self, problems: Problems, task: Task) -> Batch:
        batch = super().write(problems, task)
        inputs, index = batch.inputs, batch.inputs.position
        columns = torch.tensor([task.shape(size) for size in problems.sizes.tolist()])[:, 1:]
        line, column = (part.where(inputs.padding_mask, 0) for part in (index // columns, index % columns))
        return replace(batch, inputs=replace(inputs, position=column, line=line))


@dataclass(frozen=True)
class Labelled(_ClassLayout):
    """Sequence classification, one class per row: a row is ``prompt =``, and the target at ``=`` is the answer. The
    task's answers must have one symbol, as in parity and membership in a language."""

    causal: bool = True  # a position sees only itself and earlier positions; false: the whole row

    adds_equals = True

    def accepts(self, task: Task) -> bool:
        sizes = torch.full((2, len(task.axes)), task.smallest)
        sizes[1] = task.largest or task.list_smallest_sizes(9)[-1]
        return EQUALS not in task.symbols and task.answer_slots(sizes).tolist() == [1, 1]

    def vocabs(self, task: Task) -> tuple[Vocab, Vocab]:
        reads, writes = super().vocabs(task)
        return Vocab((*reads.symbols, EQUALS)), writes

    def write(self, problems: Problems, task: Task) -> Batch:
        inputs = self.write_inputs(problems, task)
        if (problems.answer_length != 1).any():
            raise UsageError(f"{task.name}: Labelled needs an answer of one symbol for every prompt")
        reads, writes = self.vocabs(task)
        slot = (inputs.tokens == reads.id(EQUALS)) & inputs.padding_mask
        targets = _renumber(problems.answer[:, :1], task.vocab, writes) * slot
        return Batch(inputs, targets, slot, slot, problems.rounds, problems.sizes)


def _renumber(ids: Int[Tensor, "*b n"], old_vocab: Vocab, new_vocab: Vocab) -> Int[Tensor, "*b n"]:
    """Convert ids of one vocabulary to ids of another by symbol; symbols that the new vocabulary lacks, and ids without
    a symbol, become its length."""
    if old_vocab.symbols == new_vocab.symbols[: len(old_vocab)]:
        return ids.long()
    new_ids = {symbol: i for i, symbol in enumerate(new_vocab.symbols)}
    table = torch.tensor([new_ids.get(symbol, len(new_vocab)) for symbol in old_vocab.symbols] + [len(new_vocab)])
    return table[ids.long().clamp(max=len(old_vocab))]


def mask_before_end(predicted: Int[Tensor, "*k a"], end_id: int | None) -> Bool[Tensor, "*k a"]:
    """Return a mask that is True before each row's first end symbol, or everywhere if the row has none."""
    if end_id is None:
        return torch.ones_like(predicted, dtype=torch.bool)
    return (predicted == end_id).cumsum(-1) == 0


def mask_through_end(predicted: Int[Tensor, "*k a"], end_id: int | None) -> Bool[Tensor, "*k a"]:
    """Return a mask that is True up to and including each row's first end symbol."""
    before = mask_before_end(predicted, end_id)
    return torch.cat([torch.ones_like(before[..., :1]), before[..., :-1]], -1)
