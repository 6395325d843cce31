"""The command line, from arguments to an exit status. A command is a module with ``Options`` and ``run``; it is
imported late, so that ``--help`` need not wait for torch."""

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
from typing import NoReturn

import lengthwise
from lengthwise.base import errors, process
from lengthwise.cli.parser import add_completers, build_parser, format_flag, get_value_type, list_parsers, read_options

MODULE_NAME_PATTERN = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse arguments. Options may stand anywhere, and a prompt may start with a minus sign; argparse alone would
    reject ``solve WEIGHTS --json PROMPT`` and ``solve WEIGHTS -3+12``."""
    top = build_parser()
    if arguments and any("\0" in word for word in arguments):
        top.error("an argument contains a null character")
    args, unparsed = top.parse_known_args(arguments)
    if unparsed and not any(re.match("--|-[a-zA-Z]", word) for word in unparsed):
        # Words after an option belong to the last positional argument that takes them.
        if getattr(args, "prompt", "") is None:  # the verb `rasp`
            args.prompt, *unparsed = unparsed
        for name in ("prompts", "changes", "words", "runs", *["import_"] * (args.verb == "check")):
            if isinstance(getattr(args, name, None), list):
                setattr(args, name, getattr(args, name) + unparsed)
                unparsed = []
    if unparsed:
        verb = list_parsers(top).get(args.verb, top)
        verb.error(_describe_unknown_arguments(unparsed, verb, getattr(args, "recipe", None)))
    return args


def _describe_unknown_arguments(words: list[str], parser: argparse.ArgumentParser, recipe: str | None) -> str:
    """Return the error message for unrecognized arguments, with the option or recipe field that was probably meant."""
    from lengthwise.base.fields import suggest
    from lengthwise.registry import sources

    # If an option is unknown, the words after it are not the problem.
    unknown = [word for word in words if word.startswith("-")] or words
    message = f"unrecognized arguments: {' '.join(unknown)}"
    if all(word.isdigit() for word in unknown):
        return f"{message}; numbers of a list are separated by commas, as in --lengths 20,40"
    if not unknown[0].startswith("--"):
        return message
    name, _, value = unknown[0].lstrip("-").partition("=")
    if recipe and (path := _find_field_path(recipe, name)):
        return f"{message}; {name} is a field of the recipe: write {path}={value or '…'}, without dashes"
    meanings = {path: f"{path}=…" for path in sources.list_field_paths() if recipe and "." not in path}
    meanings |= {flag[2:]: flag for action in parser._actions for flag in action.option_strings if flag[:2] == "--"}
    return message + suggest(name, meanings, meanings)


def _find_field_path(recipe: str, name: str) -> str | None:
    """Return the path of the field that ``name`` means: a field of this recipe if it is shipped, else of any recipe."""
    from lengthwise.registry import sources

    path = sources.find_field_path(name)
    if path is None or "." not in path or recipe not in sources.list_recipe_names():
        return path
    from lengthwise.api import catalog  # late, as it imports torch
    from lengthwise.experiment.recipe import find_field_path

    return find_field_path(catalog.find_recipe(recipe), name)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command and exit with status 0 for success; 1 if some prompts are invalid or have no reply, or if a check
    failed; 2 for a usage error; 130 if interrupted; 141 if the output's pipe is closed."""
    process.replace_unencodable_characters()
    if "_ARGCOMPLETE" in os.environ:
        import argcomplete  # the extra "complete"

        argcomplete.autocomplete(add_completers(build_parser()))
    with process.exit_on_stop_signals():
        args = parse(arguments)
    sys.exit(_run(args))


def _run(args: argparse.Namespace) -> int:
    try:
        if sys.stdout is None:  # e.g. after `>&-`: the output would be lost
            raise errors.UsageError("standard output is closed: the result cannot be printed")
        with process.exit_on_stop_signals():
            work = load_verb(args)
        process.install_handlers()
        with process.reserve_output() if getattr(args, "json", False) else contextlib.nullcontext():
            status = work()
        sys.stdout.flush()  # flushed here, where an error can still be reported
        return status
    except errors.Interrupted as interruption:
        return _print_error(interruption, 130)
    except errors.UsageError as error:
        return _print_error(f"{error}{': --import MODULE' * str(error).endswith('import its module first')}", 2)
    except KeyboardInterrupt:
        return _print_error(f"interrupted{_format_resume_hint(args)}", 130)
    except BrokenPipeError:
        process.discard_output()
        return 141
    except OSError as error:
        if error.filename is None:
            process.discard_output()
        return _print_error(f"{error.filename or 'the output cannot be written'}: {error.strerror or error}", 2)
    except Exception as error:
        if errors.is_out_of_memory(error):
            options = [f"--{name}" for name in ("lengths", "samples", "count", "more", "jobs") if hasattr(args, name)]
            settings = ["batch, lengths.top"] * hasattr(args, "recipe") + options or ["the problem's size"]
            return _print_error(f"out of memory: reduce {', '.join(settings)}{_format_resume_hint(args)}", 2)
        from lengthwise.experiment.own_code import describe_user_error, find_user_frames

        if not find_user_frames(error):
            raise
        return _print_error(describe_user_error(error), 2)


