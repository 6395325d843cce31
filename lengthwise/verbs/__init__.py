"""The verbs of the command line: a file each, with a function ``run`` from parsed arguments to an exit status.

What several verbs need is in ``options`` (what was typed → objects) and ``console`` (what is printed).
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from lengthwise.base.errors import UsageError


def run(args: argparse.Namespace) -> int:
    """Do what was asked for; the exit status."""
    _check(args)
    if vars(args)["import"]:
        sys.path.append(os.getcwd())  # a user's own modules stand where they work; last, so that they hide no other
    for name in vars(args)["import"]:
        _add(name)
    # Imported late: `list` need not wait for matplotlib.
    return importlib.import_module(f"lengthwise.verbs.{args.verb}").run(args)


def _check(args: argparse.Namespace) -> None:
    """UsageError where an option that several verbs share is wrong."""
    for name in ("samples", "curve_samples"):
        count = getattr(args, name, None)
        if count is not None and count < 1:
            raise UsageError(f"--{name.replace('_', '-')} must be 1 or more, not {count}")
    if hasattr(args, "device"):
        from lengthwise.training.loop import choose_device

        choose_device(args.device)


def _add(name: str) -> None:
    """Import a module of a user's own."""
    from lengthwise import catalog

    try:
        catalog.add(importlib.import_module(name))
    except ImportError as error:
        raise UsageError(f"--import {name}: {error}") from None
