"""The command ``sample``: print problems of a task."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, Literal

from lengthwise.api import Task, catalog
from lengthwise.base import streams
from lengthwise.base.errors import UsageError
from lengthwise.base.files import json_text
from lengthwise.base.progress import Progress
from lengthwise.base.ranges import Seed, Size
from lengthwise.base.types import Problems
from lengthwise.cli.console import err
from lengthwise.cli.options import kind_of, parse_size, task_sizes
from lengthwise.cli.shared import Argument, KindOptions, OutputOptions, Words
from lengthwise.experiment.data import fresh_problems
from lengthwise.experiment.problem_set import draw_problems, json_lines, problem_texts
from lengthwise.experiment.resources import estimate_problems

CHUNK = 1000  # problems written at a time


@dataclass(kw_only=True)
class Options(KindOptions, OutputOptions):
    """Problems of a task."""

    task: Argument  # TASK: e.g. addition
    size: Argument | None = None  # SIZE: e.g. 5, or 5x3 for a task of two sizes
    changes: Words = ()  # name=value: the task's fields, e.g. base=2
    seed: Seed | None = None  # N: seed of the problems (default: 0)
    family: str | None = None  # NAME: one of the task's families of structured problems, e.g. palindrome
    count: Size | None = None  # N: how many (default: 5)
    lengths: str | None = None  # SIZES: several sizes, each problem of a uniform one: 1-20
    split: Literal["train", "validation", "test"] | None = None  # of one part of all prompts, which share none
    jsonl: bool = False  # a line of JSON per problem, as File(path=…) reads it


def run(args: Options) -> int:
    """Print problems of a task."""
    if args.size and "=" in args.size:  # a field of the task
        args.size, args.changes = None, [args.size, *args.changes]
    task = catalog.task(args.task, args.changes)
    if args.size and args.lengths:
        raise UsageError("give a size, or --lengths, not both")
    if not args.lengths:
        return _print_one_size(args, task)
    return _print_many_sizes(args, task, task_sizes(task, args.lengths))


def _print_many_sizes(args: Options, task: Task, sizes: list[tuple[int, ...]]) -> int:
    """Write problems of several sizes as they are drawn; print their digest to standard error."""
    count, digest, done, out = args.count or 5, hashlib.sha256(), 0, streams.results()
    estimate_problems(min(count, 65_536), max(sizes, key=sum)).check(f"{count} problems")
    with Progress(quiet=out.isatty(), console=err) as progress:
        line = progress.line(f"{task.name}: problems", count)
        for problems in draw_problems(task, sizes, count, split=args.split, seed=args.seed or 0):
            text = "".join(json_lines(task, problems))
            digest.update(text.encode())
            done += len(problems)
            if args.jsonl:
                out.write(text)
            else:
                out.write("".join(f"{prompt} → {answer}\n" for prompt, answer in problem_texts(task, problems)))
            line.show(done)
    err.print(f"{done:,} problems, digest {digest.hexdigest()[:16]} (SHA-256 of the JSON Lines)", highlight=False)
    return 0


def _print_one_size(args: Options, task: Task) -> int:
    """Write problems of one size, the ones that models are measured on."""
    if args.split or args.size is None:
        raise UsageError("give a size, e.g. 5, or several with --lengths 1-20; --split needs --lengths")
    size, count = parse_size(args.size, len(task.axes)), args.count or 5
    estimate_problems(count, size).check(f"{count} problems of size {args.size}")
    problems = fresh_problems(task, size, count, seed=args.seed or 0, kind=kind_of(args))
    out = streams.results()
    # On a terminal the problems themselves show the progress.
    with Progress(quiet=out.isatty(), console=err) as progress:
        line = progress.line(f"{task.name}: problems", count)
        out.write("[" * args.json)
        for start in range(0, count, CHUNK):
            out.write(_format_problems(args, task, problems.take(slice(start, start + CHUNK)), first=start == 0))
            line.show(min(count, start + CHUNK))
        out.write("]\n" * args.json)
    return 0


def _format_problems(args: Options, task: Task, problems: Problems, *, first: bool) -> str:
    if args.jsonl:
        return "".join(json_lines(task, problems))
    pairs: Any = problem_texts(task, problems)
    if not args.json:
        return "".join(f"{prompt} → {answer}\n" for prompt, answer in pairs)
    rows = [json_text({"prompt": prompt, "answer": answer}) for prompt, answer in pairs]
    return ", " * (not first) + ", ".join(rows)