def _format_resume_hint(args: argparse.Namespace) -> str:
    return "; the same command continues from here" * (args.verb in ("ask", "reproduce", "sweep", "train"))


def _print_error(message: object, status: int) -> int:
    with contextlib.suppress(OSError):
        print(f"lengthwise: {errors.remove_controls(str(message))}", file=sys.stderr)
    return status


# Verbs


def load_verb(args: argparse.Namespace) -> Callable[[], int]:
    """Import a command and the user's modules, validate the options, and return a function that runs the command."""
    if args.version or args.verb is None:

        def print_text() -> int:
            print(lengthwise.__version__ if args.version else build_parser().format_help().rstrip("\n"))
            return 0

        return print_text
    from lengthwise.base.fields import validate  # late, so that `--help` need not wait for it
    from lengthwise.cli.shared import TrainingOptions

    _, declared = read_options(args.verb)
    for name, field in declared.items():
        value, flag = getattr(args, name), format_flag(name)
        if value == "" and field.type == "str | None":
            raise errors.UsageError(f"{flag}: empty; omit it, or give at least one value")
        if isinstance(value, (int, float)) and field.type != "bool":
            validate(get_value_type(field), value, flag)
    if args.import_:
        sys.path.append(os.getcwd())  # finds the user's modules; last, so that they shadow no other module
    for name in args.import_:
        if args.verb != "check" or not is_problem_file(name):
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
    path, data_set_files = Path(name), ("dataset_info.json", "dataset_dict.json")
    return path.suffix.lower() in (".jsonl", ".csv") or any((path / file).is_file() for file in data_set_files)


def _import_module(name: str, prefix: str) -> None:
    """Import a user's module; error messages put ``prefix`` before its name."""
    from lengthwise.api import catalog

    if not MODULE_NAME_PATTERN.fullmatch(name) or Path(name).is_file() or name.endswith(".py"):
        problems = ", or a file of problems (.jsonl or .csv)" * (prefix == "check ")
        raise errors.UsageError(f"{prefix}{name}: name a module of your own, e.g. own_task for own_task.py{problems}")

    # Python may find another module of this name than the file in the working folder.
    top, spec = name.partition(".")[0], None
    own_file = next((path for path in (Path(top, "__init__.py"), Path(f"{top}.py")) if path.is_file()), None)
    with contextlib.suppress(ValueError):  # raised for a module without __spec__
        spec = importlib.util.find_spec(top)
    if own_file and spec and (not spec.origin or Path(spec.origin).resolve() != own_file.resolve()):
        reason = f"Python has another module of this name ({spec.origin or top})"
        raise errors.UsageError(f"{prefix}{name}: {reason}, which hides your {own_file}: rename yours")
    try:
        with contextlib.redirect_stdout(sys.stderr):  # standard output is for results
            catalog.add_module(importlib.import_module(name))
    except BaseException as error:  # but not Ctrl-C, which ends the process at once: `process.exit_on_stop_signals`
        from lengthwise.experiment.own_code import find_user_frames

        frames, own_frames = traceback.extract_tb(error.__traceback__), find_user_frames(error)
        if isinstance(error, errors.UsageError) and not own_frames:
            raise  # the module names something that does not exist; the message suffices
        if isinstance(error, ModuleNotFoundError) and not own_frames:
            location = f"neither in {Path.cwd()} nor among the installed packages"
            raise errors.UsageError(f"{prefix}{name}: there is no module {error.name}, {location}") from None
        last = [*frames, *own_frames][-1]
        location = f" in {Path(last.filename).name}, line {last.lineno}" * ("importlib" not in last.filename)
        message = f"{prefix}{name}: {type(error).__name__}{location}: {error}"
        raise errors.UsageError(message) from None
