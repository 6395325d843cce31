"""Data types shared by all parts of Lengthwise.

Terms, each with one meaning throughout:

=================  ====================================================================================================
row                one problem of a batch, as a sequence of tokens
position           the index of a token in its row, from 0
digit position     the index of a digit within its number, from 1; 0 for a sign
padding mask       True for a real token, False for padding at a row's end
loss mask          True where a target is supervised: at the answer, its end, and further positions of a layout
answer slots       the positions where an answer may stand, known without the answer
prediction         the symbol with the largest logit
probability        used for events, e.g. dropping a weight; a proportion of rows is a fraction
attention bias     a number added to an attention score; −inf hides the key
key–value cache    keys and values of earlier positions, kept for decoding
packed sequence    the real tokens of a batch, one row after the other, without padding
receptive field    the positions that can influence a state
loop               one application of a model's shared layers (``Model.advance``)
input injection    combining the embedded input with the state at the start of a loop
T(n), rounds       the number of rounds that a task's reference algorithm needs for size n
halting            the end of a row's loops; a stopping rule chooses it
size               a problem's difficulty on each axis of its task, e.g. its number of digits
=================  ====================================================================================================

Letters in shapes: ``b`` rows, ``t`` positions, ``d`` width, ``h`` heads, ``e`` width of a head, ``v`` vocabulary, ``p``
prompt, ``a`` answer, ``k`` loops, ``r`` rows still running, ``n`` selected positions of a batch, ``s`` stacked models.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.base.errors import UsageError as UsageError  # re-exported from modules that need no torch
from lengthwise.base.errors import quote_value
from lengthwise.base.results import Kind as Kind
from lengthwise.base.results import Score as Score
from lengthwise.base.results import wilson_interval as wilson_interval

Purpose = Literal["train", "validation", "test"]  # what problems are used for


def smallest_integer_type(largest_value: int) -> torch.dtype:
    """Return the smallest of int8, int16 and int32 that holds ``largest_value``; smaller types are faster."""
    return torch.int8 if largest_value < 2**7 else torch.int16 if largest_value < 2**15 else torch.int32


SYMBOL_DTYPE = smallest_integer_type(99)  # every shipped task has fewer than 100 symbols


def to_device(value: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to a device in the background; CUDA needs pinned memory for this."""
    if device.type == "cuda" and not value.is_cuda:
        value = value.contiguous().pin_memory()
    # A background copy to MPS may read memory that was freed meanwhile (github.com/pytorch/pytorch/issues/189690).
    return value.to(device, non_blocking=device.type != "mps")


class Rows:
    """Base class of dataclasses of tensors whose first axis is rows."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))  # type: ignore[arg-type]

    def _map(self, function: Any) -> Self:
        return type(self)(**{f.name: function(getattr(self, f.name)) for f in fields(self)})  # type: ignore[arg-type]

    def take(self, rows: Int[Tensor, " r"] | Bool[Tensor, " b"] | slice) -> Self:
        """Select rows by index, in the given order, by a mask, or by a slice."""
        return self._map(lambda value: value.take(rows) if isinstance(value, Rows) else value[rows])

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Concatenate the rows of ``parts``; narrower tensors are padded with zeros."""
        if len(parts) == 1:
            return parts[0]

        def concatenate(name: str) -> Tensor:
            tensors = [getattr(part, name) for part in parts]
            if tensors[0].dim() == 1:
                return torch.cat(tensors)
            width = max(tensor.shape[1] for tensor in tensors)
            return torch.cat([torch.nn.functional.pad(tensor, (0, width - tensor.shape[1])) for tensor in tensors])

        return cls(**{f.name: concatenate(f.name) for f in fields(cls)})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Problems(Rows):
    """Problems of a task: prompts and answers as symbol ids of any integer type, padded on the right with zeros."""

    sizes: Int[Tensor, "b axes"]  # the requested sizes, on the task's axes
    prompt: Int[Tensor, "b p"]
    prompt_length: Int[Tensor, " b"]
    answer: Int[Tensor, "b a"]
    answer_length: Int[Tensor, " b"]
    rounds: Int[Tensor, " b"]  # T(n), the number of rounds of the reference algorithm

    def to_smallest_type(self, symbol_count: int) -> Problems:
        """Store ids in the smallest type for a task of ``symbol_count`` symbols, so that a large set fits in
        memory. Sizes, lengths and rounds keep their types."""
        kind = smallest_integer_type(symbol_count)
        return replace(self, prompt=self.prompt.to(kind), answer=self.answer.to(kind))


