"""What there is: every task, model, objective, recipe and study, found by looking into its folder."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from torch import nn

from lengthwise.base.errors import quote_value
from lengthwise.base.fields import Part, below, kebab, kinds, made, suggest
from lengthwise.base.types import UsageError
from lengthwise.experiment.layout import Layout
from lengthwise.experiment.lengths import Lengths
from lengthwise.experiment.loops import Loops
from lengthwise.experiment.optim import Optimizer
from lengthwise.experiment.own_code import describe_user_error
from lengthwise.experiment.recipe import Recipe, import_parts
from lengthwise.experiment.source import Source
from lengthwise.experiment.stopping import Stopping
from lengthwise.models import ModelSpec
from lengthwise.models.external import add_builders
from lengthwise.nn.mixer import MixerSpec
from lengthwise.nn.position import Position
from lengthwise.objectives import Objective
from lengthwise.registry import sources
from lengthwise.registry.loading import import_room
from lengthwise.studies import Study
from lengthwise.tasks import Task

_BASES = (Task, Layout, Lengths, Loops, Source, ModelSpec, Position, MixerSpec, Objective, Stopping, Optimizer)
PARTS = {kind: next(base for base in _BASES if base.__name__ == name) for kind, name in sources.BASES.items()}


def parts() -> dict[str, dict[str, type[Part]]]:
    """The kinds that recipes are made of, imported classes of a user's own included."""
    import_parts()
    return {name: kinds(base) for name, base in PARTS.items()}


def _functions(modules: Iterable[ModuleType], returns: Any) -> dict[str, Callable[..., Any]]:
    """Public functions of these modules without arguments, by name, that say they return this, or a torch module of
    any class where this is ``nn.Module``."""
    found = {}
    for module in modules:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            own = function.__module__ == module.__name__ and not name.startswith("_")
            if own and _is(_return_type(function), returns) and _callable(function):
                found[name.replace("_", "-")] = function
    return found


def _is(returned: Any, wanted: Any) -> bool:
    modules = wanted is nn.Module and isinstance(returned, type) and issubclass(returned, nn.Module)
    return modules or returned == wanted


def _return_type(function: Callable[..., Any]) -> Any:
    """What it says it returns; NoneType where it says nothing, None where that is a name which only a type checker
    imports."""
    said = SimpleNamespace(__annotations__={"return": function.__annotations__.get("return")})
    try:
        return typing.get_type_hints(said, inspect.unwrap(function).__globals__)["return"]
    except NameError:
        return None


def _callable(function: Callable[..., Any]) -> bool:
    """Can it be called without arguments?"""
    parameters = inspect.signature(function).parameters.values()
    return all(parameter.default is not parameter.empty for parameter in parameters)


def _recipes(modules: Iterable[ModuleType]) -> dict[str, Callable[[], Recipe]]:
    modules = list(modules)
    found = _functions(modules, Recipe)
    for module in modules:  # one by one: families of two modules may have the same name, their members do not
        for family in _functions([module], dict[str, Recipe]).values():
            found |= {name: _member(recipe, family.__doc__) for name, recipe in family().items()}
    return found


def _member(recipe: Recipe, about: str | None) -> Callable[[], Recipe]:
    def make() -> Recipe:
        return recipe

    make.__doc__ = about
    return make


_OWN: dict[str, Callable[[], Recipe]] = {}
_OWN_STUDIES: dict[str, Callable[..., Study]] = {}


def recipes() -> dict[str, Callable[[], Recipe]]:
    """Functions that return a recipe, by name: those in ``recipes/``, and the members of its families, which are
    functions that return several by name (``dict[str, Recipe]``)."""
    return _shipped_recipes() | _OWN


@cache
def _shipped_recipes() -> dict[str, Callable[[], Recipe]]:
    return _recipes(import_room("recipes"))


def studies() -> dict[str, Callable[..., Study]]:
    """Functions that return a study, by name."""
    return _shipped_studies() | _OWN_STUDIES


@cache
def _shipped_studies() -> dict[str, Callable[..., Study]]:
    return _functions(import_room("studies"), Study)


