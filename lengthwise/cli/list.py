"""What there is: recipes, studies, weights, runs and parts. Nothing here waits for torch unless it has to."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from lengthwise.base import fields
from lengthwise.base.errors import UsageError
from lengthwise.base.files import read_text
from lengthwise.cli.console import columns, out, say
from lengthwise.registry import sources
from lengthwise.runs.folder import SHIPPED, InquiryFolder, RunFolder, list_shipped, runs_folder

NAMED = 6  # recipes of one sentence that are still named one by one
SEED = re.compile(r'(?<=seed": )-?\d+')
WHOLE = 3  # matches of which all is said; of more there is a line each
SCREEN, SEVERAL = 20, 4  # matches, of more than which those of one sentence share a line, if they are several
LATEST = 5  # runs that are named where no word asks for them
Sections = dict[str, dict[str, str]]


def run(args: argparse.Namespace) -> int:
    """Recipes, studies, weights, runs and parts; those that have every word asked for."""
    systems, studies = _recipes(), sources.studies()
    if vars(args)["import"]:
        from lengthwise import catalog  # imports torch, as the user's module has done

        systems.append(sources.System("yours", "Recipes of what was imported", catalog.own_recipes()))
        studies |= catalog.own_studies()
    everything = {"recipes": {name: about for system in systems for name, about in system.recipes.items()}}
    everything |= {"studies": studies} | _sections_on_disk()
    found = {title: sources.matching(entries, args.words, title) for title, entries in everything.items()}
    parts = {kind: sources.matching(about, args.words, f"parts {kind}") for kind, about in _parts().items()}
    if args.json:
        return say(
            args, found | {"parts": {kind: list(about) for kind, about in parts.items() if about or not args.words}}
        )
    if not args.words:
        return say(args, None, _overview(systems, found), "", _parts_line(parts))
    matches = {title: entries for title, entries in (found | parts).items() if entries}
    if not matches:
        raise UsageError(f"list: nothing has {' and '.join(args.words)} in its name or its sentence")
    count = sum(map(len, matches.values()))
    said = [
        _section(title, _group_names(entries))
        if count <= WHOLE or title in ("runs", "asked")
        else _lines(title, entries, together=count > SCREEN)
        for title, entries in matches.items()
    ]
    return say(args, None, *said)


def _recipes() -> list[sources.System]:
    """Shipped recipes by system."""
    if (found := sources.systems()) is None:  # where their files have changed, they have to be asked
        from lengthwise import catalog

        found = sources.systems(catalog.members())
    return found or []


def _sections_on_disk() -> Sections:
    """What is on the disk."""
    files = (runs_folder().glob(f"*/{name}.json") for name in ("config", "asked"))
    runs, asked = (sorted(found, key=lambda path: path.parent.name) for found in files)
    return {
        "weights": {name: _summary_of_weights(name) for name in list_shipped()},
        "runs": {path.parent.name: _standing(path.parent) for path in runs},
        "asked": {path.parent.name: _replies(path.parent) for path in asked},
    }


def _parts() -> Sections:
    return {kind: {name: one.summary for name, one in found.items()} for kind, found in sources.parts().items()}


# What is printed


def _overview(systems: Iterable[sources.System], found: Sections) -> Any:
    """All names, recipes by system; weights that are shipped are marked."""
    rows: list[tuple[str, Text]] = []
    for system in systems:
        about = Text(system.about.partition(":")[0].rstrip("."), "dim")
        names = ", ".join(_short(system.recipes, found["weights"]))
        rows.append((system.name, Text.assemble(about, "\n", names)))
    rows.append(("studies", Text(", ".join(found["studies"]))))
    rows += [(kind, Text(_latest(kind, found[kind]))) for kind in ("runs", "asked") if found[kind]]
    head = Text("Recipes by system; * has weights, which answer at once (lengthwise solve)", "bold")
    return columns(head, rows)


def _short(recipes: Mapping[str, str], weights: Mapping[str, str]) -> list[str]:
    """Names; of many with one sentence the first, and how many there are."""
    groups: dict[str, list[str]] = {}
    for name, about in recipes.items():
        groups.setdefault(about, []).append(name)
    shown = []
    for names in groups.values():
        marked = [name + "*" * (name in weights) for name in names]
        shown += marked if len(names) < NAMED else [f"{marked[0]} … ({len(names)})"]
    return shown


def _latest(kind: str, entries: Mapping[str, str]) -> str:
    """Those that there are; if they are many, how many."""
    if len(entries) <= LATEST:
        return "\n".join(f"{name}: {text}" for name, text in entries.items())
    begun = f", {list(entries.values()).count('begun')} of them begun" if kind == "runs" else ""
    return f"{len(entries)} in {runs_folder()}{begun}: lengthwise list {kind}"


def _parts_line(parts: Sections) -> Any:
    rows = [(kind, Text(", ".join(about))) for kind, about in parts.items()]
    head = Text("Parts of a recipe (lengthwise show Transformer; lengthwise list WORD says what each is)", "bold")
    return columns(head, rows)


def _section(title: str, entries: Mapping[str, str]) -> Any:
    return columns(Text(title, "bold"), [(name, Text(text)) for name, text in entries.items()], gap=True)


def _lines(title: str, entries: Mapping[str, str], *, together: bool) -> Any:
    """A line for each entry, or ``together`` for those of one sentence, cut where the terminal ends."""
    groups: dict[str, list[str]] = {}
    for name, text in entries.items():
        groups.setdefault(text, []).append(name)
    rows = []
    for text, names in groups.items():
        marked = [f"{names[0]} … ({len(names)})"] if together and len(names) >= SEVERAL else names
        rows += [(name, sources.sentence(text)) for name in marked]
    longest = min(max(len(name) for name, _ in rows), out.width // 2)
    lines = "\n".join(f"  {name:{longest}}  {text}" for name, text in rows)
    return Group(Text(title, "bold"), Text(lines, no_wrap=True, overflow="ellipsis"))


def _group_names(summaries: Mapping[str, str]) -> dict[str, str]:
    """Names that share a summary, as a family's members do, on one line."""
    groups: dict[str, list[str]] = {}
    for name, text in summaries.items():
        groups.setdefault(text, []).append(name)
    shown = {}
    for text, names in groups.items():
        few = len(names) < NAMED or text in ("done", "begun")
        shown |= dict.fromkeys(names, text) if few else {f"{names[0]} … {names[-1]}": f"{len(names)} recipes. {text}"}
    return shown


