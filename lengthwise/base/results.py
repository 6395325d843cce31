"""Dataclasses for results. They are kept out of ``types`` so that reports can read results without importing torch."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from lengthwise.base.errors import UsageError
from lengthwise.base.ranges import Count, Name, OneLine, Seed, Size, Sizes

# Which problems are drawn: "uniform" at given sizes; "natural" from the task's own distribution over sizes; a family's,
# by its name; "hard", from the family that is the task's harder set; or "every" one of a size.
Kind = str

AnySize = int | tuple[int, ...]  # a bare number stands for all of a task's axes (``Recipe.sizes``)


NORMAL = 1.959964  # the normal quantile of a 95 % interval


@dataclass(frozen=True)
class Outcomes:
    """The problems of a score and which were answered right, so that scores on the same problems can be paired."""

    problems: bytes  # a digest of the problems, in their order
    right: bytes  # a byte for each problem: 1 if the whole answer is right, else 0


@dataclass(frozen=True)
class Score:
    """The accuracy of one set of weights on new problems of one size."""

    task: str
    weights: str
    stopping: str
    problems: Kind
    sizes: tuple[int, ...]
    count: int
    exact: float  # fraction of problems whose answer is correct in every symbol, its end included
    # Fraction that is also correct at every position after the end (the official code's measure); None: not known.
    whole_row: float | None
    token_accuracy: float  # fraction of answer symbols that are correct
    loops: float  # loops used, mean over problems
    precision: float | None = None  # half the width of an interval that ended the count early; None: it did not
    family: str | None = None  # "alone": of one family, by its name; None: of none, or with all the others
    together: int | None = None  # problems of a batch for which the rule chose one loop; None: each has its own
    distinct: int | None = None  # number of different problems among ``count``; None: all differ, or not known
    fixed_set: bool | None = None  # True: drawn from the test part of a fixed set, and some of them several times
    chance: float | None = None  # the per-symbol accuracy of guessing; None: the layout does not report it
    at_limit: float | None = None  # fraction of problems that only the rule's limit ended; None: it has no other end
    ran: float | None = None  # loops run to choose those, mean over problems: the compute; None: the rule reads nothing
    outcomes: Outcomes | None = field(default=None, compare=False, repr=False)  # in memory only; None: not known

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of ``exact``, over independent trials (see ``trials``)."""
        return wilson(self.exact, trials(vars(self)))

    @property
    def scaled(self) -> float | None:
        """Accuracy per symbol on a scale from guessing, 0, to all right, 1; below 0 if it is worse than guessing. None
        without ``chance``."""
        return None if self.chance is None else (self.token_accuracy - self.chance) / (1 - self.chance)

    def row(self) -> dict[str, Any]:
        """Plain values, for JSON and CSV."""
        low, high = self.interval
        scaled = {} if self.scaled is None else {"scaled": self.scaled}
        names = [one.name for one in fields(self) if one.name != "outcomes"]
        known = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {**known, **scaled, "sizes": list(self.sizes), "low": low, "high": high}


@dataclass(frozen=True)
class RunOutline:
    """The facts of a run's recipe that a report shows, as plain values."""

    id: Name
    seedless_id: Name  # the id of the recipe with both seeds 0: runs that differ only in their seeds share it
    name: Name
    seed: Seed
    data_seed: Seed
    task: OneLine
    axes: tuple[OneLine, ...]
    top: Size  # the largest training size; 0 where Python evaluates a module of which it is not known
    tops: Sizes  # the largest training size on each axis, likewise
    steps: Count
    stopping: OneLine  # the recipe's own stopping rule
    model: OneLine
    looked_at: tuple[Size, ...] = ()  # sizes that may have chosen the recipe; none where that is not known

    def __post_init__(self) -> None:
        if len(self.axes) != len(self.tops):
            raise UsageError(f"an outline has a largest size on each axis, not {len(self.tops)} on {len(self.axes)}")


@dataclass(frozen=True)
class InquiryOutline:
    """The facts that a report shows about a language model that was asked."""

    id: Name
    model: OneLine
    task: OneLine
    axes: tuple[OneLine, ...]
    problems: OneLine
    seed: Seed


def independent_trials(count: int, together: int | None = None) -> float:
    """Return how many independent trials ``count`` problems are worth (Kish 1965): as many as there are batches, where
    a rule chose one loop for each batch of ``together`` problems, since one choice decides all of them. A batch that
    is not full counts for less. The problems of a batch need not agree, so an interval may be wider than necessary."""
    full, rest = divmod(count, together or 1)
    return count**2 / (full * (together or 1) ** 2 + rest**2)


def problems_counted(row: Mapping[str, Any]) -> int:
    """Return the number of problems that the interval of a score's fields counts. A problem that is drawn again from
    the few that a fixed set leaves for tests shows nothing new about those of its size; one drawn again from a task's
    own distribution is another draw of it."""
    return row["distinct"] if row.get("fixed_set") else row["count"]


def trials(row: Mapping[str, Any]) -> float:
    """Return the number of independent trials that a score's fields stand for."""
    return independent_trials(problems_counted(row), row.get("together"))


def wilson(share: float, count: float, z: float = NORMAL) -> tuple[float, float]:
    """Wilson's (1927) confidence interval of a proportion ``share`` observed in ``count`` trials.

    ``count`` need not be a whole number (see ``independent_trials``); ``z`` is the normal quantile. Raises ValueError
    if ``count`` is below 1.
    """
    if count < 1:
        raise ValueError(f"an interval needs at least one trial, not {count}")
    centre = share + z * z / (2 * count)
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    # Rounding must not put a proportion of 0 or 1 outside its own interval.
    low = 0.0 if share == 0 else max(0.0, (centre - spread) / scale)
    high = 1.0 if share == 1 else min(1.0, (centre + spread) / scale)
    return low, high
