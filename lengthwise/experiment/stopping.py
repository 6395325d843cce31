"""Stopping rules, which choose the loop whose answer is used, given a ``Trace`` and T(n). ``After``, ``Settled`` and
rules with a limit ``max_loops`` do not use T(n)."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from lengthwise.base import fields
from lengthwise.base.ranges import Amount, Offset, Positive, Size
from lengthwise.base.types import Trace, UsageError
from lengthwise.experiment.own_code import wrap_user_errors

PUBLISHED_BATCH = 512  # number of rows for which the published code chooses one loop


class Stopping(fields.Config):
    """Base class of stopping rules. A row runs at most ``limit`` loops, counted from 1. The last loop gives the answer,
    unless a subclass defines ``done``, which stops a row, or ``choose``, which compares all loops. Subclasses are
    frozen dataclasses."""

    needs_end: bool = False  # True if answers must end with a symbol of their own, and so can be empty
    needs_movement: bool = False  # True if the rule reads ``trace.movement``
    together: int = 1  # number of rows in a batch that share one choice; 1 if the choice depends on the row alone
    window: int = 1  # number of loops in the trace that ``done`` gets: the latest one and those before it
    answer_lag: int = 0  # number of loops from the answer's loop to the loop after which ``done`` is True
    starts: int = 1  # number of initial states from which each row is answered

    @property
    def name(self) -> str:
        """The rule's label in scores, such as ``Oracle`` or ``MaxConfidence(per=batch)``."""
        return fields.format_part(self)

    @property
    def may_stop_early(self) -> bool:
        """True if the rule defines ``done``, so that a row may end before its limit."""
        return type(self).done is not Stopping.done

    @property
    def reads_output(self) -> bool:
        """True if the rule chooses among the answers of several loops."""
        return self.may_stop_early or type(self).choose is not Stopping.choose

    @abstractmethod
    def limit(self, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        """Return the largest number of loops of each row, given the planned number."""

    def done(self, trace: Trace, planned: Int[Tensor, " b"]) -> Bool[Tensor, " b"]:
        """Return a mask of the rows that stop now. ``trace`` holds the last ``window`` loops, or fewer at first;
        ``trace.loops`` is the number of loops run. Results for rows that stopped earlier are ignored."""
        raise NotImplementedError

    def choose(self, trace: Trace, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        """Return, per row, the loop whose answer is used, from 1 to the limit: by default the loop that ``done``
        chooses, or the last one."""
        return find_first_done(self, trace, planned)[0] if self.may_stop_early else self.limit(planned)


@dataclass(frozen=True)
class Oracle(Stopping, former_names={"more": "offset"}):
    """Halts after max(1, planned + ``offset``) loops; the planned loops follow from the known T(n)."""

    offset: Offset = 0  # loops beyond the planned ones

    def limit(self, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        return (planned + self.offset).clamp(min=1)


@dataclass(frozen=True)
class After(Stopping):
    """Halts every row after the same number of loops."""

    loops: Size  # loops of every row

    def limit(self, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        return torch.full_like(planned, self.loops)


class OutputRule(Stopping, former_names={"most": "max_loops"}):
    """Base class of rules that read the answers of the first planned + ``extra`` loops, or of the first
    ``max_loops``."""

    extra: int
    max_loops: int | None = None

    def limit(self, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        return planned + self.extra if self.max_loops is None else torch.full_like(planned, self.max_loops)


@dataclass(frozen=True)
class MaxConfidence(OutputRule):
    """Chooses the loop in 1 … planned + ``extra`` whose answer has the highest confidence; on a tie, the earliest.

    ``per="batch"`` is the published rule (Fan et al., 2025, section 5): it chooses one loop for all 512 rows of a
    batch, which have one length, by their mean confidence, so an answer depends on the others. The official code tests
    on 512 rows during training and on 6,400 at the end. ``per="example"``, which chooses a loop for each row, is not
    published.
    """

    extra: Amount = 20  # loops compared beyond the planned ones
    per: Literal["example", "batch"] = "example"  # one loop for each problem, or one for a batch of 512 (published)
    max_loops: Size | None = None  # loops compared, independent of the planned ones; none: planned + extra

    @property
    def together(self) -> int:  # type: ignore[override]
        return PUBLISHED_BATCH if self.per == "batch" else 1

    def choose(self, trace: Trace, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        if self.per == "example":
            ran = torch.arange(len(trace.confidence), device=trace.loops.device)[:, None] < trace.loops
            return trace.confidence.masked_fill(~ran, -torch.inf).argmax(0) + 1
        # Only loops that every row has run can be compared.
        mean_confidence = trace.confidence[: int(trace.loops.min())].mean(1)
        return torch.full_like(trace.loops, int(mean_confidence.argmax()) + 1)


@dataclass(frozen=True)
class Halted(OutputRule, former_names={"more": "delay"}):
    """Halts ``delay`` loops after the first loop whose answer is not empty (its first symbol is not the end symbol), or
    at the limit, planned + ``extra``. The rule is for weights trained to give an empty answer until they have solved
    the problem (``AnyLoops`` with ``Halting``). If later answers stay right, ``delay`` corrects for a model that
    answers a little early."""

    extra: Amount = 20  # maximum number of loops beyond the planned ones
    delay: Amount = 0  # loops beyond the first one with an answer
    max_loops: Size | None = None  # maximum number of loops, independent of the planned ones; none: planned + extra
    needs_end = True

    @property
    def window(self) -> int:  # type: ignore[override]
        return self.delay + 1

    def done(self, trace: Trace, planned: Int[Tensor, " b"]) -> Bool[Tensor, " b"]:
        answered = trace.ends[0] > 1
        return answered if len(trace.ends) == self.window else torch.zeros_like(answered)


@dataclass(frozen=True)
class Converged(OutputRule):
    """Chooses the first loop whose answer stays the same for ``patience`` more loops, or else the limit, planned +
    ``extra``."""

    patience: Size = 2  # further loops that must give the same answer
    extra: Amount = 20  # maximum number of loops beyond the planned ones
    max_loops: Size | None = None  # maximum number of loops, independent of the planned ones; none: planned + extra

    @property
    def answer_lag(self) -> int:  # type: ignore[override]
        return self.patience

    @property
    def window(self) -> int:  # type: ignore[override]
        return self.patience + 1

    def done(self, trace: Trace, planned: Int[Tensor, " b"]) -> Bool[Tensor, " b"]:
        slot = torch.arange(trace.predictions.shape[2], device=trace.predictions.device)
        differs = (trace.predictions[1:] != trace.predictions[:-1]) & (slot < trace.ends[1:, :, None])
        same = ~differs.any(-1) & (trace.ends[1:] == trace.ends[:-1])
        return same.all(0) & (len(trace.ends) == self.window)


@dataclass(frozen=True)
class Settled(Stopping, former_names={"most": "max_loops"}):
    """Halts at the first loop k that moves the state h by less than ``below``: ‖h_k − h_{k−p}‖ / ‖h_k‖ < ``below`` at
    every position, with p the ``period``. The rule does not use T(n); a row that never settles is answered after
    ``max_loops`` loops.

    An answer may stay the same for some loops before it is right; a state that no longer moves keeps its answer. For a
    model with a clock (``Timed``), only the state of ``answers`` counts.
    """

    below: Positive = 0.1  # relative movement of the state at every position, below which a row halts
    period: Literal[1, 2] = 1  # loops over which movement is measured; with 2, states that alternate count as settled
    max_loops: Size = 500  # maximum number of loops
    needs_movement = True

    def limit(self, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        return torch.full_like(planned, self.max_loops)

    def done(self, trace: Trace, planned: Int[Tensor, " b"]) -> Bool[Tensor, " b"]:
        if trace.movement is None:
            raise UsageError(f"{self.name} needs trace.movement, which this trace lacks")
        return trace.movement[-1, :, self.period - 1] < self.below


@dataclass(frozen=True)
class Restarts(Stopping):
    """Answers each problem by ``rule`` from ``count`` initial states, and keeps the most confident answer. With
    ``pick="residual"``, it keeps the answer whose loop moved the state least, measured at the position that moved most.

    The first initial state is the model's own, so its answer is always among those compared. The other states are
    random, as in training, and depend on the problem's symbols only. The model needs ``start_noise``, e.g.
    ``Transformer(noise=1)``.
    """

    rule: Stopping = Settled()  # chooses the loop of each answer
    count: Size = 8  # number of initial states
    pick: Literal["confidence", "residual"] = "confidence"  # which answer is kept; the earliest on a tie

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.rule, Restarts):
            raise UsageError("Restarts needs a rule other than Restarts: for more initial states, raise count")
        for name in ("needs_end", "together", "window", "answer_lag"):
            object.__setattr__(self, name, getattr(self.rule, name))
        object.__setattr__(self, "starts", self.count)
        object.__setattr__(self, "needs_movement", self.pick == "residual" or self.rule.needs_movement)

    @property
    def may_stop_early(self) -> bool:
        return self.rule.may_stop_early

    @property
    def reads_output(self) -> bool:
        return True

    def limit(self, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        return self.rule.limit(planned)

    def done(self, trace: Trace, planned: Int[Tensor, " b"]) -> Bool[Tensor, " b"]:
        return self.rule.done(trace, planned)

    def choose(self, trace: Trace, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
        return self.rule.choose(trace, planned)


def compute_loop_limits(rule: Stopping, planned: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
    """Return a rule's limit on the loops of each row. Raises UsageError unless limits are whole numbers from 1 up."""
    with wrap_user_errors(rule):
        limit = rule.limit(planned)
    check_loops(rule, "limit", limit, len(planned))
    return limit


def check_loops(part: fields.Config, method: str, loops: Int[Tensor, " b"], rows: int) -> None:
    """Raise UsageError unless the loops that a part's method returned are whole numbers from 1 up, one per row."""
    _check_row_values(part, method, loops, torch.long, rows)
    if (loops < 1).any():
        name = fields.format_part(part)
        raise UsageError(f"{name}: {method} returned {int(loops.min())} loops; it must return 1 or more")


def choose_loops(
    rule: Stopping, trace: Trace, planned: Int[Tensor, " b"], limit: Int[Tensor, " b"]
) -> Int[Tensor, " b"]:
    """Return the loop that a rule chooses for each row. Raises UsageError if the row did not run this loop."""
    chosen = rule.choose(trace, planned)
    _check_row_values(rule, "choose", chosen, torch.long, len(limit))
    if (wrong := (chosen < 1) | (chosen > limit)).any():
        chosen_loop, ran = int(chosen[wrong][0]), int(limit[wrong][0])
        raise UsageError(f"{rule.name}: choose returned loop {chosen_loop} for a row; it must be 1 to {ran}")
    return chosen


def _check_row_values(part: fields.Config, method: str, value: object, dtype: torch.dtype, rows: int) -> None:
    """Raise UsageError unless ``value``, returned by a part's method, is a tensor of this type, one number per row."""
    if not isinstance(value, Tensor) or value.dtype != dtype or value.shape != (rows,):
        expected = "torch.bool" if dtype == torch.bool else "torch.long"
        error = f"{fields.format_part(part)}: {method} must return a {expected} for each of {rows} rows"
        raise UsageError(f"{error}, not {describe_value(value)}")


def describe_value(value: object) -> str:
    """Return a tensor's type and shape, or another value's type."""
    return f"{value.dtype} of {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def find_done_rows(
    rule: Stopping, trace: Trace, loop: int, planned: Int[Tensor, " b"], entry_count: int | None = None
) -> Bool[Tensor, " b"]:
    """Return a mask of the rows that a rule stops after ``loop``, by the first ``entry_count`` entries of ``trace``
    (None: all). Raises UsageError if the rule does not return a mask, or stops a row whose answer comes from a loop
    outside the rule's window."""
    entry_count = len(trace.ends) if entry_count is None else entry_count
    window = slice(max(0, entry_count - rule.window), entry_count)
    movement = None if trace.movement is None else trace.movement[window]
    loops = torch.full_like(trace.loops, loop)
    latest = Trace(trace.predictions[window], trace.ends[window], trace.confidence[window], loops, movement)
    done = rule.done(latest, planned)
    _check_row_values(rule, "done", done, torch.bool, len(planned))
    lag = rule.answer_lag
    if lag >= min(loop, rule.window) and done.any():
        raise UsageError(f"{rule.name}: done stopped a row after loop {loop}; its answer comes from {lag} loops before")
    return done


def find_first_done(
    rule: Stopping, trace: Trace, planned: Int[Tensor, " b"]
) -> tuple[Int[Tensor, " b"], Bool[Tensor, " b"]]:
    """Return the loop of each row's answer by a rule with ``done``, and a mask of the rows that the rule stopped, at or
    before their last loop, ``trace.loops``."""
    chosen, stopped = trace.loops.clone(), torch.zeros_like(trace.loops, dtype=torch.bool)
    for loop in range(1, len(trace.ends) + 1):
        ran = (loop <= trace.loops) & ~stopped
        if not ran.any():
            continue
        new = find_done_rows(rule, trace, loop, planned, loop) & ran
        chosen, stopped = chosen.masked_fill(new, loop - rule.answer_lag), stopped | new
    return chosen, stopped
