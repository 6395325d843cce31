"""Where results go to, and weights come from: the Hub and trackers. Their libraries are extras, imported late."""

from __future__ import annotations

import importlib
from typing import Any

from lengthwise.base.errors import UsageError


def library(module: str, extra: str) -> Any:
    """An optional library. Raises UsageError if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        name = module.partition(".")[0]
        raise UsageError(f"{name} is not installed; pip install 'lengthwise[{extra}]'") from None