def add(module: ModuleType) -> None:
    """Make the recipes and studies of a user's own module known by name, and its functions that return a torch module
    to runs of such modules. Its classes are known once it is imported.
    Raises UsageError where a part, recipe or study has the name of one of the package's, or a part that of one of
    another module."""
    _check_names(module)
    recipes, studies = _recipes([module]), _functions([module], Study)
    # Asked name by name, so that a module without recipes need not wait until the package's are made.
    taken = [name for name in recipes if name in _shipped_recipes()] + [
        name for name in studies if name in _shipped_studies()
    ]
    if taken:
        raise UsageError(f"{module.__name__}: the package has a recipe or study called {taken[0]}: rename yours")
    add_builders(_functions([module], nn.Module).values())
    _OWN.update(recipes)
    _OWN_STUDIES.update(studies)
    if module.__file__:
        sources.add(Path(module.__file__))


def _check_names(module: ModuleType) -> None:
    """UsageError unless each part of a user's own module is the only one of its name."""
    parts()  # refuses the names of the package's
    for base in PARTS.values():
        # Those that were defined again under their name, as by a reload, are gone.
        found = [cls for cls in below(base) if vars(sys.modules.get(cls.__module__, cls)).get(cls.__name__) is cls]
        others = {cls.__name__: cls for cls in found if cls.__module__ != module.__name__}
        for cls in found:
            if cls.__module__ == module.__name__ and (other := others.get(cls.__name__)):
                raise UsageError(f"{cls.__name__}: {other.__module__} and {cls.__module__} each define it: rename one")


def find_defined(
    module: ModuleType,
) -> tuple[list[type[Part]], dict[str, Callable[[], Recipe]], dict[str, Callable[..., Study]]]:
    """The parts, recipes and studies that a user's own module defines."""
    found = [cls for known in parts().values() for cls in known.values() if cls.__module__ == module.__name__]
    return found, _recipes([module]), _functions([module], Study)


def own_recipes() -> dict[str, str]:
    """A user's own recipes, and what each is."""
    return {name: summary_of(function) for name, function in _OWN.items()}


def own_studies() -> dict[str, str]:
    """A user's own studies, and what each is."""
    return {name: summary_of(function) for name, function in _OWN_STUDIES.items()}


def members() -> dict[str, dict[str, list[str]]]:
    """The names of all families' recipes, file by file and function by function: what sources alone do not tell."""
    found: dict[str, dict[str, list[str]]] = {}
    for module in import_room("recipes"):
        families = {function.__name__: function() for function in _functions([module], dict[str, Recipe]).values()}
        found[module.__name__.rpartition(".")[2]] = {name: list(family) for name, family in families.items()}
    return found


def summary_of(function: Callable[..., Any]) -> str:
    """The first paragraph of a function's docstring, on one line."""
    return " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())


FEW = 40  # names that an error message still lists


def _find(what: str, name: str, known: dict[str, Any]) -> Any:
    if not isinstance(name, str) or name not in known:
        few = (
            f"one of: {', '.join(known)}"
            if len(known) <= FEW
            else f"one of the {len(known)} that `lengthwise list` has"
        )
        near = suggest(name, known) if isinstance(name, str) else ""
        if what == "recipe" and name in {kebab(kind) for kind in kinds(Task)}:
            own = [one for one in known if one.endswith(f"-{name}")]
            near = f"; it is a task, of which there are {', '.join(own[:3])} and others" if own else "; it is a task"
        raise UsageError(f"{what}: {quote_value(name)} is not {few}{near}")
    return known[name]


def recipe(name: str, changes: Iterable[str] = ()) -> Recipe:
    """A recipe by its name, with ``name=value`` changes. UsageError answers a wrong name with the right ones, and says
    of a user's own function in one line what it raises."""
    make = _find("recipe", name, recipes())
    try:
        found = make()
    except (UsageError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if name not in _OWN:
            raise
        raise UsageError(f"recipe {name}: {describe_user_error(error)}") from error
    if not isinstance(found, Recipe):
        raise UsageError(f"recipe {name}: its function gives a {type(found).__name__}, not a recipe")
    return found.change(changes)


def study(name: str, **choices: Any) -> Study:
    """A study by its name; ``choices`` are what it lets one choose. UsageError names those that it does not."""
    function = _find("study", name, studies())
    takes = inspect.signature(function).parameters
    for choice in choices:
        if choice not in takes:
            raise UsageError(f"the study {name} has no --{choice}" + (f"; it has --{', --'.join(takes)}" * bool(takes)))
    return function(**choices)


def task(name: str, changes: Iterable[str] = ()) -> Task:
    """A task by its name as written in the shell (``addition``), with ``name=value`` changes to its fields."""
    import_parts()
    cls = _find("task", name, {kebab(kind): cls for kind, cls in kinds(Task).items()})
    return made(cls, changes)
