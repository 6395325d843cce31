"""Parser of the command line, which reads commands' ``Options`` from the source, since an import would load torch."""

from __future__ import annotations

import argparse
import ast
import re
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, get_args

from lengthwise.base import ranges
from lengthwise.base.errors import UsageError
from lengthwise.registry.sources import Field, read_declared_fields

VERBS = (
    "demo", "list", "show", "sample", "train", "evaluate", "attack", "depth", "verify", "check", "solve", "push",
    "export", "track", "ask", "rasp", "reproduce", "sweep", "records", "report",
)  # fmt: skip
NARGS = {"Argument": None, "Arguments": "+", "Words": "*"}  # argparse's ``nargs`` of each type of positional argument
OPTION_ALIASES = {"methods": ["--mixer"]}
HELP_EXAMPLES = {
    "demo": "train two models on short sums, test them on long ones",
    "solve looped-pairs 128+9": "answer at once, with weights that are shipped",
    "train looped-parity --seeds 3": "three seeds, measured at up to 5 times the length",
    "train looped-pairs model.width=32": "any field of a recipe can be changed",
    "train --from RUN steps=600": "continue a run up to step 600",
    "evaluate looped-pairs --lengths 8-100:4": "measure weights, or a run's folder",
    "sweep looped-parity model.width=32,64": "every value of a field, the best kept as a recipe",
    "attack looped-pairs": "search for problems that it gets wrong",
    "depth looped-pairs": "what do more loops do to its answer and state?",
    "verify looped-pairs": "check weights against their claims",
    "check own_task": "is the task in own_task.py right?",
    "check problems.jsonl": "is this file of problems valid?",
    "report runs/*": "tables, figures and CSV",
    "show RoPE": "a part and its fields; or a field: model.positions",
    "show looped-pairs --html page.html": "a page that runs the model in the browser",
}
_COMPLETION_HELP = """completion: pip install 'lengthwise[complete]', then
  eval "$(register-python-argcomplete lengthwise)"
"""


class _Parser(argparse.ArgumentParser):
    """Argument parser with one-line errors."""

    def error(self, message: str) -> NoReturn:
        from lengthwise.base.fields import suggest  # late, so that `--help` need not wait for it

        if wrong := re.search(r"VERB: invalid choice: '([^']*)'", message):
            message = f"there is no verb {wrong[1]!r}{suggest(wrong[1], list_parsers(self))}"
        self.exit(2, f"{UsageError(f'{self.prog}: {message}; see `{self.prog} --help`')}\n")


def list_parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each command, by the command's name."""
    return next(action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser with all commands and their options."""
    examples = [f"  lengthwise {text}\n      {about}" for text, about in HELP_EXAMPLES.items()]
    top = _Parser(
        prog="lengthwise",
        description="Train small sequence models on short problems;\nsee whether they solve longer ones.",
        epilog="\n".join(["examples:", *examples, "", _COMPLETION_HELP]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="store_true", help="print the version")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", parser_class=_Parser)
    for name in VERBS:
        about, declared = read_options(name)
        text = about[0].lower() + about[1:].removesuffix(".")
        sub = verbs.add_parser(name, help=text, description=text, allow_abbrev=False)
        for field in declared.values():
            _add_option(sub, field)
    return top


def read_options(verb: str) -> tuple[str, dict[str, Field]]:
    """Read a command's source file; return its description, and its options by name, shared options last."""
    classes = _read_classes(verb) | _read_classes("shared")
    options: dict[str, Field] = {}
    names = ["Options"]
    for name in names:  # grows by the bases of each class
        node, declared = classes[name]
        options = options | {field.name: field for field in declared if field.name not in options}
        names += [base.id for base in node.bases if isinstance(base, ast.Name)]
    return " ".join((ast.get_docstring(classes["Options"][0]) or "").split()), options


@cache
def _read_classes(file: str) -> dict[str, tuple[ast.ClassDef, list[Field]]]:
    path = Path(__file__).with_name(f"{file}.py")
    nodes = [node for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.ClassDef)]
    option_classes = [node for node in nodes if node.name == "Options" or file == "shared"]
    return {node.name: (node, read_declared_fields(node, path)) for node in option_classes}