# Runs


def _standing(folder: Path) -> str:
    """Whether a run is done; what is wrong with one that cannot be read."""
    if not _plain(folder):
        from lengthwise.run import Run  # imports torch: it says exactly what is wrong

        try:
            Run.open(folder)
        except UsageError as error:  # of another version, or with parts that --import would make known
            return str(error).removeprefix(f"{folder / 'config.json'}: ")
    return "done" if RunFolder(folder).done else "begun"


def _plain(folder: Path) -> bool:
    """Is its recipe of known parts, with known fields, and nothing missing?"""
    try:
        return _fits(SEED.sub("0", read_text(folder / "config.json")))
    except (UsageError, ValueError, RecursionError):
        return False


@cache
def _fits(text: str) -> bool:
    """The recipe of a text in which seeds are 0, read once: few of thousands of runs differ otherwise."""
    tree = json.loads(text)
    return isinstance(tree, dict) and tree.get("kind") == "Recipe" and sources.fits(tree)


def _replies(folder: Path) -> str:
    try:
        asked = InquiryFolder(folder)
        replies = {row.get("prompt") for row in asked.rows("replies")}
        return f"{asked.outline.model} on {asked.outline.task}, {len(replies)} replies"
    except UsageError as error:
        return str(error).removeprefix(f"{folder / 'asked.json'}: ")


def _summary_of_weights(name: str) -> str:
    config = RunFolder(SHIPPED / name).config()
    return f"{fields.kebab(config['task']['kind'])}, trained up to {config['lengths']['top']}"
