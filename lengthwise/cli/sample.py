"""Problems of a task."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from lengthwise import catalog
from lengthwise.base import streams
from lengthwise.base.files import json_text
from lengthwise.base.progress import Progress
from lengthwise.base.types import Problems
from lengthwise.cli.console import err
from lengthwise.cli.options import kind_of, parse_size
from lengthwise.experiment.data import fresh_problems
from lengthwise.experiment.resources import of_problems
from lengthwise.tasks import Task

CHUNK = 1000  # problems that are written at a time


def run(args: argparse.Namespace) -> int:
    """Problems of a task."""
    task = catalog.task(args.task, args.changes)
    size = parse_size(args.size, len(task.axes))
    of_problems(args.count, size).check(f"{args.count} problems of size {args.size}")
    out = streams.results()
    # On a terminal the problems themselves show how far it is.
    with Progress(quiet=out.isatty(), console=err) as progress:
        line = progress.line(f"{task.name}: problems", args.count)
        problems = fresh_problems(task, size, args.count, seed=args.seed or 0, kind=kind_of(args))
        if args.json:
            out.write("[")
        for start in range(0, args.count, CHUNK):
            rows = list(_rows(task, problems.take(slice(start, start + CHUNK))))
            if args.json:
                out.write(", " * (start > 0) + ", ".join(map(json_text, rows)))
            else:
                out.write("".join(f"{row['prompt']} → {row['answer']}\n" for row in rows))
            line.show(start + len(rows))
        if args.json:
            out.write("]\n")
    return 0


def _rows(task: Task, problems: Problems) -> Iterator[dict[str, str]]:
    prompts, answers = problems.prompt.tolist(), problems.answer.tolist()
    lengths = zip(problems.prompt_length.tolist(), problems.answer_length.tolist(), strict=True)
    for prompt, answer, (prompt_length, answer_length) in zip(prompts, answers, lengths, strict=True):
        yield {"prompt": _text(task, prompt[:prompt_length]), "answer": _text(task, answer[:answer_length])}


def _text(task: Task, symbols: list[int]) -> str:
    return "".join([task.vocab.symbols[symbol] for symbol in symbols])
