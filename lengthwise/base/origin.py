"""Where a class comes from: the package, another one, or a user's own files."""

from __future__ import annotations

import sys
from pathlib import Path

KNOWN = {"lengthwise", "torch", "builtins"}  # whose own tests hold their classes to what they say
STANDARD = {*sys.builtin_module_names, *sys.stdlib_module_names} - {"__main__"}


def is_shipped(cls: type) -> bool:
    """Is it the package's own?"""
    return _root(cls) == "lengthwise"


def foreign(cls: type) -> bool:
    """Is it neither the package's nor torch's?"""
    return _root(cls) not in KNOWN


def own(cls: type) -> bool:
    """Is it a user's own: foreign, and neither Python's nor an installed package's?"""
    path = file_of(cls)
    installed = path is not None and "site-packages" in path.parts
    return foreign(cls) and _root(cls) not in STANDARD and not installed


def file_of(cls: type) -> Path | None:
    """The source file that it stands in; None where it stands in none, as in a notebook."""
    name = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return Path(name) if name and name.endswith(".py") and Path(name).is_file() else None


def _root(cls: type) -> str:
    return cls.__module__.partition(".")[0]
