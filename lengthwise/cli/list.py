"""The command ``list``: recipes, studies, weights, runs and parts. It imports torch only with ``--import``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from lengthwise.base.errors import UsageError
from lengthwise.base.score_rows import group_by
from lengthwise.cli.console import format_columns, out, print_result
from lengthwise.cli.shared import OutputOptions, Words
from lengthwise.registry import sources
from lengthwise.runs.folder import SHIPPED_FOLDER, InquiryFolder, RunFolder, get_runs_folder, list_shipped_weights

Sections = dict[str, dict[str, str]]


@dataclass(kw_only=True)
class Options(OutputOptions):
    """List recipes, studies, shipped weights, parts and runs."""

    words: Words = ()  # WORD: list only entries that contain every WORD, with their descriptions


def run(args: Options) -> int:
    """List recipes, studies, weights, runs and parts; with words, only those that match every word."""
    systems, studies = sources.list_recipe_files(), sources.list_studies()
    if args.import_:
        from lengthwise.api import catalog  # imports torch, as the user's module has done

        own_recipes, own_studies = catalog.describe_user_definitions()
        systems.append(sources.RecipeFile("yours", "Recipes of imported modules", own_recipes))
        studies |= own_studies
    everything = {"recipes": {name: about for system in systems for name, about in system.recipes.items()}}
    everything["studies"] = studies
    weights = {name: RunFolder(SHIPPED_FOLDER / name).outline for name in list_shipped_weights()}
    everything["weights"] = {name: f"{outline.task}, trained up to {outline.top}" for name, outline in weights.items()}
    for title, file, describe in (("runs", "config", _describe_run), ("asked", "asked", _describe_inquiry)):
        folders = sorted((path.parent for path in get_runs_folder().glob(f"*/{file}.json")), key=lambda path: path.name)
        everything[title] = {folder.name: describe(folder) for folder in folders}
    matching = {title: sources.filter_entries(entries, args.words, title) for title, entries in everything.items()}
    parts: Sections = {}
    for kind, classes in sources.read_parts().items():
        summaries = {name: outline.summary for name, outline in classes.items()}
        parts[kind] = sources.filter_entries(summaries, args.words, f"parts {kind}")
    if args.json:
        names = {kind: list(about) for kind, about in parts.items() if about or not args.words}
        return print_result(args, matching | {"parts": names})
    if not args.words:
        head = "Parts of a recipe (lengthwise show Transformer; lengthwise list WORD says what each is)"
        rows = [(kind, Text(", ".join(about))) for kind, about in parts.items()]
        parts_text = format_columns(Text(head, "bold"), rows)
        return print_result(args, None, _build_overview(systems, matching), "", parts_text)
    matches = {title: entries for title, entries in (matching | parts).items() if entries}
    if not matches:
        raise UsageError(f"list: no name or description contains {' and '.join(args.words)}")
    count, shown = sum(map(len, matches.values())), []
    for title, entries in matches.items():
        head = Text(title, "bold")
        if count <= 3 or title in ("runs", "asked"):  # few matches are shown in full
            rows = [(name, Text(text)) for name, text in entries.items()]
            shown.append(format_columns(head, rows, blank_line_after=True))
            continue
        # One line per entry, cut to the terminal's width; if there are many, entries with one description share a line.
        lines = _group_entries(entries, 4 if count > 20 else math.inf)
        longest = min(max(len(name) for name, _ in lines), out.width // 2)
        texts = (f"  {name:{longest}}  {sources.extract_first_sentence(text)}" for name, text in lines)
        shown.append(Group(head, Text("\n".join(texts), no_wrap=True, overflow="ellipsis")))
    return print_result(args, None, *shown)


def _build_overview(systems: Iterable[sources.RecipeFile], sections: Sections) -> Any:
    """Return a table of all names, with recipes grouped by system; a star marks recipes with shipped weights."""
    rows: list[tuple[str, Text]] = []
    for system in systems:
        about = Text(system.description.partition(":")[0].rstrip("."), "dim")
        marked = {name + "*" * (name in sections["weights"]): text for name, text in system.recipes.items()}
        names = ", ".join(name for name, _ in _group_entries(marked, 6))
        rows.append((system.name, Text.assemble(about, "\n", names)))
    rows.append(("studies", Text(", ".join(sections["studies"]))))
    for kind in ("runs", "asked"):
        if entries := sections[kind]:
            text = "\n".join(f"{name}: {text}" for name, text in entries.items())
            if len(entries) > 5:
                begun = f", {list(entries.values()).count('begun')} of them begun" if kind == "runs" else ""
                text = f"{len(entries)} in {get_runs_folder()}{begun}: lengthwise list {kind}"
            rows.append((kind, Text(text)))
    head = Text("Recipes by system; * has weights, which answer at once (lengthwise solve)", "bold")
    return format_columns(head, rows)


def _group_entries(entries: Mapping[str, str], group_size: float) -> list[tuple[str, str]]:
    """Return pairs (name, text); ``group_size`` or more names with equal texts become the first and their number."""
    lines = []
    for text, group in group_by(entries.items(), lambda entry: entry[1]).items():
        names = [name for name, _ in group]
        lines += [(name, text) for name in (names if len(names) < group_size else [f"{names[0]} … ({len(names)})"])]
    return lines


# Runs


def _describe_run(folder: Path) -> str:
    """Return ``done`` or ``begun``, or the error if the run's recipe is damaged."""
    try:
        if RunFolder(folder).config().get("kind") != "Recipe":
            return "its config.json is not a recipe"
        return "done" if RunFolder(folder).done else "begun"
    except UsageError as error:
        return str(error).removeprefix(f"{folder / 'config.json'}: ")


def _describe_inquiry(folder: Path) -> str:
    try:
        asked = InquiryFolder(folder)
        replies = {row.get("prompt") for row in asked.rows("replies")}
        return f"{asked.outline.model} on {asked.outline.task}, {len(replies)} replies"
    except UsageError as error:
        return str(error).removeprefix(f"{folder / 'asked.json'}: ")
