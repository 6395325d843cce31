"""Folders of parts that can be called for what they hold: ``lw.tasks()`` lists, ``lengthwise.tasks`` is the folder."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _Folder(ModuleType):
    def __call__(self, *words: str) -> Any:
        api = importlib.import_module("lengthwise.api")
        return getattr(api, self.__name__.rpartition(".")[2])(*words)


def lists_itself(name: str) -> None:
    """Let the module of this name be called like the function of its name in ``lengthwise.api``: the package has
    one attribute for both."""
    sys.modules[name].__class__ = _Folder
