"""Build the reference of the Python interface: all names of ``lengthwise.__all__``, from docstrings and field comments.

A field's help is the comment beside it, as in `lengthwise show`.
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
TITLES = {  # of pages, with the folders and files whose public names each page has
    "Functions": ("api", "report"),
    "Recipes": ("experiment", "catalog", "studies"),
    "Tasks and data": ("tasks", "base"),
    "Models and runners": ("models", "runners"),
    "Mixers and positions": ("nn",),
    "Objectives": ("objectives",),
    "Runs, scores and answers": ("run", "runs", "evaluation", "training", "verify", "testing"),
}


def group_names() -> dict[str, list[str]]:
    """Return public names by the title of their page."""
    names: dict[str, list[str]] = {title: [] for title in TITLES}
    for name in sorted(lw.__all__, key=str.lower):
        room = getattr(api, name).__module__.split(".")[1]
        names[next(title for title, rooms in TITLES.items() if room in rooms)].append(name)
    return names


def get_page_path(title: str) -> str:
    """Return the path of a page of the reference."""
    return f"docs/reference/{title.lower().replace(' ', '-').replace(',', '')}.md"


def build_pages() -> dict[str, str]:
    """Return the texts of all pages by path; the first is the index."""
    names_by_title = group_names()
    lines = ["# Python interface\n", "`import lengthwise as lw` offers these names.\n"]
    for title, names in names_by_title.items():
        listed = ", ".join(f"[`{name}`]({Path(get_page_path(title)).name}#{name})" for name in names)
        lines.append(f"**[{title}]({Path(get_page_path(title)).name})**: {listed}\n")
    texts = {INDEX: "\n".join(lines)}
    for title, names in names_by_title.items():
        texts[get_page_path(title)] = f"# {title}\n\n" + "\n".join(describe_name(name) for name in names)
    return texts


def describe_name(name: str) -> str:
    """Describe a name: its signature, docstring, fields and methods."""
    value = getattr(api, name)  # the package itself has modules of the same name
    source = Path(inspect.getsourcefile(inspect.unwrap(value)))
    line = inspect.getsourcelines(inspect.unwrap(value))[1] or 1
    place = source.relative_to(PACKAGE.parent)
    lines = [f"## {name} {{ #{name} }}", "", _format_signature(name, value), docstring_to_markdown(value), ""]
    if inspect.isclass(value):
        lines += [*_format_fields(value, source), *_format_methods(value)]
    lines.append(f"[`{place}`, line {line}](../../{place}#__codelineno-0-{line})\n")
    return "\n".join(lines)


def docstring_to_markdown(value: Any) -> str:
    """Return a docstring as Markdown."""
    return re.sub(r"``([^`]+)``", r"`\1`", inspect.getdoc(value) or "")


def _format_signature(name: str, value: Any) -> str:
    """Return the signature of a function, or the name and bases of a class, as a Markdown block of Python."""
    if inspect.isclass(value):
        bases = [base.__name__ for base in value.__bases__ if base not in (object, Exception)]
        above = f"({', '.join(bases)})" if bases else ""
        return f"```python\nclass {name}{above}\n```\n"
    return f"```python\n{_format_call(name, value)}\n```\n"


def _format_call(name: str, value: Any) -> str:
    """Format a function with its arguments, one per line if there are many."""
    signature = inspect.signature(value)
    if len(shown := _unquote_annotations(f"{name}{signature}")) <= 88:
        return shown
    arguments = [_unquote_annotations(str(field)) for field in signature.parameters.values()]
    kinds = [field.kind for field in signature.parameters.values()]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        arguments.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    return "\n".join([f"{name}(", *(f"    {field}," for field in arguments), f") -> {signature.return_annotation}"])


def _unquote_annotations(signature: str) -> str:
    """Remove the quotes around annotations."""
    return re.sub(r"""(: |-> )(['"])(.*?)\2""", r"\1\3", signature).replace("lengthwise.", "")


def _format_fields(part: type, source: Path) -> Iterator[str]:
    """Yield the lines of a table of a dataclass's fields, inherited ones first."""
    if not sources.find_class(part.__name__):
        sources.register_module(source)
    declared = sources.find_class(part.__name__)
    if declared and declared.fields:
        yield "| field | type | default | meaning |\n| --- | --- | --- | --- |"
        for field in declared.fields:
            cells = [f"`{field.name}`", f"`{field.type}`", f"`{field.default}`" if field.default else "", field.about]
            yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
        yield ""


def _format_methods(value: type) -> Iterator[str]:
    """Yield the call and docstring of each public method and property that the class itself defines and documents."""
    for name, member in vars(value).items():
        inner = member.fget if isinstance(member, property) else getattr(member, "__func__", member)
        if name.startswith("_") or not (inspect.isfunction(inner) and inner.__doc__):
            continue
        call = name if isinstance(member, property) else _format_call(name, inner)
        yield f"```python\n{call}\n```\n\n{docstring_to_markdown(inner)}\n"
