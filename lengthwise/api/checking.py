"""Test parts, recipes and studies against the laws of their kinds, and check files of problems."""

from __future__ import annotations

from types import ModuleType

from torch import nn

from lengthwise.api import catalog
from lengthwise.base import fields
from lengthwise.base.errors import UsageError
from lengthwise.base.files import to_path
from lengthwise.base.formatting import format_ranges
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.study import Study
from lengthwise.tasks.file import File
from lengthwise.tasks.problem_file import PARTS, choose_form, list_errors, to_text
from lengthwise.testing.laws import Findings, check_classes, check_part, check_recipes, check_studies
from lengthwise.training.arithmetic import computation_settings

MODULE_ADVICE = "a torch module is checked before it is trained or measured"


def check(*definitions: fields.Config | type[fields.Config] | Study | ModuleType) -> Findings:
    """Test your own parts, recipes and studies against the laws of their kinds: a task's answers equal those of its
    reference solution, a model ignores padding, and so on. ``lengthwise check MODULE`` runs the same tests.

    Each argument is a part, a recipe, a study, a class of parts, or a module; everything a module defines is tested.
    The result prints as a table; its ``broken`` lists the laws that do not hold. Raises UsageError for any other
    argument::

        def test_my_task():
            assert not lw.check(MyTask()).broken
    """
    if not definitions:
        raise UsageError("check needs at least one argument, e.g. check(MyTask())")
    findings = Findings()
    with computation_settings(1):
        for definition in definitions:
            findings += _check_definition(definition)
    return findings


def _check_definition(definition: object) -> Findings:
    """Test one argument of ``check``."""
    if isinstance(definition, ModuleType):
        parts, recipes, studies = catalog.find_definitions(definition)
        if not (parts or recipes or studies):
            advice = "a part is a dataclass that subclasses e.g. lw.Task"
            if any(isinstance(member, type) and issubclass(member, nn.Module) for member in vars(definition).values()):
                advice = MODULE_ADVICE
            raise UsageError(f"{definition.__name__}: defines no part, recipe or study; {advice}")
        return Findings([*check_classes(parts), *check_recipes(recipes), *check_studies(studies)])
    if isinstance(definition, Recipe):
        return check_recipes({definition.name: lambda: definition})
    if isinstance(definition, Study):
        return check_studies({definition.title: lambda: definition})
    if isinstance(definition, type) and issubclass(definition, fields.Config):
        return check_classes([definition])
    if isinstance(definition, fields.Config):
        return check_part(definition)
    kinds = "parts, recipes, studies, classes of parts and Python modules"
    advice = f"; {MODULE_ADVICE}" * isinstance(definition, nn.Module)
    raise UsageError(f"check takes {kinds}, not {type(definition).__name__}{advice}")


def describe_file(name: str, *, words: bool = False, grid: bool = False) -> tuple[list[str], list[tuple[str, str]]]:
    """Return the errors in a file of problems or a data set's folder, with line numbers, and pairs (fact, text) that
    describe a file without errors. With ``words``, symbols are words; with ``grid``, problems are grids."""
    if errors := list_errors(to_path(name).resolve(), choose_form(words=words, grid=grid)):
        return errors, []
    task = File(name, words=words, grid=grid)
    collection = task.collection
    counts = [f"{int((collection.part == number).sum()):,} {part}" for number, part in enumerate(PARTS)]
    repeated = f"; {collection.repeat_count:,} lines repeat others" * bool(collection.repeat_count)
    prompt, answer = collection.length.amax(0).tolist()
    first_symbols = " ".join(symbol for symbol in map(to_text, collection.symbols[:40]) if not symbol.isspace())
    has_spaces = not words and " " in map(to_text, collection.symbols)
    return [], [
        ("problems", f"{len(collection.size):,} different{repeated}"),
        ("split", ", ".join(counts)),
        ("sizes", format_ranges(task.listed_sizes)),
        ("longest", f"prompt {prompt:,} symbols, answer {answer:,}"),
        ("symbols", f"{len(collection.symbols):,}: {first_symbols}" + " …" * (len(collection.symbols) > 40)),
        *[("spaces", "are symbols; --words reads words")] * has_spaces,
        ("digest", task.digest),
    ]
