"""What there is to check, and to say, when a training goes on from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lengthwise.folder import clean


def changed(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, str]:
    """What is not as it was: the names, and what they were."""
    return {name: clean(str(before[name])) for name in now if str(before[name]) != str(now[name])}


def told(changes: Mapping[str, str], now: Mapping[str, Any], step: int) -> str:
    """A line about them; empty if there are none."""
    what = ", ".join(f"{name} {now[name]} and not {value}" for name, value in changes.items())
    return f"goes on from step {step} with {what}: the last bits of its weights may differ" if what else ""


def lost(rows: Sequence[Mapping[str, Any]], due: int) -> str:
    """A line if a log lacks some of the reports of losses that are due; else empty."""
    logged = sum("rate" in row for row in rows)
    return f"metrics.jsonl has {logged} of {due} rows: the others are lost" if logged < due else ""
