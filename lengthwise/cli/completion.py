"""Shell completion for recipes, weights, runs, tasks, studies and fields."""

from __future__ import annotations

import argparse
from typing import Any

from lengthwise.base.fields import to_kebab_case
from lengthwise.registry import sources
from lengthwise.runs.folder import list_shipped, runs_folder


def complete(parser: argparse.ArgumentParser) -> None:
    """Answer a completion request of the shell, if this is one."""
    import argcomplete  # the extra "complete"

    argcomplete.autocomplete(add_completers(parser))


def add_completers(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """Add a completer to each argument that takes a known name."""
    (verbs,) = [action.choices for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for sub in verbs.values():
        for action in sub._actions:
            if names := NAMES.get(action.dest):
                action.completer = names  # type: ignore[attr-defined]
    return parser


def _list_recipes(**_: Any) -> list[str]:
    return [name for system in sources.list_systems() or [] for name in system.recipes] + _list_runs()


def _list_runs(**_: Any) -> list[str]:
    return [str(path.parent) for path in runs_folder().glob("*/*.json") if path.stem in ("config", "asked")]


NAMES: dict[str, Any] = {
    "recipe": _list_recipes,
    "like": _list_recipes,
    "weights": lambda **_: [*list_shipped(), *_list_runs()],
    "runs": _list_runs,
    "task": lambda **_: [to_kebab_case(name) for name in sources.declared_parts()["tasks"]],
    "changes": lambda **_: [f"{path}=" for path in sources.field_paths()],
    "study": lambda **_: list(sources.list_studies()),
    "stopping": lambda **_: list(sources.declared_parts()["stopping"]),
}
