"""The number of loops of each row, which is drawn in training and planned at test time."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from lengthwise.base.fields import Config
from lengthwise.base.ranges import Amount, Fraction, Offset, Size


class Loops(Config):
    """Base class of rules that map T(n), the rounds of the reference algorithm, to a model's number of loops. Tensors
    are on the CPU. Subclasses are frozen dataclasses."""

    adapts: ClassVar[bool] = True  # True if the number of loops depends on the problem

    @abstractmethod
    def planned(self, rounds: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        """Return the number of loops after which a row should be solved; ``Oracle`` uses it at test time."""

    def draw(self, rounds: Int[Tensor, " b"], generator: Generator) -> Int[Tensor, " b"]:
        """Draw the number of loops of each row of a training batch."""
        return self.planned(rounds)


@dataclass(frozen=True)
class Constant(Loops):
    """The same number of loops for every problem: 1 for a standard model, more for FOP-Loop-Fixed and NTP-Loop."""

    count: Size = 1  # loops of every problem

    adapts = False

    def planned(self, rounds: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        return torch.full_like(rounds, self.count)


@dataclass(frozen=True)
class PerRound(Loops, former_names={"more": "offset"}):
    """Step-dependent supervision (Fan et al., 2025, section 4): max(1, ``times`` · T(n) + ``offset``) loops."""

    offset: Offset = 0  # loops beyond times · T(n)
    times: Size = 1  # loops per round of the reference algorithm

    def planned(self, rounds: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        return (self.times * rounds + self.offset).clamp(min=1)


@dataclass(frozen=True)
class LogRounds(Loops, former_names={"more": "offset"}):
    """A logarithmic number of loops, max(1, ⌈log₂ T(n)⌉ + ``offset``), for models that combine twice as many symbols in
    every loop (``Scan``)."""

    offset: Offset = 0  # loops beyond ⌈log₂ T(n)⌉

    def planned(self, rounds: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        return (rounds.double().log2().ceil().long() + self.offset).clamp(min=1)


@dataclass(frozen=True)
class ExtraLoops(Loops, former_names={"more": "offset"}):
    """One loop per round, max(1, T(n) + ``offset``). In training, a row runs 0 … ``extra`` further loops, drawn
    uniformly, so that the model learns to keep its answer."""

    offset: Offset = 0  # loops beyond T(n)
    extra: Amount = 5  # maximum number of further loops in training

    def planned(self, rounds: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        return (rounds + self.offset).clamp(min=1)

    def draw(self, rounds: Int[Tensor, " b"], generator: Generator) -> Int[Tensor, " b"]:
        return self.planned(rounds) + torch.randint(self.extra + 1, rounds.shape, generator=generator)


@dataclass(frozen=True)
class AnyLoops(ExtraLoops):
    """Like ``ExtraLoops``, but in training a fraction ``early`` of the rows stops at a random loop before the planned
    one. The objective ``Halting`` teaches the model that such rows are not solved yet."""

    early: Fraction = 0.25  # fraction of training rows that stop before their planned loop

    def draw(self, rounds: Int[Tensor, " b"], generator: Generator) -> Int[Tensor, " b"]:
        late, latest = super().draw(rounds, generator), (self.planned(rounds) - 1).clamp(min=1)
        before = 1 + (torch.rand(rounds.shape, generator=generator) * latest).long()
        return torch.where(torch.rand(rounds.shape, generator=generator) < self.early, before, late)
