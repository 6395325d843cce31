"""The number of problems for an interval of a given width."""

from __future__ import annotations

import math

from lengthwise.base.errors import UsageError
from lengthwise.base.results import NORMAL, independent_trials, wilson


def check_precision(precision: float | None) -> None:
    """Raise UsageError if ``precision`` cannot be half the width of an interval."""
    if precision is not None and not 0 < precision < 0.5:
        raise UsageError(f"precision is half the width of an interval, between 0 and 0.5, not {precision}")


def first_count(precision: float) -> int:
    """Return the smallest number of problems for which the interval can be this narrow, with all answers right or
    none."""
    return math.ceil(NORMAL**2 * (0.5 / precision - 1))


def next_count(right: float, count: int, precision: float, together: int = 1) -> int:
    """Return the total number of problems to measure, with ``right`` of the first ``count`` right: ``count`` if the
    interval is narrow enough, and at most twice that, as the fraction is only an estimate. ``together`` is the
    rule's."""
    low, high = wilson(right / count, independent_trials(count, together))
    if high - low <= 2 * precision:
        return count
    middle = (low + high) / 2
    return min(2 * count, max(count + 1, math.ceil(together * NORMAL**2 * middle * (1 - middle) / precision**2)))
