"""How many problems an interval of a given width takes."""

from __future__ import annotations

import math

from lengthwise.base.errors import UsageError
from lengthwise.base.results import NORMAL, independent_trials, wilson


def check_precision(precision: float | None) -> None:
    """UsageError where an interval cannot be half as wide."""
    if precision is not None and not 0 < precision < 0.5:
        raise UsageError(f"precision is half the width of an interval, between 0 and 0.5, not {precision}")


def first_count(precision: float) -> int:
    """The smallest number of problems for which the interval can be this narrow: all right, or none."""
    return math.ceil(NORMAL**2 * (0.5 / precision - 1))


def next_count(right: float, count: int, precision: float, together: int = 1) -> int:
    """How many problems to look at in all, with so many right of the first ``count``; no more if the interval is narrow
    enough. Never more than twice as many: the fraction itself is only an estimate. ``together`` is the rule's."""
    low, high = wilson(right / count, independent_trials(count, together))
    if high - low <= 2 * precision:
        return count
    middle = (low + high) / 2
    return min(2 * count, max(count + 1, math.ceil(together * NORMAL**2 * middle * (1 - middle) / precision**2)))
