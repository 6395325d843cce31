"""Stopping rules: at test, which loop's answer is used. Pure functions of a ``Trace`` and of the planned loops."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lengthwise.base import fields
from lengthwise.base.ranges import Change, Extra, Size
from lengthwise.base.types import Trace, UsageError

PUBLISHED_BATCH = 512  # rows for which the published code chooses one loop


class Stopping(fields.Part):
    """Runs ``limit`` loops and chooses one of them, counted from 1: the last one, unless a subclass has a ``choose`` of
    its own. Subclasses are frozen dataclasses."""

    needs_end: bool = False  # True if answers must end with a symbol of their own, and so can be empty
    together: int = 1  # rows of a batch for which one choice is made: more than 1, and neighbours decide too

    @property
    def name(self) -> str:
        """The label in scores, e.g. ``Oracle`` or ``MaxConfidence(per=batch)``."""
        return fields.text(self)

    @property
    def reads_output(self) -> bool:
        """True if it chooses among the answers of several loops."""
        return type(self).choose is not Stopping.choose

    @abstractmethod
    def limit(self, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        """The number of loops that each row must run before the choice."""

    def choose(self, trace: Trace, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        """The loop, 1 to the limit, whose answer is used, per row; by default the last one."""
        return self.limit(planned)


@dataclass(frozen=True)
class Oracle(Stopping):
    """Halts after max(1, planned + ``more``) loops; the planned loops follow from the known T(n)."""

    more: Change = 0  # loops beyond the planned ones

    def limit(self, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        return (planned + self.more).clamp(min=1)


@dataclass(frozen=True)
class After(Stopping):
    """Halts every row after the same number of loops."""

    loops: Size  # loops of every row

    def limit(self, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        return torch.full_like(planned, self.loops)


class Reading(Stopping):
    """Looks at the answers of the first planned + ``extra`` loops."""

    extra: int

    def limit(self, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        return planned + self.extra


@dataclass(frozen=True)
class MaxConfidence(Reading):
    """The loop in 1 … planned + ``extra`` whose answer has the highest confidence, the earliest if equal.

    ``per="batch"`` is the published rule (Fan et al. 2025, section 5): one loop for all 512 rows of a batch, of one
    length, by mean confidence, so that an answer depends on the other rows. ``per="example"`` is ours.
    """

    extra: Extra = 20  # loops looked at beyond the planned ones
    per: Literal["example", "batch"] = "example"  # one loop for each problem, or one for a batch of 512 (published)

    @property
    def together(self) -> int:  # type: ignore[override]
        return PUBLISHED_BATCH if self.per == "batch" else 1

    def choose(self, trace: Trace, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        ran = _ran(trace)
        if self.per == "example":
            return trace.confidence.masked_fill(~ran, -torch.inf).argmax(0) + 1
        # Only loops that every row has run can be compared.
        together = trace.confidence[: int(trace.loops.min())].mean(1)
        return torch.full_like(trace.loops, int(together.argmax()) + 1)


@dataclass(frozen=True)
class Halted(Reading):
    """``more`` loops after the first whose answer is not empty, which is when its first symbol is not the end; at most
    the limit, planned + ``extra``. It does not use T(n), for weights that were trained to answer nothing until they are
    done (``AnyLoops`` with ``Halting``). Where answers stay, ``more`` forgives a model that says so a little early."""

    extra: Extra = 20  # loops beyond the planned ones, at most
    more: Extra = 0  # loops beyond the first that answers
    needs_end = True

    def choose(self, trace: Trace, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        answered = (trace.ends > 1) & _ran(trace)
        return torch.minimum(_first(answered, trace.loops) + self.more, trace.loops)


@dataclass(frozen=True)
class Converged(Reading):
    """The first loop whose answer stays the same for ``patience`` more loops; else the limit, planned + ``extra``."""

    patience: Size = 2  # further loops that must give the same answer
    extra: Extra = 20  # loops beyond the planned ones, at most

    def choose(self, trace: Trace, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        slot = torch.arange(trace.predictions.shape[2], device=trace.predictions.device)
        differs = (trace.predictions[1:] != trace.predictions[:-1]) & (slot < trace.ends[1:, :, None])
        same = ~differs.any(-1) & (trace.ends[1:] == trace.ends[:-1])  # same[k - 1]: loops k and k + 1 agree
        same &= _ran(trace)[1:]
        if len(same) < self.patience:
            return trace.loops
        return _first(same.unfold(0, self.patience, 1).all(-1), trace.loops)


def limit_of(rule: Stopping, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
    """The loops that a rule has each row run. Raises UsageError unless they are whole numbers from 1 up."""
    limit = rule.limit(planned)
    if not isinstance(limit, Tensor) or limit.dtype != torch.long or limit.shape != planned.shape:
        raise UsageError(f"{rule.name}: limit gives a torch.long for each of {len(planned)} rows, not {_said(limit)}")
    if (wrong := limit < 1).any():
        row = int(wrong.long().argmax())
        raise UsageError(
            f"{rule.name}: limit gives {int(limit[row])} loops to a row of {int(planned[row])} planned ones; "
            "every row runs 1 or more"
        )
    return limit


def chosen_by(rule: Stopping, trace: Trace, planned: Int[Tensor, " b"], limit: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
    """The loops that a rule chooses. Raises UsageError if it names one that was not run."""
    chosen = rule.choose(trace, planned)
    if not isinstance(chosen, Tensor) or chosen.dtype != torch.long or chosen.shape != limit.shape:
        raise UsageError(f"{rule.name}: choose gives a torch.long for each of {len(limit)} rows, not {_said(chosen)}")
    if (wrong := (chosen < 1) | (chosen > limit)).any():
        row = int(wrong.long().argmax())
        raise UsageError(
            f"{rule.name}: choose named loop {int(chosen[row])} of a row that ran loops 1 to {int(limit[row])}; "
            "what a trace holds after trace.loops means nothing"
        )
    return chosen


def _said(found: object) -> str:
    return f"{found.dtype} of {tuple(found.shape)}" if isinstance(found, Tensor) else type(found).__name__


def _first(hit: Bool[Tensor, "k b"], otherwise: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
    """The first loop, counted from 1, at which ``hit`` is True in a row, or else ``otherwise``."""
    return torch.where(hit.any(0), hit.long().argmax(0) + 1, otherwise)


def _ran(trace: Trace) -> Bool[Tensor, "k b"]:
    return torch.arange(len(trace.predictions), device=trace.loops.device)[:, None] < trace.loops
