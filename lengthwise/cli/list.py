"""The command ``list``: recipes, studies, weights, runs and parts. It imports torch only if it has to."""

from __future__ import annotations

import json
import math
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
from lengthwise.base.score_rows import group_by
from lengthwise.cli.console import format_columns, out, print_result
from lengthwise.cli.shared import OutputOptions, Words
from lengthwise.registry import sources
from lengthwise.runs.folder import SHIPPED, InquiryFolder, RunFolder, list_shipped, runs_folder

NAMED = 6  # recipes of a system that share a description are abbreviated from this number on
SEED = re.compile(r'(?<=seed": )-?\d+')
WHOLE = 3  # maximum number of matches shown in full; more get a line each
SCREEN, SEVERAL = 20, 4  # above SCREEN matches, SEVERAL or more with the same description share a line
LATEST = 5  # maximum number of runs named in the overview
Sections = dict[str, dict[str, str]]


@dataclass(kw_only=True)
class Options(OutputOptions):
    """List recipes, studies, shipped weights, parts and runs."""

    words: Words = ()  # WORD: list only entries that contain every WORD, each with a sentence


def run(args: Options) -> int:
    """List recipes, studies, weights, runs and parts; with words, those that match every word."""
    systems, studies = _read_systems(), sources.list_studies()
    if args.import_:
        from lengthwise.api import catalog  # imports torch, as the user's module has done

        own_recipes, own_studies = catalog.describe_user_definitions()
        systems.append(sources.System("yours", "Recipes of imported modules", own_recipes))
        studies |= own_studies
    everything = {"recipes": {name: about for system in systems for name, about in system.recipes.items()}}
    everything |= {"studies": studies} | _read_sections()
    found = {title: sources.filter_entries(entries, args.words, title) for title, entries in everything.items()}
    summaries = {
        kind: {name: one.summary for name, one in known.items()} for kind, known in sources.declared_parts().items()
    }
    parts = {kind: sources.filter_entries(about, args.words, f"parts {kind}") for kind, about in summaries.items()}
    if args.json:
        return print_result(
            args, found | {"parts": {kind: list(about) for kind, about in parts.items() if about or not args.words}}
        )
    if not args.words:
        head = "Parts of a recipe (lengthwise show Transformer; lengthwise list WORD says what each is)"
        names = [(kind, Text(", ".join(about))) for kind, about in parts.items()]
        return print_result(args, None, _build_overview(systems, found), "", format_columns(Text(head, "bold"), names))
    matches = {title: entries for title, entries in (found | parts).items() if entries}
    if not matches:
        raise UsageError(f"list: no name or description contains {' and '.join(args.words)}")
    count, shown = sum(map(len, matches.values())), []
    for title, entries in matches.items():
        head = Text(title, "bold")
        if count <= WHOLE or title in ("runs", "asked"):
            rows = [(name, Text(text)) for name, text in entries.items()]
            shown.append(format_columns(head, rows, blank_after=True))
            continue
        # A line per entry, cut to the terminal's width.
        lines = _group_entries(entries, SEVERAL if count > SCREEN else math.inf)
        longest = min(max(len(name) for name, _ in lines), out.width // 2)
        texts = (f"  {name:{longest}}  {sources.first_sentence(text)}" for name, text in lines)
        shown.append(Group(head, Text("\n".join(texts), no_wrap=True, overflow="ellipsis")))
    return print_result(args, None, *shown)


def _read_systems() -> list[sources.System]:
    if (found := sources.list_systems()) is None:  # their files have changed: import them
        from lengthwise.api import catalog

        found = sources.list_systems(catalog.family_members())
    return found or []


def _read_sections() -> Sections:
    files = (runs_folder().glob(f"*/{name}.json") for name in ("config", "asked"))
    runs, asked = (sorted(found, key=lambda path: path.parent.name) for found in files)
    weights = {name: RunFolder(SHIPPED / name).outline for name in list_shipped()}
    return {
        "weights": {name: f"{outline.task}, trained up to {outline.top}" for name, outline in weights.items()},
        "runs": {path.parent.name: _describe_run_state(path.parent) for path in runs},
        "asked": {path.parent.name: _describe_replies(path.parent) for path in asked},
    }


# Output


def _build_overview(systems: Iterable[sources.System], sections: Sections) -> Any:
    """Return all names, recipes by system; shipped weights are marked."""
    rows: list[tuple[str, Text]] = []
    for system in systems:
        about = Text(system.about.partition(":")[0].rstrip("."), "dim")
        marked = {name + "*" * (name in sections["weights"]): text for name, text in system.recipes.items()}
        names = ", ".join(name for name, _ in _group_entries(marked, NAMED))
        rows.append((system.name, Text.assemble(about, "\n", names)))
    rows.append(("studies", Text(", ".join(sections["studies"]))))
    for kind in ("runs", "asked"):
        if entries := sections[kind]:
            text = "\n".join(f"{name}: {text}" for name, text in entries.items())
            if len(entries) > LATEST:
                begun = f", {list(entries.values()).count('begun')} of them begun" if kind == "runs" else ""
                text = f"{len(entries)} in {runs_folder()}{begun}: lengthwise list {kind}"
            rows.append((kind, Text(text)))
    head = Text("Recipes by system; * has weights, which answer at once (lengthwise solve)", "bold")
    return format_columns(head, rows)


def _group_entries(entries: Mapping[str, str], limit: float) -> list[tuple[str, str]]:
    """Return names with their texts; ``limit`` or more names with one text become the first name and their number."""
    shown = []
    for text, found in group_by(entries.items(), lambda entry: entry[1]).items():
        names = [name for name, _ in found]
        shown += [(name, text) for name in (names if len(names) < limit else [f"{names[0]} … ({len(names)})"])]
    return shown


# Runs


def _describe_run_state(folder: Path) -> str:
    """Return whether a run is done, or the error if it cannot be read."""
    try:
        known = _is_valid_recipe(SEED.sub("0", read_text(folder / "config.json")))
    except (UsageError, ValueError, RecursionError):
        known = False
    if not known:
        from lengthwise.runs.run import Run  # imports torch, but gives the exact error

        try:
            Run.open(folder)
        except UsageError as error:  # from another version, or with parts that need --import
            return str(error).removeprefix(f"{folder / 'config.json'}: ")
    return "done" if RunFolder(folder).done else "begun"


@cache
def _is_valid_recipe(text: str) -> bool:
    """Return True if a recipe's text, in which seeds are replaced by 0, has known parts with valid and complete fields.
    Cached, since most of thousands of runs differ only in their seeds."""
    tree = json.loads(text)
    return isinstance(tree, dict) and tree.get("kind") == "Recipe" and sources.is_readable(tree)


def _describe_replies(folder: Path) -> str:
    try:
        asked = InquiryFolder(folder)
        replies = {row.get("prompt") for row in asked.rows("replies")}
        return f"{asked.outline.model} on {asked.outline.task}, {len(replies)} replies"
    except UsageError as error:
        return str(error).removeprefix(f"{folder / 'asked.json'}: ")
