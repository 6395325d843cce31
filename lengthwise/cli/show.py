"""The command ``show``: a recipe and its cost; a part or a field and its values; or a page that runs a model."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from lengthwise.base import fields
from lengthwise.base.errors import UsageError
from lengthwise.base.files import check_writable
from lengthwise.base.ranges import describe_type
from lengthwise.cli.console import format_columns, print_result, save_page, show_elapsed
from lengthwise.cli.shared import Argument, OutputOptions, Texts, Words
from lengthwise.registry import sources


@dataclass(kw_only=True)
class Options(OutputOptions):
    """Show a recipe with its parameters, operations and an estimate of time; or a part, or a field."""

    # RECIPE: a recipe's name, a recipe in a JSON file, or a run's folder; or a part (Transformer), or a field
    # (model.positions); with --html, weights
    recipe: Argument
    changes: Words = ()  # name=value: changed fields, e.g. model.width=32 steps=500
    # FILE: write a page that runs these weights, loop by loop, in the browser; missing folders are created
    html: str | None = None
    problem: Texts = ()  # TEXT: with --html, show this problem first; may be given several times
    all: bool = False  # show every field with its meaning, not only those that differ from their defaults
    measure: bool = False  # run some steps of training and evaluation, to time them


def run(args: Options) -> int:
    """Show a recipe and its cost; or a part, or a field; or, with ``--html``, write a page of weights."""
    if args.html:
        return _write_page(args, args.html)
    if args.problem:
        raise UsageError("show: --problem needs --html FILE, the page that shows it")
    if re.fullmatch(r"[A-Z]\w*", args.recipe) and not args.changes:
        return _show_part(args)
    # For a path such as ``model.positions``, find the classes that have this field.
    *parents, last = args.recipe.split(".")
    owners = [sources.find_class("Recipe")]
    for step in parents:
        types = [field.type for owner in owners if owner for field in owner.fields if field.name == step]
        owners = [owner for text in types for owner in sources.find_accepted_parts(text)]
    if found := [(owner, field) for owner in owners if owner for field in owner.fields if field.name == last]:
        return _show_field(args, found)
    if args.recipe in sources.BASE_NAMES:
        args.recipe = sources.BASE_NAMES[args.recipe]
        return _show_part(args)
    return _show_recipe(args)


# Pages


def _write_page(args: Options, html: str) -> int:
    """Write the page that runs weights loop by loop; further weights are shown for comparison."""
    from lengthwise.runs.run import load
    from lengthwise.training.arithmetic import computation_settings
    from lengthwise.viewer.viewer import build_viewer_page

    if args.all or args.measure:
        raise UsageError("show --html writes a page of weights; --all and --measure apply only to recipes")
    if fields_given := [word for word in args.changes if "=" in word]:
        raise UsageError(f"show --html shows weights as they were trained: remove {fields_given[0]}")
    names = [args.recipe, *args.changes]
    models = [load(name) for name in names]
    check_writable("--html", Path(html))
    label = f"{', '.join(model.name for model in models)}: examples and an attack"
    with computation_settings(1), show_elapsed(label):
        page = build_viewer_page(models, [text.strip() for text in args.problem])
    return save_page(args, html, page, models=names)


# Recipes


def _show_recipe(args: Options) -> int:
    from lengthwise.cli.forecast import COST_SOURCES  # late: these import torch, which parts do not need
    from lengthwise.cli.options import find_recipe
    from lengthwise.training.cost import describe_runner, look_up_cost, measure_cost, time_evaluation

    recipe, minutes = find_recipe(args.recipe, args.changes), None
    with show_elapsed(f"{recipe.name}: measuring the cost of a step", quiet=not args.measure):
        cost = measure_cost(recipe) if args.measure else look_up_cost(recipe)
        if args.measure and cost.source == "measured":
            minutes = time_evaluation(recipe) / 60
        runner = describe_runner(recipe, cost)
    evaluation_text = ", on 1,000 problems of each default length"
    changed = [(name, Text(text)) for name, text in fields.format_changed_fields(recipe) if name != "name"]
    rows = [
        *(_list_fields(recipe) if args.all else changed),
        ("parameters", Text(f"{cost.parameters:,}")),
        ("operations", Text(f"{cost.operations / 1e9:.2f} GFLOP per step, forward and backward")),
        ("training", Text(f"about {cost.minutes:,.1f} min of processor time on one thread")),
        *([] if minutes is None else [("evaluation", Text(f"about {minutes:.1f} min more{evaluation_text}"))]),
        ("numbers", Text(f"{cost.source}: {COST_SOURCES[cost.source]}")),
        ("runner", Text(runner)),
    ]
    result = {"recipe": fields.encode(recipe), "id": recipe.id, "parameters": cost.parameters}
    result |= {"operations_per_step": cost.operations, "seconds_per_step": cost.seconds, "minutes": cost.minutes}
    result |= {"source": cost.source, "evaluation_minutes": minutes, "runner": runner}
    return print_result(args, result, format_columns(Text(f"{recipe.name}  {recipe.id}", "bold"), rows))


def _list_fields(part: Any, path: str = "") -> list[tuple[str, Text]]:
    """Return the fields of a part and of the parts inside it, with descriptions; non-default values are bold."""
    rows, defaults = [], {field.name: field.default for field in dataclasses.fields(part)}
    for field in _find_class(type(part).__name__).fields:
        value, name = getattr(part, field.name), f"{path}{field.name}"
        style = "" if value == defaults[field.name] else "bold"
        rows.append((name, Text.assemble((fields.format_part(value), style), (f"  {field.about}", "dim"))))
        if sources.find_class(type(value).__name__):
            rows += _list_fields(value, f"{name}.")
    return rows


# Parts


def _find_class(name: str) -> sources.ClassDeclaration:
    if declaration := sources.find_class(name):
        return declaration
    names = [kind for kinds in sources.read_parts().values() for kind in kinds]
    raise UsageError(f"show: there is no part {name}; `lengthwise list` shows all parts{fields.suggest(name, names)}")


def _check_no_recipe_options(args: Options) -> None:
    """Raise UsageError for options that apply only to recipes."""
    if args.all or args.measure or args.changes:
        raise UsageError(f"show {args.recipe}: --all, --measure and changes apply only to recipes")


def _show_part(args: Options) -> int:
    """Show a part's fields, with their defaults and descriptions."""
    _check_no_recipe_options(args)
    part = _find_class(args.recipe)
    kinds = [kind for kind, base in sources.BASE_NAMES.items() if base == part.name]
    result = {"part": part.name, "about": part.docstring, "fields": [*map(vars, part.fields)], "source": part.location}
    result |= {"kinds": list(sources.read_parts()[kinds[0]]) if kinds else []}
    # Unwrap the docstring's paragraphs, and remove code marks.
    about = re.sub(r"(?<=[^\n])\n( +|(?=[^\n\s-]))", " ", part.docstring).replace("``", "")
    renderables: list[RenderableType] = [Text.assemble((part.name, "bold"), f"  {part.location}"), Text(about), ""]
    if part.fields:
        rows = [(field.name, _describe_field(field)) for field in part.fields]
        renderables.append(format_columns(Text("fields", "bold"), rows))
    elif kinds:
        renderables.append(_format_parts(kinds[0]))
    return print_result(args, result, *renderables)


def _describe_field(field: sources.Field) -> Text:
    """Return a field's type, default and description."""
    default = "must be given" if field.default is None else f"= {field.default}"
    return Text.assemble(f"{describe_type(field.type)} {default}", "\n" * bool(field.about), (field.about, "dim"))


def _format_parts(kind: str) -> RenderableType:
    rows = [(name, Text(declaration.summary)) for name, declaration in sources.read_parts()[kind].items()]
    return format_columns(Text("one of", "bold"), rows)


def _show_field(args: Options, owners: list[tuple[sources.ClassDeclaration, sources.Field]]) -> int:
    """Show the meaning of a field in every part that has it, and its possible values."""
    _check_no_recipe_options(args)
    result = [vars(field) | {"of": owner.name, "source": owner.location} for owner, field in owners]
    rows = [(f"{owner.name}.{field.name}", _describe_field(field)) for owner, field in owners]
    words = set(re.findall(r"\w+", " ".join(field.type for _, field in owners)))
    kinds = [kind for kind, base in sources.BASE_NAMES.items() if base in words]
    head = Text(f"{args.recipe}  {owners[0][0].location}", "bold")
    return print_result(args, result, Group(format_columns(head, rows), *(_format_parts(kind) for kind in kinds)))
