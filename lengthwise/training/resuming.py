"""What there is to check, and to say, when a training goes on from a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from lengthwise.folder import clean


def check_moments(optimizer: Optimizer) -> None:
    """ValueError unless what an optimizer has kept of each parameter has its shape, or is one number: torch does not
    look, and reads beyond the memory."""
    for parameter, kept in optimizer.state.items():
        for name, value in kept.items():
            if isinstance(value, Tensor) and value.numel() != 1 and value.shape != parameter.shape:
                raise ValueError(f"{name} has shape {tuple(value.shape)}, not {tuple(parameter.shape)}")


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
