"""What verbs print, and where."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any

from rich.console import Console

out = Console()
progress = Console(stderr=True)


def say(args: argparse.Namespace, result: Any, *renderables: Any) -> int:
    """The result, as JSON or for people."""
    if args.json:
        print(json.dumps(result))
    else:
        for renderable in renderables:
            out.print(renderable)
    return 0


def summary_of(function: Callable[..., Any]) -> str:
    """The first paragraph of a function's docstring."""
    return (function.__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " ")
