"""Laws: properties that every part of a kind must have. ``lengthwise check`` checks a user's own parts; the tests check
the package's parts.

A law is a public function of a ``laws_of_…`` module. Its docstring states the property. Its only argument is a part;
the annotated type states which parts must obey the law. Laws of runners are checked on models. A law returns None, or
raises ``Broken`` if the part lacks the property.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from types import ModuleType
from typing import Any

from lengthwise.base.errors import UsageError, quote_value
from lengthwise.base.fields import Config, format_part
from lengthwise.base.files import format_error
from lengthwise.base.formatting import format_html_table, format_listing
from lengthwise.base.score_rows import group_by
from lengthwise.experiment.own_code import describe_user_error
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.study import Study
from lengthwise.models import ModelSpec
from lengthwise.nn.mixer import MixerSpec
from lengthwise.nn.position import Position
from lengthwise.registry.sources import extract_first_sentence
from lengthwise.runners import Runner
from lengthwise.testing import laws_of_layouts, laws_of_models, laws_of_parts, laws_of_rules, laws_of_tasks
from lengthwise.testing.laws_of_parts import Broken

Law = Callable[[Any], None]
MODULES: tuple[ModuleType, ...] = (laws_of_parts, laws_of_tasks, laws_of_layouts, laws_of_models, laws_of_rules)


@dataclass(frozen=True)
class Finding:
    """The result of checking one law on one part."""

    part: str
    law: str  # a sentence that states the property
    holds: bool
    failing_case: str  # the case in which the law fails, on one line; empty if it holds


class Findings(list[Finding]):
    """The results of checking several parts against several laws, which are printed as a table."""

    @property
    def broken(self) -> list[Finding]:
        """The findings whose law does not hold."""
        return [finding for finding in self if not finding.holds]

    def lines(self) -> list[tuple[str, str, str]]:
        """Return rows (part, law, result): one row for a part that satisfies all laws, else one row per failing case,
        with the first law that fails in this case."""
        lines = []
        for part, findings in group_by(self, lambda finding: finding.part).items():
            cases = group_by(Findings(findings).broken, lambda finding: finding.failing_case)
            for case, (first, *others) in cases.items():
                lines.append((part, f"{first.law} And {len(others)} more." if others else first.law, case))
            if not cases:
                lines.append((part, f"all {len(findings)}", "hold"))
        return lines

    @property
    def summary(self) -> str:
        """The number of broken laws in words, such as '2 of 17 laws are broken'."""
        laws, verb = "law" if len(self) == 1 else "laws", "is" if len(self.broken) == 1 else "are"
        return f"{len(self.broken)} of {len(self)} {laws} {verb} broken"

    def __str__(self) -> str:
        return format_listing(self.summary, [(part, f"{law} {result}") for part, law, result in self.lines()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return format_html_table(self.summary, self.lines(), ("part", "law", "result"))


@cache
def list_laws(kind: type) -> tuple[Law, ...]:
    """Return the laws of parts of this type, in the order of ``MODULES``."""
    laws = []
    for module in MODULES:
        for name, function in vars(module).items():
            if name.startswith("_") or not inspect.isfunction(function) or function.__module__ != module.__name__:
                continue
            hints = typing.get_type_hints(function)
            arguments = [hint for name, hint in hints.items() if name != "return"]
            if len(arguments) != 1 or hints.get("return") is not type(None) or not isinstance(arguments[0], type):
                continue
            if issubclass(kind, arguments[0]):
                laws.append(function)
            elif arguments[0] is Runner and issubclass(kind, ModelSpec):
                laws.append(laws_of_models.apply_to_models(function))
    return tuple(laws)


def check_laws(part: Any, name: str, laws: Sequence[Law]) -> Findings:
    """Check a part against ``laws``. The findings call the part ``name``."""
    return Findings(_check_law(name, extract_first_sentence(law.__doc__ or ""), partial(law, part)) for law in laws)


def _check_law(name: str, law: str, function: Callable[[], Any]) -> Finding:
    """Return the finding of a law: it holds if ``function`` raises no error."""
    try:
        function()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a SystemExit of the part's code counts as broken too
        # Other errors come from the part's own code: they are reported with file and line.
        case = format_error(error) if isinstance(error, (Broken, UsageError)) else describe_user_error(error)
        return Finding(name, law, holds=False, failing_case=case)
    return Finding(name, law, holds=True, failing_case="")


def check_classes(kinds: Iterable[type[Config]]) -> Findings:
    """Create a part of each class without arguments, and check it against the laws of its kind."""
    findings = Findings()
    for kind in kinds:
        built = _check_law(kind.__name__, "The class can be created without arguments.", kind)
        findings += check_part(kind(), kind.__name__) if built.holds else [built]
    return findings


def check_part(part: Config, name: str = "") -> Findings:
    """Check a part against the laws of its kind."""
    name = name or format_part(part)
    findings = check_laws(part, name, list_laws(type(part)))
    if isinstance(part, (Position, MixerSpec)):
        laws_of_any_model = [law for law in list_laws(ModelSpec) if law not in list_laws(Config)]
        findings += check_laws(laws_of_models.build_small_spec(part), name, laws_of_any_model)
    return findings


def check_recipes(recipes: Mapping[str, Callable[[], Recipe]]) -> Findings:
    """Check recipes against the laws of recipes. ``recipes`` maps names to functions that return a recipe."""
    return _check_builders(recipes, Recipe, "The recipe can be created.")


def check_studies(studies: Mapping[str, Callable[[], Study]]) -> Findings:
    """Check studies against the laws of studies. ``studies`` maps names to functions that return a study."""
    return _check_builders(studies, Study, "The study's function works without arguments.")


def _check_builders(builders: Mapping[str, Callable[[], Any]], kind: type, law: str) -> Findings:
    """Call each function of ``builders``, which maps names to functions, and check its result against the laws of
    ``kind``. The sentence ``law`` states that the function works."""
    findings = Findings()
    for name, build in builders.items():
        findings.append(_check_law(name, law, partial(_check_type, build, kind)))
        if findings[-1].holds and kind is Recipe:
            named = "The recipe's function, or its key in a family, has the recipe's name."
            findings.append(_check_law(name, named, partial(_check_name, name, build)))
        if findings[-1].holds:
            findings += check_laws(build(), name, list_laws(kind))
    return findings


def _check_type(build: Callable[[], Any], kind: type) -> None:
    if not isinstance(found := build(), kind):
        raise Broken(f"the function must return lw.{kind.__name__}, not {quote_value(found)}")


def _check_name(name: str, build: Callable[[], Recipe]) -> None:
    if (other := build().name) != name:
        raise Broken(f"the function or key is called {name}, but must be called {other}, the recipe's name")
