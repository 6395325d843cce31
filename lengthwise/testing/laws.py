"""Laws: properties that every part of a kind must have. ``lengthwise check`` checks a user's own parts, the tests check
the package's parts.

A law is a public function of a ``laws_of_…`` module that takes one part and returns nothing. The annotated type of that
argument determines the kind; a law of runners is checked on models. The docstring states the property. A law raises
``Broken`` if the property fails.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

from lengthwise.base.errors import UsageError
from lengthwise.base.fields import Config, part_text
from lengthwise.base.files import error_line
from lengthwise.base.formatting import format_html_table, format_listing
from lengthwise.base.score_rows import group_by
from lengthwise.experiment.own_code import describe_user_error
from lengthwise.models import ModelSpec
from lengthwise.nn.mixer import MixerSpec
from lengthwise.nn.position import Position
from lengthwise.registry.sources import first_sentence
from lengthwise.runners import Runner
from lengthwise.testing import laws_of_layouts, laws_of_models, laws_of_parts, laws_of_rules, laws_of_tasks
from lengthwise.testing.laws_of_parts import Broken

Law = Callable[[Any], None]
MODULES: tuple[ModuleType, ...] = (laws_of_parts, laws_of_tasks, laws_of_layouts, laws_of_models, laws_of_rules)


@dataclass(frozen=True)
class Finding:
    """The result of checking one law on one part."""

    part: str
    law: str  # the property, in a sentence
    holds: bool
    told: str  # the case in which it fails, on one line; empty if it holds


class Findings(list[Finding]):
    """The results of several parts and laws, printed as a table."""

    @property
    def broken(self) -> list[Finding]:
        """The findings of laws that do not hold."""
        return [finding for finding in self if not finding.holds]

    def lines(self) -> list[tuple[str, str, str]]:
        """Return rows (part, law, result): one row for a part that keeps all laws, else one for each cause, with the
        first law that the cause breaks."""
        lines = []
        for part, of_part in group_by(self, lambda finding: finding.part).items():
            causes = group_by(Findings(of_part).broken, lambda finding: finding.told)
            for told, (first, *more) in causes.items():
                lines.append((part, f"{first.law} And {len(more)} more." if more else first.law, told))
            if not causes:
                lines.append((part, f"all {len(of_part)}", "hold"))
        return lines

    @property
    def summary(self) -> str:
        """A sentence with the number of broken laws."""
        return f"{len(self.broken)} of {len(self)} laws are broken"

    def __str__(self) -> str:
        return format_listing(self.summary, [(part, f"{law} {result}") for part, law, result in self.lines()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return format_html_table(self.summary, self.lines(), ("part", "law", "found"))


@cache
def list_laws(kind: type, *further_modules: ModuleType) -> tuple[Law, ...]:
    """Return the laws of a type, in the order of ``MODULES`` and ``further_modules``."""
    laws = []
    for module in (*MODULES, *further_modules):
        for name, function in vars(module).items():
            if name.startswith("_") or not inspect.isfunction(function) or function.__module__ != module.__name__:
                continue
            hints = typing.get_type_hints(function)
            (takes, *more) = [hint for argument, hint in hints.items() if argument != "return"] or [None]
            if more or hints.get("return") is not type(None) or not isinstance(takes, type):
                continue
            if issubclass(kind, takes):
                laws.append(function)
            elif takes is Runner and issubclass(kind, ModelSpec):
                laws.append(laws_of_models.apply_to_models(function))
    return tuple(laws)


def check_laws(part: Any, name: str, laws: Sequence[Law]) -> Findings:
    """Check a part against ``laws``; ``name`` is its name in the findings."""
    return Findings(_check_law(part, name, law) for law in laws)


def _check_law(part: Any, name: str, law: Law) -> Finding:
    statement = first_sentence(law.__doc__ or "")
    try:
        law(part)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a SystemExit of the part's code counts as broken too
        # Other errors come from the part's own code: they are reported with file and line.
        told = error_line(error) if isinstance(error, (Broken, UsageError)) else describe_user_error(error)
        return Finding(name, statement, holds=False, told=told)
    return Finding(name, statement, holds=True, told="")


def check_classes(kinds: Iterable[type[Config]]) -> Findings:
    """Check each class, created without arguments, against the laws of its kind."""

    def can_be_built(kind: type[Config]) -> None:
        """The class can be created without arguments."""
        kind()

    findings = Findings()
    for kind in kinds:
        made = _check_law(kind, kind.__name__, can_be_built)
        findings += check_part(kind(), kind.__name__) if made.holds else [made]
    return findings


def check_part(part: Config, name: str = "") -> Findings:
    """Check a part against the laws of its kind."""
    name = name or part_text(part)
    findings = check_laws(part, name, list_laws(type(part)))
    if isinstance(part, (Position, MixerSpec)):
        laws_of_any_model = [law for law in list_laws(ModelSpec) if law not in list_laws(Config)]
        findings += check_laws(laws_of_models.small_model(part), name, laws_of_any_model)
    return findings
