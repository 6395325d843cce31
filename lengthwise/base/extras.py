"""Libraries that not everybody needs: extras of the package, imported when they are asked for."""

from __future__ import annotations

import importlib
from typing import Any

from lengthwise.base.errors import UsageError


def library(module: str, extra: str, reason: str = "") -> Any:
    """An optional library. Raises UsageError, with the ``reason`` why it is wanted, if it is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError:
        said = reason or f"{module.partition('.')[0]} is not installed"
        raise UsageError(f"{said}; pip install 'lengthwise[{extra}]'") from None
