"""The command line: from arguments to an exit status. Each verb is a module in this package, imported late so that
``--help`` need not wait for torch."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
from collections.abc import Callable
from functools import partial
from typing import NoReturn

import lengthwise
from lengthwise.base import process
from lengthwise.base.errors import Interrupted, NotImported, UnknownPart, UsageError, is_out_of_memory, remove_controls
from lengthwise.cli.parser import build_parser, verb_parsers

FOREIGN_OPTIONS = {  # options of other programs: the equivalent here
    "config": "a recipe is named without an option: a name, a run's folder, or a JSON file such as its config.json",
    "format": "figures are PNG and SVG; for PDF, in Python: lw.Run.open(FOLDER).plot().savefig('figure.pdf')",
}
RESUMABLE = ("ask", "reproduce", "sweep", "train")  # verbs that save their progress and can be resumed


def parse(arguments: list[str] | None) -> argparse.Namespace:
    """Parse arguments. Options may stand anywhere, and a prompt may start with a minus sign; argparse alone would
    reject ``solve WEIGHTS --json PROMPT`` and ``solve WEIGHTS -3+12``."""
    top = build_parser()
    if arguments and any("\0" in word for word in arguments):
        top.error("an argument contains a null character")
    args, rest = top.parse_known_args(arguments)
    if not any(re.match("--|-[a-zA-Z]", word) for word in rest):
        rest = _assign_words(args, rest)
    if rest:
        top.error(_describe_unknown(rest, verb_parsers(top).get(args.verb, top), hasattr(args, "recipe")))
    return args


def _assign_words(args: argparse.Namespace, words: list[str]) -> list[str]:
    """Assign words after an option to the positional argument they belong to; return the words left over."""
    if words and getattr(args, "prompt", "") is None:  # the verb `rasp`
        args.prompt, *words = words
    modules = ("import_",) if args.verb == "check" else ()
    for name in ("prompts", "changes", "words", "runs", *modules):
        if isinstance(getattr(args, name, None), list):
            setattr(args, name, getattr(args, name) + words)
            return []
    return words


def _describe_unknown(words: list[str], parser: argparse.ArgumentParser, has_recipe: bool) -> str:
    """Return the error message for unrecognized arguments: with the option or recipe field that was probably meant."""
    from lengthwise.base.fields import suggest
    from lengthwise.registry import sources

    # If an option is unknown, the words after it are not the problem.
    wrong = [word for word in words if word.startswith("-")] or words
    words = words[words.index(wrong[0]) :]
    message = f"unrecognized arguments: {' '.join(wrong)}"
    name, equals, value = words[0].lstrip("-").partition("=")
    if all(word.isdigit() for word in words):
        return f"{message}; numbers of a list are separated by commas, as in --lengths 20,40"
    if not words[0].startswith("--"):
        return message
    if name in FOREIGN_OPTIONS:
        return f"{message}; {FOREIGN_OPTIONS[name]}"
    if has_recipe and (path := sources.field_path(name)):
        value = value if equals else words[1] if len(words) > 1 else "…"
        return f"{message}; {name} is a field of the recipe: write {path}={value}, without dashes"
    options = [option for action in parser._actions for option in action.option_strings if option.startswith("--")]
    return message + suggest(f"--{name}", options)


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a verb and exit: 0 success, 1 some prompts were bad or have no reply, 2 usage error, 130 interrupted, 141 the
    reader of the output has gone."""
    process.replace_unencodable()
    if "_ARGCOMPLETE" in os.environ:
        from lengthwise.cli.completion import complete

        complete(build_parser())
    with process.exit_on_stop_signals():
        args = parse(arguments)
    sys.exit(_run(args))


def _run(args: argparse.Namespace) -> int:
    try:
        if sys.stdout is None:  # e.g. after `>&-`: the output would be lost
            raise UsageError("standard output is closed: the result cannot be printed")
        with process.exit_on_stop_signals():
            work = _load_verb(args)
        process.install_handlers()
        with process.reserve_output() if getattr(args, "json", False) else contextlib.nullcontext():
            status = work()
        sys.stdout.flush()  # flushed here, where an error can still be reported
        return status
    except Interrupted as stopped:
        return _print_error(stopped, 130)
    except UsageError as error:
        own = isinstance(error, UnknownPart) and "did you mean" not in str(error)
        hint = "; if it is your own, import its module first" * own
        return _print_error(f"{error}{hint}{': --import MODULE' * (own or isinstance(error, NotImported))}", 2)
    except KeyboardInterrupt:
        return _print_error(f"interrupted{_resume_hint(args)}", 130)
    except BrokenPipeError:
        process.discard_output()
        return 141
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        options = [f"--{name}" for name in ("lengths", "samples", "count", "jobs") if hasattr(args, name)]
        settings = ["batch, lengths.top"] * hasattr(args, "recipe") + options or ["the problem's size"]
        return _print_error(f"out of memory: reduce {', '.join(settings)}{_resume_hint(args)}", 2)
    except OSError as error:
        if error.filename is None:
            process.discard_output()
        return _print_error(f"{error.filename or 'the output cannot be written'}: {error.strerror or error}", 2)


def _resume_hint(args: argparse.Namespace) -> str:
    return "; the same command continues from here" if args.verb in RESUMABLE else ""


def _load_verb(args: argparse.Namespace) -> Callable[[], int]:
    """Import the verb and return it as a function without arguments."""
    if args.version:
        return partial(_print_text, lengthwise.__version__)
    if args.verb is None:
        return partial(_print_text, build_parser().format_help().rstrip("\n"))
    from lengthwise.cli import verbs

    return verbs.load_verb(args)


def _print_text(text: str) -> int:
    print(text)
    return 0


def _print_error(message: object, status: int) -> int:
    with contextlib.suppress(OSError):
        print(f"lengthwise: {remove_controls(str(message))}", file=sys.stderr)
    return status
