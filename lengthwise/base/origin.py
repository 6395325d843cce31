"""The origin of a class: this package, another package, or a user's own files."""

from __future__ import annotations

import sys
from pathlib import Path


def is_shipped(cls: type) -> bool:
    """Return whether this package defines the class."""
    return _root_package(cls) == "lengthwise"


def is_foreign(cls: type) -> bool:
    """Return whether the class is defined outside this package, torch and Python's builtins."""
    return _root_package(cls) not in ("lengthwise", "torch", "builtins")  # their own tests cover these


def is_user_code(cls: type) -> bool:
    """Return whether a user's own code defines the class: not this package, Python's library or an installed one."""
    path, standard = source_file(cls), {*sys.builtin_module_names, *sys.stdlib_module_names} - {"__main__"}
    installed = path is not None and "site-packages" in path.parts
    return is_foreign(cls) and _root_package(cls) not in standard and not installed


def source_file(cls: type) -> Path | None:
    """Return the class's source file; None if it has none, as in a notebook."""
    name = getattr(sys.modules.get(cls.__module__), "__file__", None)
    return Path(name) if name and name.endswith(".py") and Path(name).is_file() else None


def _root_package(cls: type) -> str:
    return cls.__module__.partition(".")[0]
