"""Catalog of parts, recipes and studies: the package's, found in its folders, and the user's."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import typing
from collections.abc import Callable, Iterable
from functools import cache, partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from lengthwise.base import fields
from lengthwise.base.errors import quote_value
from lengthwise.base.fields import Config, build, find_part_classes, iterate_subclasses, suggest, to_kebab_case
from lengthwise.base.types import UsageError
from lengthwise.experiment.layout import Layout
from lengthwise.experiment.lengths import Lengths
from lengthwise.experiment.loops import Loops
from lengthwise.experiment.optim import Optimizer, Schedule
from lengthwise.experiment.own_code import describe_user_error
from lengthwise.experiment.recipe import Recipe, import_parts
from lengthwise.experiment.source import Source
from lengthwise.experiment.stopping import Stopping
from lengthwise.experiment.study import Study
from lengthwise.models import ModelSpec
from lengthwise.nn.mixer import MixerSpec
from lengthwise.nn.position import Position
from lengthwise.objectives import Objective
from lengthwise.registry import import_folder, sources
from lengthwise.tasks import Task

_BASES = (Task, Layout, Lengths, Loops, Source, ModelSpec, Position, MixerSpec, Objective, Stopping, Optimizer)
KIND_BASES = {kind: next(cls for cls in _BASES if cls.__name__ == name) for kind, name in sources.BASE_NAMES.items()}


def list_parts() -> dict[str, dict[str, type[Config]]]:
    """Return the classes of parts of recipes by kind and name, including those of imported user modules."""
    import_parts()
    return {name: find_part_classes(base) for name, base in KIND_BASES.items()}


def _find_functions(modules: Iterable[ModuleType], return_type: Any) -> dict[str, Callable[..., Any]]:
    """Return, by name, public functions without required arguments that are annotated to return ``return_type``."""
    functions = {}
    for module in modules:
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ != module.__name__ or name.startswith("_"):
                continue
            holder = SimpleNamespace(__annotations__={"return": function.__annotations__.get("return")})
            try:
                returned = typing.get_type_hints(holder, inspect.unwrap(function).__globals__)["return"]
            except NameError:  # a name that only a type checker imports
                continue
            parameters = inspect.signature(function).parameters.values()
            has_defaults = all(parameter.default is not parameter.empty for parameter in parameters)
            if has_defaults and returned == return_type:
                functions[name.replace("_", "-")] = function
    return functions


def _find_recipes(modules: Iterable[ModuleType]) -> dict[str, Callable[[], Recipe]]:
    modules = list(modules)
    recipes = _find_functions(modules, Recipe)
    for module in modules:  # one by one, since family functions of two modules may have the same name
        for family in _find_functions([module], dict[str, Recipe]).values():
            for name, recipe in family().items():
                recipes[name] = partial(recipe.change)  # a function that returns it
                recipes[name].__doc__ = family.__doc__
    return recipes


_OWN_RECIPES: dict[str, Callable[[], Recipe]] = {}
_OWN_STUDIES: dict[str, Callable[..., Study]] = {}


def list_recipes() -> dict[str, Callable[[], Recipe]]:
    """Return the functions that build recipes, by recipe name. A function in ``recipes/`` returns one recipe, or a
    family, which is a dictionary of several recipes by name."""
    return _find_shipped_recipes() | _OWN_RECIPES


@cache
def _find_shipped_recipes() -> dict[str, Callable[[], Recipe]]:
    return _find_recipes(import_folder("recipes"))


def list_studies() -> dict[str, Callable[..., Study]]:
    """Return the functions that build studies, by study name."""
    return _find_shipped_studies() | _OWN_STUDIES


@cache
def _find_shipped_studies() -> dict[str, Callable[..., Study]]:
    return _find_functions(import_folder("studies"), Study)


def add_module(module: ModuleType) -> None:
    """Register the recipes and studies of a user's own module; its classes are registered by the import itself. Raises
    UsageError if a name is taken."""
    list_parts()  # raises UsageError for names of the package's parts
    for base in KIND_BASES.values():
        defined = {cls for cls in iterate_subclasses(base) if cls.__module__ == module.__name__}
        for other in {*iterate_subclasses(base)} - defined:
            # Skip classes that were redefined, e.g. by a reload.
            is_current = vars(sys.modules.get(other.__module__, other)).get(other.__name__) is other
            if is_current and other.__name__ in {cls.__name__ for cls in defined}:
                modules = f"{other.__module__} and {module.__name__}"
                raise UsageError(f"{other.__name__}: {modules} each define it: rename one")
    recipes, studies = _find_recipes([module]), _find_functions([module], Study)
    # A module without recipes does not wait for the package's recipes to be built.
    taken = [name for name in recipes if name in _find_shipped_recipes()]
    if taken := taken + [name for name in studies if name in _find_shipped_studies()]:
        raise UsageError(f"{module.__name__}: the package has a recipe or study called {taken[0]}: rename yours")
    _OWN_RECIPES.update(recipes)
    _OWN_STUDIES.update(studies)
    file = getattr(module, "__file__", None) or ""
    if file.endswith(".py"):  # not a compiled module
        sources.register_module(Path(file))


def find_definitions(
    module: ModuleType,
) -> tuple[list[type[Config]], dict[str, Callable[[], Recipe]], dict[str, Callable[..., Study]]]:
    """Return the parts, recipes and studies that a user's own module defines."""
    kinds = [*list_parts().values(), find_part_classes(Schedule)]
    classes = [cls for classes in kinds for cls in classes.values() if cls.__module__ == module.__name__]
    return classes, _find_recipes([module]), _find_functions([module], Study)


