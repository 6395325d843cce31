"""Optional libraries (extras of the package), imported on first use."""

from __future__ import annotations

import importlib
from typing import Any

from lengthwise.base.errors import UsageError


def import_library(module: str, extra: str, reason: str = "") -> Any:
    """Import and return an optional library. Raises UsageError, starting with ``reason``, if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError:
        message = reason or f"{module.partition('.')[0]} is not installed"
        raise UsageError(f"{message}; pip install 'lengthwise[{extra}]'") from None
