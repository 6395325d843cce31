"""Lists of the recipes, tasks and models there are."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from lengthwise.api import catalog
from lengthwise.api.arguments import texts_from
from lengthwise.base import fields
from lengthwise.base.formatting import Listing
from lengthwise.registry import sources


def list_recipes(*words: str) -> Listing:
    """The recipes there are, with a sentence each; with ``words``, those that have every one in name or sentence."""
    return _matching({name: catalog.summary_of(function) for name, function in catalog.recipes().items()}, words)


def list_tasks(*words: str) -> Listing:
    """The tasks there are, with a sentence each; with ``words``, those that have every one in name or sentence."""
    return _matching({fields.kebab(name): _sentence(cls) for name, cls in catalog.parts()["tasks"].items()}, words)


def list_models(*words: str) -> Listing:
    """The models that a recipe may have, with a sentence each; with ``words``, those that have every one."""
    return _matching({name: _sentence(cls) for name, cls in catalog.parts()["models"].items()}, words)


def _matching(entries: Mapping[str, str], words: Sequence[str]) -> Listing:
    return Listing(sources.filter_entries(entries, texts_from(words, "words")))


def _sentence(cls: type) -> str:
    return sources.first_sentence(inspect.getdoc(cls) or "")
