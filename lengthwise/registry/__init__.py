"""Registry of parts, recipes and studies, and the import of all modules of a folder."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def import_folder(folder: str) -> list[ModuleType]:
    """Import and return the modules of a folder of the package, such as ``"tasks"``, in alphabetical order."""
    package = importlib.import_module(f"lengthwise.{folder}")
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    return [importlib.import_module(f"{package.__name__}.{module}") for module in names]
