"""Dataclasses for results. They are kept out of ``types`` so that reports can read results without importing torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lengthwise.base.errors import UsageError
from lengthwise.base.ranges import Count, Name, OneLine, Seed, Size, Sizes

# Which problems are drawn: "uniform" at given sizes; "natural" from the task's own distribution over sizes; a family's,
# by its name; "hard", from the family that is the task's harder set; or "every" one of a size.
Kind = str

AnySize = int | tuple[int, ...]  # a bare number stands for all of a task's axes (``Recipe.sizes``)


NORMAL = 1.959964  # the normal quantile of a 95 % interval


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

    @staticmethod
    def counted(
        hits: Sequence[int],
        count: int,
        task: str,
        weights: str,
        stopping: str,
        problems: Kind,
        sizes: tuple[int, ...],
        precision: float | None = None,
        family: str | None = None,
    ) -> Score:
        """From what is counted in so many rows together: how many are right, and right in all that follows too; how
        many symbols of their answers are right, and how many there are; and their loops."""
        exact, whole_row, tokens, total, loops = hits
        return Score(
            task,
            weights,
            stopping,
            problems,
            sizes,
            count,
            exact=exact / count,
            whole_row=whole_row / count,
            token_accuracy=tokens / total,
            loops=loops / count,
            precision=precision,
            family=family,
        )

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of ``exact``."""
        return wilson(self.exact, self.count)

    def row(self) -> dict[str, Any]:
        """Plain values, for JSON and CSV."""
        low, high = self.interval
        told = {name: value for name, value in asdict(self).items() if value is not None}
        return {**told, "sizes": list(self.sizes), "low": low, "high": high}


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
    top: Size  # the largest training size
    tops: Sizes  # the largest training size on each axis
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


def wilson(share: float, count: int, z: float = NORMAL) -> tuple[float, float]:
    """Wilson's (1927) confidence interval of a proportion ``share`` observed in ``count`` trials.

    ``z`` is the normal quantile. Raises ValueError if ``count`` is below 1.
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
