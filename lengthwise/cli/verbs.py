"""The verbs of the command line: a file each, with a function ``run`` from parsed arguments to an exit status.

What several verbs need is in ``options`` (what was typed → objects) and ``console`` (what is printed).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lengthwise.base.errors import UsageError, message_of
from lengthwise.base.fields import conform
from lengthwise.base.ranges import Count, NotNegative, Positive, Seed, Seeds, Size, Threads, Whole

NUMBERS: dict[str, Any] = {  # options that are numbers
    "backoff": NotNegative,
    "concurrency": Size,
    "count": Size,
    "curve_samples": Size,
    "examples": Whole,
    "jobs": Size,
    "limit": Whole,
    "max_tokens": Count,
    "minutes": Positive,
    "samples": Size,
    "save_every": NotNegative,
    "seconds": Positive,
    "seed": Seed,
    "seeds": Seeds,
    "steps": Count,
    "threads": Threads,
    "timeout": Positive,
    "trials": Count,
    "tries": Count,
}
NAMING = ("lengths", "curve", "grid", "family", "sizes", "tasks", "methods")  # options that name at least one thing


def load(args: argparse.Namespace) -> Callable[[argparse.Namespace], int]:
    """The function that does what was asked for and returns the exit status, with all that it imports. UsageError where
    an option that several verbs share is wrong."""
    _check(args)
    if vars(args)["import"]:
        sys.path.append(os.getcwd())  # a user's own modules stand where they work; last, so that they hide no other
    for name in vars(args)["import"]:
        if args.verb == "check" and is_problem_file(name):
            continue
        _add(name, "check " if args.verb == "check" else "--import ")
    # Imported late: `list` need not wait for matplotlib.
    return importlib.import_module(f"lengthwise.cli.{args.verb}").run


def is_problem_file(name: str) -> bool:
    """Is it a file of problems, or a data set's folder, rather than a module?"""
    path = Path(name)
    return (
        path.suffix.lower() in (".jsonl", ".csv")
        or (path / "dataset_info.json").is_file()
        or (path / "dataset_dict.json").is_file()
    )


def _check(args: argparse.Namespace) -> None:
    for name, kind in NUMBERS.items():
        if getattr(args, name, None) is not None:
            conform(kind, getattr(args, name), f"--{name.replace('_', '-')}")
    for name in NAMING:
        if getattr(args, name, None) == "":
            raise UsageError(f"--{name}: nothing is named; leave it out, or name one at least")
    if getattr(args, "measure", False) and not getattr(args, "dry_run", True):
        raise UsageError("--measure times some steps for --dry-run: add that, or leave --measure out")
    if hasattr(args, "on"):
        from lengthwise.cli.options import local_device

        local_device(args)
    elif getattr(args, "device", None):  # a report names none unless it runs models: it needs no torch
        from lengthwise.run import choose_device

        choose_device(args.device)


def _add(name: str, asked: str) -> None:
    """Import a module of a user's own; ``asked`` is what stood before its name. UsageError where it cannot be, whatever
    the reason."""
    from lengthwise import catalog

    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name) or name.endswith(".py"):
        stem = Path(name.partition(",")[0]).stem
        several = "" if asked == "check " else "; give it once for each of several"
        raise UsageError(f"{asked}{name}: name a module, as {asked}{stem}{several}")

    _check_hidden(name, asked)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output is for results
            catalog.add(importlib.import_module(name))
    except BaseException as error:  # Ctrl-C does not come by here: see `lifeline.leaving`
        frames = traceback.extract_tb(error.__traceback__)
        foreign = [frame for frame in frames if not _is_packaged(frame.filename)]
        if isinstance(error, UsageError) and not foreign:
            raise  # its code is right, and some name in it is not
        last = [*frames, *foreign][-1]
        own = "importlib" not in last.filename
        where = f" in {Path(last.filename).name}, line {last.lineno}" if own else ""
        raise UsageError(f"{asked}{name}: {type(error).__name__}{where}: {message_of(error)}") from None


def _check_hidden(name: str, asked: str) -> None:
    """UsageError where a file of the working folder is not the module that Python finds by this name."""
    top = name.partition(".")[0]
    own = next((path for path in (Path(top, "__init__.py"), Path(f"{top}.py")) if path.is_file()), None)
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # of a module that was made by hand
        return
    if own and spec and (not spec.origin or Path(spec.origin).resolve() != own.resolve()):
        raise UsageError(
            f"{asked}{name}: Python has another module of this name ({spec.origin or top}), which hides your {own}: "
            "rename yours"
        )


def _is_packaged(file: str) -> bool:
    """Is it the package's own file?"""
    return Path(file).is_relative_to(Path(__file__).parents[1])