def format_flag(name: str) -> str:
    """Return the option of a field: ``no_graphs`` → ``--no-graphs``, ``import_`` → ``--import``."""
    return f"--{name.rstrip('_').replace('_', '-')}"


def get_value_type(field: Field) -> Any:
    """Return the type of an option's value, with its range: ``Seed | None`` → ``ranges.Seed``."""
    name = field.type.removesuffix(" | None")
    return getattr(ranges, name, {"int": int, "float": float}.get(name, str))


def _add_option(parser: argparse.ArgumentParser, field: Field) -> None:
    """Add an option, or a positional argument, to the parser of a command."""
    name, kind = field.name, field.type.removesuffix(" | None")
    metavar, colon, about = field.about.partition(": ")
    flag = format_flag(name)
    if kind == "bool":
        parser.add_argument(flag, dest=name, action="store_true", help=field.about.replace("%", "%%"))
        return
    default = ast.literal_eval(field.default or "None")
    keywords: dict[str, Any] = {"default": default, "help": field.about.replace("%", "%%")}
    if colon and " " not in metavar:
        keywords |= {"metavar": metavar, "help": about.replace("%", "%%")}
    if kind in NARGS:
        count = "?" if field.type.endswith("None") else NARGS[kind]
        # Without a default, argparse would list zero or more words as required.
        keywords |= {"nargs": count} if count else {}
        keywords["default"] = [] if count == "*" else default
        parser.add_argument(name, **keywords)
        return
    if kind == "Texts":
        keywords |= {"action": "append", "default": [*(default or ())]}
    elif kind == "Several":
        keywords |= {"nargs": "+", "default": []}
    elif kind.startswith("Literal"):
        keywords["choices"] = ast.literal_eval(f"({kind.removeprefix('Literal[').removesuffix(']')},)")
    else:
        scale = get_value_type(field)
        keywords["type"] = get_args(scale)[0] if get_args(scale) else scale
    if name in OPTION_ALIASES:
        keywords["action"] = _JoinValues
    parser.add_argument(flag, *OPTION_ALIASES.get(name, ()), dest=name, required=field.default is None, **keywords)


class _JoinValues(argparse.Action):
    """An action that joins the values of a repeated option: ``--mixer A --mixer B`` is ``--mixer A,B``."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, *values: Any) -> None:
        setattr(namespace, self.dest, ",".join(filter(None, [getattr(namespace, self.dest), values[0]])))


def add_completers(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add a completer for the shell to each argument that takes a known name."""
    from lengthwise.base.fields import to_kebab_case  # late, so that `--help` need not wait for them
    from lengthwise.registry import sources
    from lengthwise.runs.folder import get_runs_folder, list_shipped_weights

    def list_runs(**_: Any) -> list[str]:
        return [str(path.parent) for path in get_runs_folder().glob("*/*.json") if path.stem in ("config", "asked")]

    def list_recipes(**_: Any) -> list[str]:
        return sources.list_recipe_names() + list_runs()

    names: dict[str, Any] = {
        "recipe": list_recipes,
        "like": list_recipes,
        "weights": lambda **_: [*list_shipped_weights(), *list_runs()],
        "runs": list_runs,
        "run_folder": list_runs,
        "task": lambda **_: [to_kebab_case(name) for name in sources.read_parts()["tasks"]],
        "changes": lambda **_: [f"{path}=" for path in sources.list_field_paths()],
        "study": lambda **_: list(sources.list_studies()),
        "stopping": lambda **_: list(sources.read_parts()["stopping"]),
    }
    for sub in list_parsers(parser).values():
        for action in sub._actions:
            if completer := names.get(action.dest):
                action.completer = completer  # type: ignore[attr-defined]
    return parser
