"""The command ``list``: recipes, studies, weights, runs and parts. It imports torch only if it has to."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from lengthwise.base.errors import UsageError
from lengthwise.base.files import read_text
from lengthwise.cli.console import format_columns, out, print_result
from lengthwise.cli.shared import OutputOptions, Words
from lengthwise.registry import sources
from lengthwise.runs.folder import SHIPPED, InquiryFolder, RunFolder, list_shipped, runs_folder

NAMED = 6  # recipes that share a description are abbreviated from this number on
SEED = re.compile(r'(?<=seed": )-?\d+')
WHOLE = 3  # maximum number of matches shown in full; more get a line each
SCREEN, SEVERAL = 20, 4  # above SCREEN matches, SEVERAL or more with the same description share a line
LATEST = 5  # maximum number of runs named in the overview
Sections = dict[str, dict[str, str]]


@dataclass(kw_only=True)
class Options(OutputOptions):
    """Recipes, studies, shipped weights, parts and runs."""

    words: Words = ()  # WORD: only what has every word, each with a sentence


def run(args: Options) -> int:
    """List recipes, studies, weights, runs and parts; with words, those that match every word."""
    systems, studies = _shipped_recipes(), sources.studies()
    if args.import_:
        from lengthwise.api import catalog  # imports torch, as the user's module has done

        systems.append(sources.System("yours", "Recipes of what was imported", catalog.own_recipes()))
        studies |= catalog.own_studies()
    everything = {"recipes": {name: about for system in systems for name, about in system.recipes.items()}}
    everything |= {"studies": studies} | _sections_on_disk()
    found = {title: sources.filter_entries(entries, args.words, title) for title, entries in everything.items()}
    parts = {kind: sources.filter_entries(about, args.words, f"parts {kind}") for kind, about in _part_names().items()}
    if args.json:
        return print_result(
            args, found | {"parts": {kind: list(about) for kind, about in parts.items() if about or not args.words}}
        )
    if not args.words:
        return print_result(args, None, _overview(systems, found), "", _parts_line(parts))
    matches = {title: entries for title, entries in (found | parts).items() if entries}
    if not matches:
        raise UsageError(f"list: no name or description contains {' and '.join(args.words)}")
    count = sum(map(len, matches.values()))
    shown = [
        _section_lines(title, _group_names(entries))
        if count <= WHOLE or title in ("runs", "asked")
        else _entry_lines(title, entries, together=count > SCREEN)
        for title, entries in matches.items()
    ]
    return print_result(args, None, *shown)


def _shipped_recipes() -> list[sources.System]:
    """Return shipped recipes by system."""
    if (found := sources.systems()) is None:  # their files have changed: import them
        from lengthwise.api import catalog

        found = sources.systems(catalog.members())
    return found or []


def _sections_on_disk() -> Sections:
    """Return weights, runs and inquiries on disk."""
    files = (runs_folder().glob(f"*/{name}.json") for name in ("config", "asked"))
    runs, asked = (sorted(found, key=lambda path: path.parent.name) for found in files)
    return {
        "weights": {name: _summary_of_weights(name) for name in list_shipped()},
        "runs": {path.parent.name: _run_state(path.parent) for path in runs},
        "asked": {path.parent.name: _describe_replies(path.parent) for path in asked},
    }


def _part_names() -> Sections:
    return {kind: {name: one.summary for name, one in found.items()} for kind, found in sources.parts().items()}


# Output


def _overview(systems: Iterable[sources.System], found: Sections) -> Any:
    """Return all names, recipes by system; shipped weights are marked."""
    rows: list[tuple[str, Text]] = []
    for system in systems:
        about = Text(system.about.partition(":")[0].rstrip("."), "dim")
        names = ", ".join(_abbreviate(system.recipes, found["weights"]))
        rows.append((system.name, Text.assemble(about, "\n", names)))
    rows.append(("studies", Text(", ".join(found["studies"]))))
    rows += [(kind, Text(_count_if_many(kind, found[kind]))) for kind in ("runs", "asked") if found[kind]]
    head = Text("Recipes by system; * has weights, which answer at once (lengthwise solve)", "bold")
    return format_columns(head, rows)


def _names_by_text(entries: Mapping[str, str]) -> dict[str, list[str]]:
    groups: dict[str, list[str]] = {}
    for name, text in entries.items():
        groups.setdefault(text, []).append(name)
    return groups


def _abbreviate(recipes: Mapping[str, str], weights: Mapping[str, str]) -> list[str]:
    """Return names; if many share a description, the first of them and their number."""
    shown = []
    for names in _names_by_text(recipes).values():
        marked = [name + "*" * (name in weights) for name in names]
        shown += marked if len(names) < NAMED else [f"{marked[0]} … ({len(names)})"]
    return shown


def _count_if_many(kind: str, entries: Mapping[str, str]) -> str:
    """Return all entries; if there are many, only their number."""
    if len(entries) <= LATEST:
        return "\n".join(f"{name}: {text}" for name, text in entries.items())
    begun = f", {list(entries.values()).count('begun')} of them begun" if kind == "runs" else ""
    return f"{len(entries)} in {runs_folder()}{begun}: lengthwise list {kind}"


def _parts_line(parts: Sections) -> Any:
    rows = [(kind, Text(", ".join(about))) for kind, about in parts.items()]
    head = Text("Parts of a recipe (lengthwise show Transformer; lengthwise list WORD says what each is)", "bold")
    return format_columns(head, rows)


def _section_lines(title: str, entries: Mapping[str, str]) -> Any:
    return format_columns(Text(title, "bold"), [(name, Text(text)) for name, text in entries.items()], gap=True)


def _entry_lines(title: str, entries: Mapping[str, str], *, together: bool) -> Any:
    """Return a line per entry, cut to the terminal's width; with ``together``, entries with the same description share
    one."""
    rows = []
    for text, names in _names_by_text(entries).items():
        marked = [f"{names[0]} … ({len(names)})"] if together and len(names) >= SEVERAL else names
        rows += [(name, sources.first_sentence(text)) for name in marked]
    longest = min(max(len(name) for name, _ in rows), out.width // 2)
    lines = "\n".join(f"  {name:{longest}}  {text}" for name, text in rows)
    return Group(Text(title, "bold"), Text(lines, no_wrap=True, overflow="ellipsis"))


def _group_names(summaries: Mapping[str, str]) -> dict[str, str]:
    """Combine names with the same summary, such as a family's members, in one line."""
    shown = {}
    for text, names in _names_by_text(summaries).items():
        few = len(names) < NAMED or text in ("done", "begun")
        shown |= dict.fromkeys(names, text) if few else {f"{names[0]} … {names[-1]}": f"{len(names)} recipes. {text}"}
    return shown


