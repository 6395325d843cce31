"""Laws of all parts of recipes."""

from __future__ import annotations

import dataclasses
import json

from lengthwise.base import fields
from lengthwise.base.fields import Config


class Broken(AssertionError):
    """A broken law, with the failing case on one line."""


def it_is_equal_after_json(part: Config) -> None:
    """Written as JSON and read back, the part is equal."""
    if type(part).__name__.startswith("_"):
        raise Broken(f"{type(part).__name__} starts with _, so no recipe can contain it: rename it")
    again = fields.decode(type(part), json.loads(json.dumps(fields.encode(part))))
    if again != part:
        raise Broken(f"{fields.part_text(part)} comes back as {fields.part_text(again)}")


def it_is_frozen(part: Config) -> None:
    """The part is a frozen dataclass, so that a run's recipe cannot change."""
    if not type(part).__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise Broken(f"{type(part).__name__} is not frozen: write @dataclass(frozen=True)")
    hash(part)


def it_has_a_docstring(part: Config) -> None:
    """The class has a docstring, which ``list`` and ``show`` print."""
    about = type(part).__doc__ or ""
    if not about or about.startswith(f"{type(part).__name__}("):  # the default docstring of dataclasses
        raise Broken(f"{type(part).__name__} has no docstring")
    if not dataclasses.is_dataclass(part):
        raise Broken(f"{type(part).__name__} is not a dataclass")
