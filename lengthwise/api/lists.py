"""List all recipes, tasks and models."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from lengthwise.api import catalog
from lengthwise.api.arguments import resolve_texts
from lengthwise.base.fields import to_kebab_case
from lengthwise.base.formatting import Listing
from lengthwise.registry import sources


def list_recipes(*words: str) -> Listing:
    """Return all recipes, with a sentence each; with ``words``, those with every word in name or sentence."""
    about = {name: catalog.read_summary(function) for name, function in catalog.recipes().items()}
    return _filter_entries(about, words)


def list_tasks(*words: str) -> Listing:
    """Return all tasks, with a sentence each; with ``words``, those with every word in name or sentence."""
    return _filter_entries(
        {to_kebab_case(name): _first_sentence(cls) for name, cls in catalog.parts()["tasks"].items()}, words
    )


def list_models(*words: str) -> Listing:
    """Return the models that a recipe may have, with a sentence each; with ``words``, those with every word."""
    return _filter_entries({name: _first_sentence(cls) for name, cls in catalog.parts()["models"].items()}, words)


def _filter_entries(entries: Mapping[str, str], words: Sequence[str]) -> Listing:
    return Listing(sources.filter_entries(entries, resolve_texts(words, "words")))


def _first_sentence(cls: type) -> str:
    return sources.first_sentence(inspect.getdoc(cls) or "")
