"""The axes of a sweep: fields of a recipe, each over some values or a range."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from lengthwise.base.errors import UsageError

NUMBER = r"[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?"
FORBIDDEN = {  # fields that do not change the method: the best value would be chosen by luck
    "name": "a name does not change training",
    "seed": "a seed is not chosen: --seeds 3 compares recipes by the mean of three",
    "data_seed": "a seed is not chosen: --seeds 3 compares recipes by the mean of three",
}
Point = dict[str, str]  # a field's path → its value, as a user would type it


@dataclass(frozen=True)
class Axis:
    """A field with its values as text, or with a range from ``low`` to ``high`` to search in."""

    path: str
    values: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False  # whole numbers only

    @staticmethod
    def parse(word: str) -> Axis | None:
        """Parse ``path=a,b,c``, or ``path=low..high`` with ``:log`` and ``:count`` after it; return None for a single
        value. Raises UsageError for an empty range."""
        path, _, text = word.partition("=")
        if match := re.fullmatch(rf"({NUMBER})\.\.({NUMBER})(:log)?(?::(\d+))?", text):
            low, high, log = float(match[1]), float(match[2]), bool(match[3])
            if not low < high or (log and low <= 0):
                raise UsageError(f"{path}: a range must ascend, and a log range must start above 0, not {text}")
            whole = all(re.fullmatch(r"[-+]?\d+", match[n]) for n in (1, 2))
            axis = Axis(path, (), low, high, log, whole)
            return Axis(path, axis.points(int(match[4]))) if match[4] else axis
        values = tuple(part.strip() for part in _split_list(text))
        return Axis(path, tuple(dict.fromkeys(values))) if len(values) > 1 else None

    def points(self, count: int) -> tuple[str, ...]:
        """Return ``count`` evenly spaced values, both ends of the range included."""
        if count < 2:
            raise UsageError(f"{self.path}: a range has 2 points or more, not {count}")
        low, high = (math.log(end) if self.log else end for end in (self.low, self.high))
        spaced = (low + (high - low) * i / (count - 1) for i in range(1, count - 1))
        between = (self.format_value(math.exp(one) if self.log else one) for one in spaced)
        return tuple(dict.fromkeys((self._format_end(self.low), *between, self._format_end(self.high))))

    def format_value(self, value: float) -> str:
        """Format a value of the range with four digits, unless rounding would leave the range."""
        short = self._format_end(value) if self.whole else f"{value:.4g}"
        in_range = self.low <= float(short) <= self.high
        return short if in_range else self._format_end(min(max(value, self.low), self.high))

    def _format_end(self, value: float) -> str:
        return str(round(value)) if self.whole else repr(value).removesuffix(".0")


def _split_list(text: str) -> list[str]:
    """Split at the commas that are outside parentheses and brackets."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([") - (letter in ")]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def parse_axes(words: Iterable[str]) -> tuple[list[Axis], list[str]]:
    """Return the axes, and the words that set a field to one value. Raises UsageError if there is no axis."""
    found = [(word, Axis.parse(word)) for word in words]
    axes = [axis for _, axis in found if axis]
    if not axes:
        raise UsageError(
            "nothing varies: write several values, model.width=32,64, or a range, optimizer.rate=1e-3..1e-2:log"
        )
    if len({axis.path for axis in axes}) < len(axes):
        raise UsageError("vary each field only once")
    for axis in axes:
        if axis.path in FORBIDDEN:
            raise UsageError(f"{axis.path}: {FORBIDDEN[axis.path]}")
    return axes, [word for word, axis in found if not axis]


def grid_points(axes: Sequence[Axis]) -> Iterator[Point]:
    """Yield every combination of values. Raises UsageError for a range without points."""
    for axis in axes:
        if not axis.values:
            raise UsageError(
                f"{axis.path}: a grid needs a number of points, {axis.path}=…:4; or search it: --trials 20"
            )
    for values in product(*(axis.values for axis in axes)):
        yield {axis.path: value for axis, value in zip(axes, values, strict=True)}
