"""The verbs of the command line: a file each, with its ``Options`` and a function ``run`` from them to an exit status.

Shared helpers are in ``options`` (text of options → objects) and ``console`` (output).
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
from functools import partial
from pathlib import Path

from lengthwise.base.errors import UsageError, error_text
from lengthwise.base.fields import validate
from lengthwise.cli.parser import option_flag, read_options, value_type
from lengthwise.cli.shared import TrainingOptions


def load_verb(args: argparse.Namespace) -> Callable[[], int]:
    """Import a verb and the user's modules; return the verb as a function without arguments that returns the exit
    status. Raises UsageError if an option is invalid."""
    _, declared = read_options(args.verb)
    for name, field in declared.items():
        value, flag = getattr(args, name), option_flag(name)
        if value == "" and field.type == "str | None":
            raise UsageError(f"{flag}: empty; omit it, or give at least one value")
        if isinstance(value, (int, float)) and field.type != "bool":
            validate(value_type(field), value, flag)
    if args.import_:
        sys.path.append(os.getcwd())  # finds the user's modules; last, so that they shadow no other module
    for name in args.import_:
        if args.verb == "check" and is_problem_file(name):
            continue
        _import_module(name, "check " if args.verb == "check" else "--import ")
    # Imported late: `list` need not wait for matplotlib.
    verb = importlib.import_module(f"lengthwise.cli.{args.verb}")
    options = verb.Options(**{name: getattr(args, name) for name in declared})
    if isinstance(options, TrainingOptions):
        from lengthwise.cli.options import local_device

        local_device(options)
    elif getattr(options, "device", None):  # a report without a device needs no torch
        from lengthwise.runs.run import choose_device

        choose_device(options.device)
    return partial(verb.run, options)


def is_problem_file(name: str) -> bool:
    """Return True for a file of problems or a data set's folder, False for a module."""
    path = Path(name)
    return (
        path.suffix.lower() in (".jsonl", ".csv")
        or (path / "dataset_info.json").is_file()
        or (path / "dataset_dict.json").is_file()
    )


def _import_module(name: str, prefix: str) -> None:
    """Import a user's module; error messages put ``prefix`` before its name. Raises UsageError if the import fails for
    any reason."""
    from lengthwise.api import catalog

    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name) or name.endswith(".py"):
        stem = Path(name.partition(",")[0]).stem
        several = "" if prefix == "check " else "; give it once for each of several"
        raise UsageError(f"{prefix}{name}: name a module, as {prefix}{stem}{several}")

    _check_module_not_hidden(name, prefix)
    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output is for results
            catalog.add_module(importlib.import_module(name))
    except BaseException as error:  # Ctrl-C does not get here: see `process.exit_on_stop_signals`
        from lengthwise.experiment.own_code import is_library_file

        frames = traceback.extract_tb(error.__traceback__)
        foreign = [frame for frame in frames if not is_library_file(Path(frame.filename))]
        if isinstance(error, UsageError) and not foreign:
            raise  # the module names something that does not exist; the message suffices
        if isinstance(error, ModuleNotFoundError) and not foreign:
            where = f"neither in {Path.cwd()} nor among the installed packages"
            raise UsageError(f"{prefix}{name}: there is no module {error.name}, {where}") from None
        last = [*frames, *foreign][-1]
        own = "importlib" not in last.filename
        where = f" in {Path(last.filename).name}, line {last.lineno}" if own else ""
        raise UsageError(f"{prefix}{name}: {type(error).__name__}{where}: {error_text(error)}") from None


def _check_module_not_hidden(name: str, prefix: str) -> None:
    """Raise UsageError if Python finds another module of this name than the file in the working folder."""
    top = name.partition(".")[0]
    own = next((path for path in (Path(top, "__init__.py"), Path(f"{top}.py")) if path.is_file()), None)
    try:
        spec = importlib.util.find_spec(top)
    except ValueError:  # raised for a module without __spec__
        return
    if own and spec and (not spec.origin or Path(spec.origin).resolve() != own.resolve()):
        raise UsageError(
            f"{prefix}{name}: Python has another module of this name ({spec.origin or top}), which hides your {own}: "
            "rename yours"
        )