# Runs


def _run_state(folder: Path) -> str:
    """Return whether a run is done, or the error if it cannot be read."""
    if not _has_known_parts(folder):
        from lengthwise.runs.run import Run  # imports torch, but gives the exact error

        try:
            Run.open(folder)
        except UsageError as error:  # from another version, or with parts that need --import
            return str(error).removeprefix(f"{folder / 'config.json'}: ")
    return "done" if RunFolder(folder).done else "begun"


def _has_known_parts(folder: Path) -> bool:
    """Return True if the run's recipe consists of known parts with valid and complete fields."""
    try:
        return _is_valid_recipe(SEED.sub("0", read_text(folder / "config.json")))
    except (UsageError, ValueError, RecursionError):
        return False


@cache
def _is_valid_recipe(text: str) -> bool:
    """Validate a recipe's text in which seeds are replaced by 0. Cached, since most of thousands of runs differ only in
    their seeds."""
    tree = json.loads(text)
    return isinstance(tree, dict) and tree.get("kind") == "Recipe" and sources.is_readable(tree)


def _describe_replies(folder: Path) -> str:
    try:
        asked = InquiryFolder(folder)
        replies = {row.get("prompt") for row in asked.rows("replies")}
        return f"{asked.outline.model} on {asked.outline.task}, {len(replies)} replies"
    except UsageError as error:
        return str(error).removeprefix(f"{folder / 'asked.json'}: ")


def _summary_of_weights(name: str) -> str:
    outline = RunFolder(SHIPPED / name).outline
    return f"{outline.task}, trained up to {outline.top}"