@dataclass(frozen=True)
class Inputs(Rows):
    """The inputs of a model for one batch."""

    tokens: Int[Tensor, "b t"]
    position: Int[Tensor, "b t"]  # given to positional encodings; augmentation may change it in training
    digit_position: Int[Tensor, "b t"]  # a digit's index in its number, from 1, in the answer's digit order; 0: a sign
    padding_mask: Bool[Tensor, "b t"]  # False after a row's end: no result may depend on the tokens there
    # The line of a grid that a token stands in, from 0; ``position`` is then its column. A row that is not a grid has
    # one line.
    line: Int[Tensor, "b t"] = field(default=None, kw_only=True)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.line is None:
            object.__setattr__(self, "line", self.position.new_zeros(1, 1).expand_as(self.position))

    @property
    def host(self) -> Inputs:
        """The inputs on the CPU, for code whose control flow depends on their values."""
        return self

    def to(self, device: torch.device) -> Inputs:
        """Copy the inputs to a device in the background."""
        if device.type == "cpu":
            return self
        copies = {f.name: to_device(getattr(self, f.name), device) for f in fields(Inputs)}
        return CopiedInputs(**copies, original=self)

    def columns(self, start: int, stop: int) -> Inputs:
        """Return positions ``start`` to ``stop`` − 1 of each row."""
        return self._map(lambda value: value[:, start:stop])

    def cut_padding(self) -> Inputs:
        """Cut columns in which every row is padding."""
        longest = int(self.padding_mask.any(0).sum())
        return self if longest == self.tokens.shape[1] else self.columns(0, longest)


@dataclass(frozen=True)
class CopiedInputs(Inputs):
    """Inputs copied to a device, with a reference to the original on the CPU. A slice has no such reference."""

    original: Inputs

    @property
    def host(self) -> Inputs:
        return self.original

    def _map(self, function: Any) -> Any:
        return Inputs(**{f.name: function(getattr(self, f.name)) for f in fields(Inputs)})


@dataclass(frozen=True)
class Batch(Rows):
    """Problems written as rows by a layout, on the CPU; a runner copies the inputs to its model's device."""

    inputs: Inputs
    targets: Int[Tensor, "b t"]
    loss_mask: Bool[Tensor, "b t"]  # True at the answer, its end, and further supervised positions of a layout
    answer_slots: Bool[Tensor, "b t"]  # where an answer may stand, independent of the answer; contiguous in each row
    rounds: Int[Tensor, " b"]
    sizes: Int[Tensor, "b axes"]

    def cut_unsupervised(self) -> Batch:
        """End each row at its last supervised position, which does not change a causal model's loss."""
        before_end = self.loss_mask.flip(1).cumsum(1).flip(1) > 0
        inputs = replace(self.inputs, padding_mask=self.inputs.padding_mask & before_end)
        return replace(self, inputs=inputs, answer_slots=self.answer_slots & before_end).cut_padding()

    def cut_padding(self) -> Batch:
        """Cut columns in which every row is padding."""
        inputs = self.inputs.cut_padding()
        width = inputs.tokens.shape[1]
        if width == self.targets.shape[1]:
            return self
        parts = {name: getattr(self, name)[:, :width] for name in ("targets", "loss_mask", "answer_slots")}
        return replace(self, inputs=inputs, **parts)