def find_undecorated_classes(module: ModuleType) -> list[str]:
    """Return the names of a module's classes that would be parts if they were dataclasses. Classes with subclasses are
    left out, since they may be bases of parts."""
    classes = [cls for cls in vars(module).values() if isinstance(cls, type) and cls.__module__ == module.__name__]
    leaves = [cls for cls in classes if issubclass(cls, Config) and not cls.__subclasses__()]
    return [cls.__name__ for cls in leaves if not (dataclasses.is_dataclass(cls) or cls.__name__.startswith("_"))]


def describe_user_definitions() -> tuple[dict[str, str], dict[str, str]]:
    """Return the names and descriptions of the user's own recipes and studies."""
    recipes = {name: read_summary(function) for name, function in _OWN_RECIPES.items()}
    return recipes, {name: read_summary(function) for name, function in _OWN_STUDIES.items()}


def list_recipe_family_members() -> dict[str, dict[str, list[str]]]:
    """Return the names of the recipes of each family, by file and function, since the source does not show them."""
    members: dict[str, dict[str, list[str]]] = {}
    for module in import_folder("recipes"):
        families = {function.__name__: function() for function in _find_functions([module], dict[str, Recipe]).values()}
        members[module.__name__.rpartition(".")[2]] = {name: list(family) for name, family in families.items()}
    return members


def read_summary(function: Callable[..., Any]) -> str:
    """Return the first paragraph of a function's docstring on one line."""
    return " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())


def _find_by_name(kind: str, name: str, candidates: dict[str, Any]) -> Any:
    if not isinstance(name, str) or name not in candidates:
        count = len(candidates)
        choices = f"of: {', '.join(candidates)}" if count <= 40 else f"of the {count} that `lengthwise list` has"
        advice = suggest(name, candidates) if isinstance(name, str) else ""
        if kind == "recipe" and name in {to_kebab_case(kind) for kind in find_part_classes(Task)}:
            of_task = [other for other in candidates if other.endswith(f"-{name}")]
            advice = f"; it is a task, with e.g. the recipe {of_task[0]}" if of_task else "; it is a task"
        elif kind == "recipe":
            advice += "; import your own by --import MODULE"
        raise UsageError(f"{kind}: {quote_value(name)} is not one {choices}{advice}")
    return candidates[name]


def find_recipe(name: str, changes: Iterable[str] = ()) -> Recipe:
    """Return a recipe by its name, with ``name=value`` changes."""
    build_recipe = _find_by_name("recipe", name, list_recipes())
    built = _call_function(f"recipe {name}", build_recipe, is_own=name in _OWN_RECIPES)
    if not isinstance(built, Recipe):
        raise UsageError(f"recipe {name}: its function must return a recipe, not {quote_value(built)}")
    return built.change(changes)


def find_study(name: str, **choices: Any) -> Study:
    """Return a study by its name; ``choices`` are arguments of its function."""
    function = _find_by_name("study", name, list_studies())
    parameters = inspect.signature(function).parameters
    for choice in choices:
        if choice not in parameters:
            known_choices = f"; it has --{', --'.join(parameters)}" * bool(parameters)
            raise UsageError(f"the study {name} has no --{choice}{known_choices}")
    built = _call_function(f"study {name}", partial(function, **choices), is_own=name in _OWN_STUDIES)
    if not isinstance(built, Study):
        raise UsageError(f"study {name}: its function must return a study, not {quote_value(built)}")
    return built


def _call_function(description: str, function: Callable[[], Any], *, is_own: bool) -> Any:
    """Call a function and return its result. Turn an error in a user's own code into a UsageError."""
    try:
        return function()
    except (UsageError, KeyboardInterrupt):
        raise
    except BaseException as error:
        if not is_own:
            raise
        raise UsageError(f"{description}: {describe_user_error(error)}") from error


def find_task(name: str, changes: Iterable[str] = ()) -> Task:
    """Return a task by its name in the shell (``addition``) or as text (``Addition(base=2)``), with ``name=value``
    changes to its fields."""
    import_parts()
    if isinstance(name, str) and "(" in name:
        return fields.override(fields.decode(Task, name, "task"), changes)
    tasks = {to_kebab_case(kind): cls for kind, cls in find_part_classes(Task).items()}
    if isinstance(name, str) and name not in tasks and name in list_recipes():
        raise UsageError(f"{name} is a recipe; its task is {find_recipe(name).task.name}")
    cls = _find_by_name("task", name, tasks)
    return build(cls, changes)
