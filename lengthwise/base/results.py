"""What results consist of. Apart from ``types``, so that reports read results without importing torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

# What problems are drawn: "uniform" ones of given sizes; "natural" ones, of the task's own distribution over sizes; a
# family's, by its name; "hard" ones, of the family that is the task's harder set; or "every" one of a size.
Kind = str


@dataclass(frozen=True)
class Score:
    """How one set of weights did on fresh problems of one size."""

    task: str
    weights: str
    stopping: str
    problems: Kind
    sizes: tuple[int, ...]
    count: int
    exact: float  # share of problems answered right in full, the answer's end included
    whole_row: float  # share of those also right in every place after the end (the official code's measure)
    token_accuracy: float  # share of answer symbols that are right
    loops: float  # loops used, mean over problems

    @staticmethod
    def counted(
        hits: Sequence[Sequence[int]], task: str, weights: str, stopping: str, problems: Kind, sizes: tuple[int, ...]
    ) -> Score:
        """From what is counted in each row: is it right, is all that follows right too, how many symbols of its answer
        are right, how many there are, and its loops."""
        exact, whole_row, tokens, total, loops = (sum(column) for column in zip(*hits, strict=True))
        count = len(hits)
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
        )

    @property
    def interval(self) -> tuple[float, float]:
        """Wilson's 95 % interval of ``exact``."""
        return wilson(self.exact, self.count)

    def row(self) -> dict[str, Any]:
        """Plain values, for JSON and CSV."""
        low, high = self.interval
        return {**asdict(self), "sizes": list(self.sizes), "low": low, "high": high}


@dataclass(frozen=True)
class RunOutline:
    """What a report says of a run: facts of its recipe, as plain values."""

    id: str
    seedless_id: str  # the id of the recipe with both seeds 0: runs that differ only in their seeds share it
    name: str
    seed: int
    data_seed: int
    task: str
    axes: tuple[str, ...]
    top: int  # the largest size trained on
    tops: tuple[int, ...]  # the same on each axis
    steps: int
    stopping: str  # the recipe's own rule
    model: str
    looked_at: tuple[int, ...] = ()  # sizes that may have chosen the recipe; none where that is not known


@dataclass(frozen=True)
class InquiryOutline:
    """What a report says of a language model that was asked."""

    id: str
    model: str
    task: str
    axes: tuple[str, ...]
    problems: Kind
    seed: int


def wilson(share: float, count: int, z: float = 1.959964) -> tuple[float, float]:
    """The interval of Wilson (1927) for a share seen in ``count`` trials; z is the normal quantile."""
    if count < 1:
        raise ValueError(f"an interval needs at least one trial, not {count}")
    centre = share + z * z / (2 * count)
    spread = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    scale = 1 + z * z / count
    # The ends are exact where the share is: rounding must not put 1.0 outside its own interval.
    low = 0.0 if share == 0 else max(0.0, (centre - spread) / scale)
    high = 1.0 if share == 1 else min(1.0, (centre + spread) / scale)
    return low, high
