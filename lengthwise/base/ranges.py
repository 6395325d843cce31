"""Limits on a field's values, as part of its type: ``rate: NotNegative``, ``base: Annotated[int, Range(2, 10)]``.
``find_broken_limit`` describes what a value must be, or returns None if it is valid."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, get_args, get_origin

LARGEST_SHOWN_BOUND = 10_000  # a larger upper bound only rules out impossible sizes, so messages leave it out


@dataclass(frozen=True)
class Range:
    """The finite numbers from ``low`` to ``high``. The interval includes both ends (``closed``), neither (``open``), or
    only the lower one (``half-open``)."""

    low: float = -math.inf
    high: float = math.inf
    ends: str = "closed"

    def find_broken_limit(self, value: float) -> str | None:
        high_enough = value > self.low if self.ends == "open" else value >= self.low
        low_enough = value <= self.high if self.ends == "closed" else value < self.high
        return None if high_enough and low_enough else self._describe(too_low=not high_enough)

    def __str__(self) -> str:
        low, high = self._describe(too_low=True), self._describe(too_low=False)
        return low if low == high or self.high >= LARGEST_SHOWN_BOUND else f"{low} and {high}"

    def _describe(self, too_low: bool) -> str:
        least = f"above {self.low:g}" if self.ends == "open" else f"{self.low:g} or more"
        most = f"{self.high:g} or less" if self.ends == "closed" else f"below {self.high:g}"
        if math.isinf(self.low) or math.isinf(self.high) or self.high >= LARGEST_SHOWN_BOUND:
            return least if too_low else most
        return f"{self.low:g} to {self.high:g}" if self.ends == "closed" else f"{least} and {most}"


@dataclass(frozen=True)
class Pattern:
    """Words that a regular expression matches in full; ``description`` describes them for users."""

    regex: str
    description: str

    def find_broken_limit(self, value: str) -> str | None:
        return None if re.fullmatch(self.regex, value) else self.description


@dataclass(frozen=True)
class Printable:
    """Text on one line, without control characters."""

    def find_broken_limit(self, value: str) -> str | None:
        return None if value.isprintable() else "one line of printable characters"


@dataclass(frozen=True)
class TupleLength:
    """Tuples of ``low`` to ``high`` values."""

    low: int
    high: int

    def find_broken_limit(self, value: Sequence[Any]) -> str | None:
        return None if self.low <= len(value) <= self.high else f"{self.low} to {self.high} values"


Count = Annotated[int, Range(1, 10**9)]
Whole = Annotated[int, Range(0, 10**9)]
Size = Annotated[int, Range(1, 10**6)]  # a size of a problem or of a tensor's axis, or a number of loops
Amount = Annotated[int, Range(0, 10**6)]  # a number of steps, neighbours, GPUs or other things; may be 0
Offset = Annotated[int, Range(-(10**6), 10**6)]  # a number to add to a size or subtract from it
Seeds = Annotated[int, Range(1, 1000)]  # replicates in one call
ThreadCount = Annotated[int, Range(1, 1024)]
Seed = Annotated[int, Range(-(2**63), 2**63 - 1)]
Real = Annotated[float, Range(-1e38, 1e38)]  # within float32
Positive = Annotated[float, Range(0, 1e38, "open")]
NotNegative = Annotated[float, Range(0, 1e38)]
Growth = Annotated[float, Range(1, 1e6)]  # a factor of at least 1
Fraction = Annotated[float, Range(0, 1)]
Decay = Annotated[float, Range(0, 1, "half-open")]  # a factor or probability below 1
Sizes = Annotated[tuple[Size, ...], TupleLength(1, 2)]  # a size on each of a task's axes
OneLine = Annotated[str, Printable()]
Name = Annotated[str, Pattern(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", "letters, digits and dashes, at most 100")]


def describe_type(annotation: str) -> str:
    """Return a field's type as in the source, with ranges in words: ``Size`` → ``int (1 or more)``."""
    inline = re.sub(
        r"Annotated\[(int|float), Range(\([^)]*\))\]",
        lambda found: _describe_number(found[1], Range(*ast.literal_eval(found[2]))),
        annotation,
    )
    return re.sub(r"\b[A-Z]\w+\b", lambda found: _TYPE_DESCRIPTIONS.get(found[0], found[0]), inline)


def _describe_number(type_name: str, bounds: Range) -> str:
    return type_name if bounds.low <= -LARGEST_SHOWN_BOUND else f"{type_name} ({bounds})"


_TYPE_DESCRIPTIONS = {
    name: _describe_number(get_args(alias)[0].__name__, get_args(alias)[1])
    for name, alias in list(globals().items())
    if get_origin(alias) is Annotated and isinstance(get_args(alias)[1], Range)
}
