"""Build the reference of the Python interface: all names of ``lengthwise.__all__``, from docstrings and field comments.

A field's help is the comment beside it, which `lengthwise show` reads from the sources; so does this.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lengthwise as lw
from lengthwise import api
from lengthwise.registry import sources

INDEX = "docs/reference/README.md"
PACKAGE = Path(lw.__file__).parent
TITLES = {  # a page each, of the names that stand in these folders and files
    "Functions": ("api", "report"),
    "Recipes": ("experiment", "catalog", "studies"),
    "Tasks and data": ("tasks", "base"),
    "Models and runners": ("models", "runners"),
    "Mixers and positions": ("nn",),
    "Objectives": ("objectives",),
    "Runs, scores and answers": ("run", "runs", "evaluation", "training", "verify", "testing"),
}


def plan() -> dict[str, list[str]]:
    """Return public names by the title of their page."""
    found: dict[str, list[str]] = {title: [] for title in TITLES}
    for name in sorted(lw.__all__, key=str.lower):
        room = getattr(api, name).__module__.split(".")[1]
        found[next(title for title, rooms in TITLES.items() if room in rooms)].append(name)
    return found


def path_of(title: str) -> str:
    """Return the path of a page of the reference."""
    return f"docs/reference/{title.lower().replace(' ', '-').replace(',', '')}.md"


def pages() -> dict[str, str]:
    """Return the texts of all pages by path; the first is the index."""
    planned = plan()
    lines = ["# Python interface\n", "`import lengthwise as lw` offers these names.\n"]
    for title, names in planned.items():
        listed = ", ".join(f"[`{name}`]({Path(path_of(title)).name}#{name})" for name in names)
        lines.append(f"**[{title}]({Path(path_of(title)).name})**: {listed}\n")
    texts = {INDEX: "\n".join(lines)}
    for title, names in planned.items():
        texts[path_of(title)] = f"# {title}\n\n" + "\n".join(entry(name) for name in names)
    return texts


def entry(name: str) -> str:
    """Describe a name: its signature, docstring, fields and methods."""
    found = getattr(api, name)  # in the package, some names are folders that can be called
    source = Path(inspect.getsourcefile(inspect.unwrap(found)))
    line = inspect.getsourcelines(inspect.unwrap(found))[1] or 1
    place = source.relative_to(PACKAGE.parent)
    lines = [f"## {name} {{ #{name} }}", "", _signature(name, found), prose(found), ""]
    if inspect.isclass(found):
        lines += [*_fields(found, source), *_methods(found)]
    lines.append(f"[`{place}`, line {line}](../../{place}#__codelineno-0-{line})\n")
    return "\n".join(lines)


def prose(found: Any) -> str:
    """Return a docstring as Markdown."""
    return re.sub(r"``([^`]+)``", r"`\1`", inspect.getdoc(found) or "")


def _signature(name: str, found: Any) -> str:
    """Return the signature; for an abstract class or one without arguments, only its bases."""
    if inspect.isclass(found):
        bases = [base.__name__ for base in found.__bases__ if base not in (object, Exception)]
        above = f"({', '.join(bases)})" if bases else ""
        return f"```python\nclass {name}{above}\n```\n"
    return f"```python\n{_call(name, found)}\n```\n"


def _call(name: str, found: Any) -> str:
    """Format a function with its arguments, one per line if there are many."""
    signature = inspect.signature(found)
    if len(shown := _plain(f"{name}{signature}")) <= 88:
        return shown
    arguments = [_plain(str(one)) for one in signature.parameters.values()]
    kinds = [one.kind for one in signature.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        arguments.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    return "\n".join([f"{name}(", *(f"    {one}," for one in arguments), f") -> {signature.return_annotation}"])


def _plain(signature: str) -> str:
    """Remove the quotes around annotations."""
    return re.sub(r"""(: |-> )(['"])(.*?)\2""", r"\1\3", signature).replace("lengthwise.", "")


def _fields(found: type, source: Path) -> Iterator[str]:
    """Return a table of the fields of a dataclass, inherited ones first."""
    if not sources.find_class(found.__name__):
        sources.register_module(source)
    declared = sources.find_class(found.__name__)
    if declared and declared.fields:
        yield "| field | type | default | meaning |\n| --- | --- | --- | --- |"
        for one in declared.fields:
            cells = [f"`{one.name}`", f"`{one.type}`", f"`{one.default}`" if one.default else "", one.about]
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        yield ""


def _methods(found: type) -> Iterator[str]:
    """Return a class's own public methods and properties that have docstrings."""
    for name, value in vars(found).items():
        inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if name.startswith("_") or not (inspect.isfunction(inner) and inner.__doc__):
            continue
        call = name if isinstance(value, property) else _call(name, inner)
        yield f"```python\n{call}\n```\n\n{prose(inner)}\n"
