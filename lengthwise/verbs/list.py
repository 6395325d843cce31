"""What there is: recipes, studies, weights, runs and parts."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from lengthwise import catalog
from lengthwise.ask.folder import Asked
from lengthwise.base.types import UsageError
from lengthwise.folder import SHIPPED, RunFolder, runs_folder, shipped
from lengthwise.run import Run
from lengthwise.tasks import kebab
from lengthwise.verbs.console import say, summary_of


def run(args: argparse.Namespace) -> int:
    """Recipes, studies, weights, runs and parts."""
    runs, asked = (sorted(runs_folder().glob(f"*/{name}.json")) for name in ("config", "asked"))
    result = {
        "recipes": {name: summary_of(function) for name, function in catalog.recipes().items()},
        "studies": {name: summary_of(function) for name, function in catalog.studies().items()},
        "weights": {name: _summary_of_weights(name) for name in shipped()},
        "runs": {path.parent.name: _standing(path.parent) for path in runs},
        "asked": {path.parent.name: _replies(path.parent) for path in asked},
        "parts": {name: list(kinds) for name, kinds in catalog.parts().items()},
    }
    return say(args, result, *_tables(result))


def _tables(result: Mapping[str, dict[str, Any]]) -> list[Table | str]:
    tables: list[Table | str] = []
    for title in ("recipes", "studies", "weights", "runs", "asked"):
        if result[title]:
            shown = {escape(name): escape(text) for name, text in _grouped(result[title]).items()}
            tables += [_table(title, shown), ""]
    parts = {name: ", ".join(kinds) for name, kinds in result["parts"].items()}
    return [*tables, _table("parts of a recipe", parts)]


def _table(title: str, rows: Mapping[str, str]) -> Table:
    table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, text in rows.items():
        table.add_row(f"[bold]{name}[/]", text)
    return table


def _standing(folder: Path) -> str:
    try:
        return "done" if Run.open(folder).done else "begun"
    except UsageError as error:  # of another version, or with parts that --import would make known
        return str(error).removeprefix(f"{folder / 'config.json'}: ")


def _replies(folder: Path) -> str:
    try:
        asked = Asked.open(folder)
        return f"{asked.inquiry.model} on {asked.inquiry.task.name}, {len(asked.replies())} replies"
    except UsageError as error:
        return str(error).removeprefix(f"{folder / 'asked.json'}: ")


def _grouped(summaries: dict[str, str]) -> dict[str, str]:
    """Names that share a summary, as a family's members do, on one line."""
    groups: dict[str, list[str]] = {}
    for name, text in summaries.items():
        groups.setdefault(text, []).append(name)
    shown = {}
    for text, names in groups.items():
        few = len(names) < 6 or text in ("done", "begun")
        shown |= dict.fromkeys(names, text) if few else {f"{names[0]} … {names[-1]}": f"{len(names)} recipes. {text}"}
    return shown


def _summary_of_weights(name: str) -> str:
    """Read from config.json alone: to build a model takes half a second."""
    config = RunFolder(SHIPPED / name).config()
    return f"{kebab(config['task']['kind'])}, trained up to {config['lengths']['top']}"
