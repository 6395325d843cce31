"""Positional encodings for digits: digits at the same position of their numbers share a learned vector."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn

from lengthwise.base.ranges import NotNegative, Size
from lengthwise.base.types import Inputs, UsageError
from lengthwise.nn.position import Encoding, Position


@dataclass(frozen=True)
class _DigitPosition(Position, former_names={"at": "added_to"}):
    """A learned vector for each digit position, added to the input or, with ``added_to="attention"``, to the queries
    and keys of every layer. The initial vectors have standard deviation ``std``. They are random or, with
    ``start="sines"``, sines and cosines of the digit position: then one linear map turns the vector of any position
    into that of the next.

    Training adds a random offset, 0 … ``offset`` − 1, to all digit positions of a batch or, with ``each_row``, of a
    row, so that digit positions of longer numbers are trained too. ``size`` must be at least the largest position +
    ``offset`` − 1; the model raises UsageError for digit positions above ``size``.
    """

    size: Size = 128  # digit positions in the table: the longest number in training, plus offset
    offset: Size = 100  # in training, a random number below this is added to digit positions
    each_row: bool = False  # draw the offset for each row, not for the batch
    # The vectors are added to the input, or to queries and keys of every layer.
    added_to: Literal["input", "attention"] = "input"
    std: NotNegative = 0.02  # standard deviation of the initial vectors
    start: Literal["random", "sines"] = "random"  # initial vectors: random, or sines of the digit position

    def build(self, width: int, heads: int) -> Encoding:
        return (_InputTable if self.added_to == "input" else _AttentionTable)(self, width)

    def _draw_offset(self, inputs: Inputs, generator: Generator) -> Int[Tensor, "#b 1"]:
        # Check the largest possible offset, not the drawn one, so that training fails at the first step.
        most = int(_get_digit_positions(inputs).amax()) + self.offset - 1
        _check_fits(type(self).__name__, most, self.size, "use shorter numbers, a larger size or a smaller offset")
        return torch.randint(self.offset, (len(inputs) if self.each_row else 1, 1), generator=generator)


@dataclass(frozen=True)
class Abacus(_DigitPosition):
    """Abacus embeddings (McLeish et al. 2024, section 3): equal digit positions of operands and answer share a learned
    vector. All signs share another vector, without an offset. The paper adds the vectors to the input; a blog that
    reproduced the paper adds them to queries and keys."""

    def vary(self, inputs: Inputs, generator: Generator) -> Inputs:
        offset = self._draw_offset(inputs, generator)
        return replace(inputs, digit_position=torch.where(inputs.digit_position > 0, inputs.digit_position + offset, 0))


@dataclass(frozen=True)
class Coupling(_DigitPosition):
    """Position coupling (Cho et al. 2024, section 3): equal digit positions share a learned vector. Signs count as
    digit position 0, as in the authors' code for reversed answers, and get the offset too."""

    each_row: bool = True  # draw the offset for each row, not for the batch

    def vary(self, inputs: Inputs, generator: Generator) -> Inputs:
        return replace(inputs, digit_position=inputs.digit_position + self._draw_offset(inputs, generator))


class _DigitTable(Encoding):
    def __init__(self, spec: _DigitPosition, width: int) -> None:
        super().__init__()
        self.kind = type(spec).__name__
        self.table = nn.Embedding(spec.size + 1, width)
        if spec.start == "random":
            nn.init.normal_(self.table.weight, std=spec.std)
        else:
            # Sines and cosines of all digit positions, at wavelengths from 4 to 4 · (size + 1).
            half, positions = (width + 1) // 2, spec.size + 1
            rates = 2 * math.pi / 4 * positions ** (-torch.arange(half) / max(1, half - 1))
            angles = torch.arange(positions)[:, None] * rates
            sines = torch.cat([angles.sin(), angles.cos()], -1)[:, :width]
            with torch.no_grad():
                self.table.weight.copy_(sines * (spec.std * math.sqrt(2)))

    def check(self, inputs: Inputs) -> None:
        advice = f"use shorter numbers, or train with larger {self.kind}(size=…, offset=…)"
        _check_fits(self.kind, int(_get_digit_positions(inputs.host).amax()), self.table.num_embeddings - 1, advice)

    def look_up(self, inputs: Inputs) -> Float[Tensor, "b t d"]:
        self.check(inputs)
        return self.table(_get_digit_positions(inputs))


def _check_fits(name: str, largest_position: int, table_size: int, advice: str) -> None:
    if largest_position > table_size:
        raise UsageError(f"{name}: digit position {largest_position} does not fit the table of {table_size}: {advice}")


def _get_digit_positions(inputs: Inputs) -> Int[Tensor, "b t"]:
    """Return digit positions, with 0 in place of the positions of padding, which may exceed the table."""
    return inputs.digit_position.where(inputs.padding_mask, 0)


class _InputTable(_DigitTable):
    vectors = _DigitTable.look_up


class _AttentionTable(_DigitTable):
    keys = _DigitTable.look_up
