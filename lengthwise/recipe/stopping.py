"""Which loop answers at test: pure functions of a Trace and of the loops planned for each row."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lengthwise.base import fields
from lengthwise.base.types import Trace, UsageError


class Stopping(ABC):
    """Up to ``limit`` loops are run; ``choose`` names the one, counted from 1, whose answer is given."""

    reads_output: bool  # does the choice depend on what was said?

    @property
    def name(self) -> str:
        """How scores are labelled, e.g. ``Oracle`` or ``MaxConfidence(per=batch)``."""
        return fields.text(self)

    @abstractmethod
    def limit(self, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        """How far each row must be run before choosing."""

    @abstractmethod
    def choose(self, trace: Trace, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        """The loop that answers, per row, between 1 and the limit."""


@dataclass(frozen=True)
class Oracle(Stopping):
    """The planned loops, which take T(n) as known; ``more`` shifts them (fewer than 1 counts as 1)."""

    more: int = 0
    reads_output = False

    def limit(self, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        return (planned + self.more).clamp(min=1)

    def choose(self, trace: Trace, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        return self.limit(planned)


@dataclass(frozen=True)
class After(Stopping):
    """The same number of loops whatever the problem."""

    loops: int
    reads_output = False

    def __post_init__(self) -> None:
        if self.loops < 1:
            raise UsageError(f"loops must be 1 or more, not {self.loops}")

    def limit(self, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        return torch.full_like(planned, self.loops)

    def choose(self, trace: Trace, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        return self.limit(planned)


@dataclass(frozen=True)
class MaxConfidence(Stopping):
    """The loop, among 1 … planned + ``extra``, whose answer has the highest confidence; the earliest of equals
    (Fan et al. 2025, section 5). ``per="batch"`` is the published variant: one loop for all rows that are evaluated
    together, so that an answer depends on its neighbours."""

    extra: int = 20
    per: Literal["example", "batch"] = "example"
    reads_output = True

    def __post_init__(self) -> None:
        if self.extra < 0:
            raise UsageError(f"extra must be 0 or more, not {self.extra}")

    def limit(self, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        return planned + self.extra

    def choose(self, trace: Trace, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        ran = _ran(trace)
        if self.per == "example":
            return trace.confidence.masked_fill(~ran, -torch.inf).argmax(0) + 1
        # Only loops that every row has run can be compared.
        together = trace.confidence[: int(trace.loops.min())].mean(1)
        return torch.full_like(trace.loops, int(together.argmax()) + 1)


@dataclass(frozen=True)
class Sure(Stopping):
    """The first loop whose confidence, as the geometric mean of its symbols' probabilities, is ``least`` or more; else
    the limit, planned + ``extra``. It does not use T(n), for weights that were trained to be undecided until they are
    done (``AnyLoops`` with ``Undecided``)."""

    least: float = 0.9
    extra: int = 20
    reads_output = True

    def __post_init__(self) -> None:
        if not 0 < self.least < 1 or self.extra < 0:
            raise UsageError(f"least must be between 0 and 1 and extra 0 or more, not {self.least} and {self.extra}")

    def limit(self, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        return planned + self.extra

    def choose(self, trace: Trace, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        sure = (trace.confidence >= math.log(self.least)) & _ran(trace)
        return torch.where(sure.any(0), sure.long().argmax(0) + 1, trace.loops)


@dataclass(frozen=True)
class Converged(Stopping):
    """The first loop whose answer stays the same for ``patience`` more loops; else the limit, planned + ``extra``."""

    patience: int = 2
    extra: int = 20
    reads_output = True

    def __post_init__(self) -> None:
        if self.patience < 1 or self.extra < 0:
            raise UsageError(f"patience must be 1 or more and extra 0 or more, not {self.patience} and {self.extra}")

    def limit(self, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        return planned + self.extra

    def choose(self, trace: Trace, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        slot = torch.arange(trace.predictions.shape[2], device=trace.predictions.device)
        differs = (trace.predictions[1:] != trace.predictions[:-1]) & (slot < trace.ends[1:, :, None])
        same = ~differs.any(-1) & (
            trace.ends[1:] == trace.ends[:-1]
        )  # same[k - 1]: loop k + 1 answered what loop k did
        same &= _ran(trace)[1:]
        runs = same.unfold(0, self.patience, 1).all(-1) if len(same) >= self.patience else same[:0]
        found = runs.any(0) if len(runs) else torch.zeros_like(trace.loops, dtype=torch.bool)
        first = runs.long().argmax(0) + 1 if len(runs) else trace.loops
        return torch.where(found, first, trace.loops)


def _ran(trace: Trace) -> Bool[Tensor, "k b"]:
    return torch.arange(len(trace.predictions), device=trace.loops.device)[:, None] < trace.loops
