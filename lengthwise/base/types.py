"""The nouns that flow through Lengthwise.

Letters in shapes: ``b`` rows, ``t`` positions, ``d`` width, ``v`` vocabulary, ``p`` prompt, ``a`` answer, ``k`` loops,
``r`` rows still running, ``n`` positions picked out of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from lengthwise.base.errors import UsageError as UsageError  # these have files of their own, which need no torch
from lengthwise.base.results import Kind as Kind
from lengthwise.base.results import Score as Score
from lengthwise.base.results import wilson as wilson


def integer_type(largest: int) -> torch.dtype:
    """A type for whole numbers up to this one: what takes less memory is computed in less time."""
    return torch.int8 if largest < 2**7 else torch.int16 if largest < 2**15 else torch.int32


SYMBOL = integer_type(99)  # of the tasks here: they have fewer symbols


class Rows:
    """A dataclass of tensors whose first axis is the row."""

    def __len__(self) -> int:
        return len(getattr(self, fields(self)[0].name))  # type: ignore[arg-type]

    def _map(self, function: Any) -> Self:
        return type(self)(**{f.name: function(getattr(self, f.name)) for f in fields(self)})  # type: ignore[arg-type]

    def take(self, rows: Int[Tensor, " r"] | Bool[Tensor, " b"] | slice) -> Self:
        """The given rows, in the given order; or those that are marked."""
        return self._map(lambda value: value.take(rows) if isinstance(value, Rows) else value[rows])

    def to(self, device: torch.device) -> Self:
        """The same rows on another device."""
        return self._map(lambda value: value.to(device))


@dataclass(frozen=True)
class Problems(Rows):
    """A task's only product: symbol ids of the task, of any integer type, padded on the right with zeros."""

    sizes: Int[Tensor, "b axes"]  # what was asked for, on the task's axes
    prompt: Int[Tensor, "b p"]
    prompt_length: Int[Tensor, " b"]
    answer: Int[Tensor, "b a"]
    answer_length: Int[Tensor, " b"]
    rounds: Int[Tensor, " b"]  # T(n): rounds that the reference algorithm takes

    @staticmethod
    def join(parts: Sequence[Problems]) -> Problems:
        """One set of problems after the other; the narrower ones are padded."""

        def stack(name: str) -> Tensor:
            tensors = [getattr(part, name) for part in parts]
            if tensors[0].dim() == 1:
                return torch.cat(tensors)
            width = max(tensor.shape[1] for tensor in tensors)
            return torch.cat([torch.nn.functional.pad(tensor, (0, width - tensor.shape[1])) for tensor in tensors])

        return Problems(**{f.name: stack(f.name) for f in fields(Problems)})

    def narrowed(self) -> Problems:
        """In bytes, as symbols are few: a large set then fits the memory. What counts further is left as it is."""
        return replace(self, prompt=self.prompt.to(SYMBOL), answer=self.answer.to(SYMBOL))


@dataclass(frozen=True)
class Inputs(Rows):
    """All that a model sees of a batch."""

    tokens: Int[Tensor, "b t"]
    position: Int[Tensor, "b t"]  # the position a positional encoding is told
    digit_position: Int[
        Tensor, "b t"
    ]  # where a digit stands in its own number, from 1, counted as the answer is; 0: a sign
    padding_mask: Bool[Tensor, "b t"]  # False where a row has ended: nothing may depend on what stands there

    def columns(self, start: int, stop: int) -> Inputs:
        """The places from ``start`` up to ``stop`` of each row."""
        return self._map(lambda value: value[:, start:stop])

    def narrow(self) -> Inputs:
        """No wider than the longest row."""
        longest = int(self.padding_mask.any(0).sum())
        return self if longest == self.tokens.shape[1] else self.columns(0, longest)


@dataclass(frozen=True)
class Batch(Rows):
    """Problems written as rows by a layout."""

    inputs: Inputs
    targets: Int[Tensor, "b t"]
    loss_mask: Bool[Tensor, "b t"]  # where the answer stands, its end included: supervised and scored
    answer_slots: Bool[Tensor, "b t"]  # where an answer may stand, known without the answer; one run per row
    rounds: Int[Tensor, " b"]
    sizes: Int[Tensor, "b axes"]

    def trimmed(self) -> Batch:
        """Rows that end where nothing more is asked. A causal model's loss is the same: nothing looks ahead."""
        reached = self.loss_mask.flip(1).cumsum(1).flip(1) > 0
        inputs = replace(self.inputs, padding_mask=self.inputs.padding_mask & reached)
        return replace(self, inputs=inputs, answer_slots=self.answer_slots & reached).narrow()

    def narrow(self) -> Batch:
        """No wider than the longest row."""
        inputs = self.inputs.narrow()
        width = inputs.tokens.shape[1]
        if width == self.targets.shape[1]:
            return self
        parts = {name: getattr(self, name)[:, :width] for name in ("targets", "loss_mask", "answer_slots")}
        return replace(self, inputs=inputs, **parts)


@dataclass(frozen=True)
class Loss:
    """What an objective returns: the number to descend, and tensors worth logging (means over the batch)."""

    value: Float[Tensor, ""]
    logs: dict[str, Tensor]


@dataclass(frozen=True)
class Trace:
    """What each loop would have answered, without its logits.

    Loop k is counted from 1, so it is ``said[k - 1]``; it was run in rows with ``loops >= k``. An answer is what was
    said in the first ``ends`` places, up to its own first end and with it; ``confidence`` is the mean log probability
    there.
    """

    predictions: Int[Tensor, "k b a"]
    ends: Int[Tensor, "k b"]
    confidence: Float[Tensor, "k b"]
    loops: Int[Tensor, " b"]
