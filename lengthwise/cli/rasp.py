"""The command ``rasp``: run n-RASP-L programs and show their states."""

from __future__ import annotations

from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

from lengthwise.api import Task, UsageError, catalog
from lengthwise.base import fields
from lengthwise.base.errors import remove_controls
from lengthwise.base.progress import Progress
from lengthwise.cli.console import err, out, print_result
from lengthwise.cli.shared import Argument, OutputOptions, Words
from lengthwise.rasp.program import execute, format_answer, format_rounds, format_row
from lengthwise.rasp.programs import PUBLISHED_TASKS, find_program


@dataclass(kw_only=True)
class Options(OutputOptions):
    """Run an n-RASP-L program, a RASP-L program repeated T(n) times: show the state after each round, which a looped
    model has to learn."""

    task: Argument | None = None  # TASK: e.g. parity (default: list all programs)
    prompt: Argument | None = None  # PROMPT: e.g. 10110
    changes: Words = ()  # name=value: the task's fields, e.g. order=least


def run(args: Options) -> int:
    """Print a program's state after each round; without a task, list the programs."""
    tasks: dict[str, Task] = {task.name: task for task in PUBLISHED_TASKS}
    if args.task is None:
        descriptions = {name: catalog.read_summary(type(find_program(task))) for name, task in tasks.items()}
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for name, text in descriptions.items():
            table.add_row(Text(name, "bold"), text)
        return print_result(args, descriptions, table)
    if args.prompt is None:
        raise UsageError(f"rasp: give the program of {args.task} a prompt, for example: rasp parity 10110")
    task = fields.override(tasks.get(args.task) or catalog.find_task(args.task), args.changes)
    with Progress(console=err) as progress:
        line = progress.add_line(f"{task.name}: rounds")

        def show_round(round_number: int, round_count: int) -> None:
            line.total = round_count
            line.update(round_number)

        execution = execute(find_program(task), task.parse(args.prompt), show_round)
        row, rounds, answer_text = format_row(execution.row), format_rounds(execution), format_answer(execution, task)
    result = {"prompt": args.prompt, "row": row, "rounds": rounds, "answer": answer_text}
    if args.json:
        return print_result(args, result)
    # A column per part of the state and a line per round; parts are stacked if the terminal is too narrow.
    width, lines = max(len(row), *map(len, rounds[0])) + 2, []
    groups = [list(rounds[0])] if 6 + width * len(rounds[0]) <= out.width else [[name] for name in rounds[0]]
    for names in groups:
        lines += ["round " + "".join(name.ljust(width) for name in names)]
        lines += ["      " + "".join(row.ljust(width) for _ in names)]
        lines += [f"{i:>5} " + "".join(state[name].ljust(width) for name in names) for i, state in enumerate(rounds)]
    # Printed without rich, which takes a minute for the states of thousands of symbols.
    for text in map(str.rstrip, [*lines, f"answer {answer_text}"]):
        print(text if text.isprintable() else remove_controls(text))
    return 0