@dataclass(frozen=True)
class Loss:
    """An objective's result: the value to minimize, and tensors to log (means over the batch)."""

    value: Float[Tensor, ""]
    logs: dict[str, Tensor]

    @staticmethod
    def mean(losses: Sequence[Loss]) -> Loss:
        """Return the mean of losses whose ``logs`` have the same names."""
        logs = {name: torch.stack([loss.logs[name] for loss in losses]).mean() for name in losses[0].logs}
        return Loss(torch.stack([loss.value for loss in losses]).mean(), logs)


def validate_loss(objective: object, loss: object) -> Loss:
    """Return an objective's result. Raises UsageError unless it is a ``Loss`` with tensors of one number each."""
    numbers = [loss.value, *loss.logs.values()] if isinstance(loss, Loss) and isinstance(loss.logs, dict) else [None]
    if all(isinstance(number, Tensor) and number.numel() == 1 for number in numbers):
        return loss  # type: ignore[return-value]
    found, right = quote_value(loss, max_length=50), "with a tensor of one number as value, and such tensors in a dict"
    raise UsageError(f"{type(objective).__name__} must return lw.Loss(value, logs), {right}, not {found}")


@dataclass(frozen=True)
class Trace:
    """The predicted answer after every loop, without its logits.

    Loops are counted from 1: ``predictions[k - 1]`` belongs to loop k, which ran in rows with ``loops >= k``. An answer
    is the first ``ends`` predictions, up to and including the first end symbol; ``confidence`` is the mean log
    probability of these predictions. ``movement`` is the relative change of a row's state: the largest
    ‖h_k − h_{k−p}‖ / ‖h_k‖ of its positions, for p = 1 and p = 2; infinite where k ≤ p.
    """

    predictions: Int[Tensor, "k b a"]
    ends: Int[Tensor, "k b"]
    confidence: Float[Tensor, "k b"]
    loops: Int[Tensor, " b"]
    movement: Float[Tensor, "k b p"] | None = None  # None: not computed, since no stopping rule reads it


UNKNOWN = "�"
EQUALS, END, PAUSE, START, PAD = "=", "$", "#", "^", "_"  # the symbols of layouts


@dataclass(frozen=True)
class Vocab:
    """An ordered set of symbols; a symbol's id is its index. Raises ValueError if a symbol occurs twice."""

    symbols: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(set(self.symbols)) != len(self.symbols):
            raise ValueError(f"a vocabulary must not repeat a symbol: {' '.join(self.symbols)}")

    def __len__(self) -> int:
        return len(self.symbols)

    def id(self, symbol: str) -> int:
        """Return the id of one symbol. Raises ValueError for a symbol that is not in the vocabulary."""
        return self.symbols.index(symbol)

    @property
    def separator(self) -> str:
        """The separator of symbols in a text: a space if any symbol has several letters, else empty."""
        return " " * any(len(symbol) > 1 for symbol in self.symbols)

    def split(self, text: str) -> list[str]:
        """Return the symbols of a text: its words if any symbol has several letters, else its characters."""
        return text.split() if self.separator else list(text)

    def encode(self, text: Iterable[str]) -> Int[Tensor, " n"]:
        """Return the ids of a text's symbols. Raises UsageError with the position (from 1) of an unknown symbol."""
        ids = {symbol: i for i, symbol in enumerate(self.symbols)}
        symbols = self.split(text) if isinstance(text, str) else list(text)
        for position, symbol in enumerate(symbols, 1):
            if symbol not in ids:
                raise UsageError(f"{symbol!r} at position {position} is not one of: {' '.join(self.symbols)}")
        return torch.tensor([ids[symbol] for symbol in symbols], dtype=torch.long)

    def decode(self, ids: Int[Tensor, " n"]) -> str:
        """Return the symbols with these ids as one text; ``UNKNOWN`` replaces ids without a symbol."""
        return self.separator.join(self.symbols[i] if i < len(self) else UNKNOWN for i in ids.tolist())
