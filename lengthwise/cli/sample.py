"""The command ``sample``: print problems of a task."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal

from lengthwise.api import UsageError, catalog
from lengthwise.base import process
from lengthwise.base.files import format_json
from lengthwise.base.progress import Progress
from lengthwise.base.ranges import Seed, Size
from lengthwise.cli.console import err
from lengthwise.cli.options import choose_kind, parse_task_sizes
from lengthwise.cli.shared import Argument, KindOptions, OutputOptions, Words
from lengthwise.experiment.data import draw_fresh_problems
from lengthwise.experiment.own_code import wrap_user_errors
from lengthwise.experiment.problem_set import draw_problems, format_json_lines, format_problems
from lengthwise.experiment.resources import estimate_problems

PROBLEMS_PER_CHUNK = 1000  # problems written at a time


@dataclass(kw_only=True)
class Options(KindOptions, OutputOptions):
    """Print problems of a task."""

    task: Argument  # TASK: e.g. addition
    size: Argument | None = None  # SIZE: e.g. 5, or 5x3 for a task of two sizes
    changes: Words = ()  # name=value: the task's fields, e.g. base=2
    seed: Seed | None = None  # N: seed of the problems (default: 0)
    family: str | None = None  # NAME: one of the task's families of structured problems, e.g. palindrome
    count: Size | None = None  # N: number of problems (default: 5)
    lengths: str | None = None  # SIZES: several sizes, e.g. 1-20; each problem gets a random one
    split: Literal["train", "validation", "test"] | None = None  # only problems of this part; parts share no prompts
    jsonl: bool = False  # print a line of JSON for each problem, as File(path=…) reads it


def run(args: Options) -> int:
    """Print problems of a task."""
    if args.size and "=" in args.size:  # a change of the task, not a size
        args.size, args.changes = None, [args.size, *args.changes]
    task = catalog.find_task(args.task, args.changes)
    if args.size and args.lengths:
        raise UsageError("give a size, or --lengths, not both")
    count, seed = args.count or 5, args.seed or 0
    sizes = parse_task_sizes(task, args.lengths or args.size or "1")
    if args.lengths:
        estimate_problems(min(count, 65_536), max(sizes, key=sum)).check(f"{count} problems")
        drawn = draw_problems(task, sizes, count, split=args.split, seed=seed, kind=choose_kind(args, task))
    elif args.split or args.size is None or len(sizes) > 1:
        raise UsageError("give a size, e.g. 5, or several with --lengths 1-20; --split needs --lengths")
    else:  # the problems that models are measured on
        estimate_problems(count, sizes[0]).check(f"{count} problems of size {args.size}")
        problems = draw_fresh_problems(task, sizes[0], count, seed=seed, kind=choose_kind(args, task))
        drawn = (problems.take(slice(i, i + PROBLEMS_PER_CHUNK)) for i in range(0, count, PROBLEMS_PER_CHUNK))
    # Write chunks of problems as they are drawn.
    digest, done, out = hashlib.sha256(), 0, process.get_result_stream()
    # On a terminal the problems themselves show the progress.
    with Progress(quiet=out.isatty(), console=err) as progress:
        line = progress.add_line(f"{task.name}: problems", count)
        out.write("[" * (args.json and not args.jsonl))
        for chunk in drawn:
            with wrap_user_errors(task):
                lines = "".join(format_json_lines(task, chunk)) if args.jsonl or args.lengths else ""
                texts = [] if args.jsonl else [*format_problems(task, chunk)]
            digest.update(lines.encode())
            if args.jsonl:
                out.write(lines)
            elif args.json:
                rows = ({"prompt": prompt, "answer": answer} for prompt, answer in texts)
                out.write(", " * (done > 0) + ", ".join(map(format_json, rows)))
            else:
                out.write("".join(f"{prompt} → {answer}\n" for prompt, answer in texts))
            done += len(chunk)
            line.update(done)
        out.write("]\n" * (args.json and not args.jsonl))
    if args.lengths:
        err.print(f"{count:,} problems, digest {digest.hexdigest()[:16]} (SHA-256 of the JSON Lines)", highlight=False)
    return 0
