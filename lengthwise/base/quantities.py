"""Human-readable times, memory sizes and lists of numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

DAY, YEAR = 86_400, 365 * 86_400


def duration_text(seconds: float) -> str:
    """Format a time: ``8 s``, ``3 min``, ``2.5 h``, ``4 days``."""
    if seconds >= 1e5 * YEAR:
        return "more than 100,000 years"
    for name, unit in (("years", YEAR), ("days", DAY)):
        if seconds >= 2 * unit:
            return f"{seconds / unit:,.0f} {name}"
    if seconds >= 6000:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.0f} min" if seconds >= 100 else f"{seconds:.0f} s"


def bytes_text(byte_count: float) -> str:
    """Format a number of bytes: ``329 MB``."""
    units = ("bytes", "kB", "MB", "GB", "TB", "PB", "EB")
    power = min(len(units) - 1, int(math.log(max(byte_count, 1), 1000)))
    return f"{byte_count / 1000**power:,.0f} {units[power]}" if byte_count < 1e22 else "more than 10⁴ EB"


def format_ranges(numbers: Sequence[int]) -> str:
    """Format ascending whole numbers as ranges: ``1–8, 12, 16–20, 30–90 in steps of 10``."""
    found, start = [], 0
    while start < len(numbers):
        low, end = numbers[start], start + 1
        step = numbers[end] - low if end < len(numbers) else 1
        while end < len(numbers) and numbers[end] == numbers[end - 1] + step:
            end += 1
        if step > 1 and end - start < 3:  # no range
            end = start + 1
        steps = f" in steps of {step}" * (step > 1)
        found.append(f"{low}–{numbers[end - 1]}{steps}" if end - start > 1 else f"{low}")
        start = end
    return ", ".join(found)
