"""Problems of a task."""

from __future__ import annotations

import argparse

from lengthwise import catalog
from lengthwise.recipe.data import fresh_problems
from lengthwise.recipe.demand import of_problems
from lengthwise.verbs.console import say
from lengthwise.verbs.options import kind_of, parse_size


def run(args: argparse.Namespace) -> int:
    """Problems of a task."""
    task = catalog.task(args.task, args.changes)
    size = parse_size(args.size, len(task.axes))
    of_problems(args.count, size).check(f"{args.count} problems of size {args.size}")
    problems = fresh_problems(task, size, args.count, seed=args.seed or 0, kind=kind_of(args))
    rows = [
        {
            "prompt": task.vocab.decode(problems.prompt[i, : int(problems.prompt_length[i])]),
            "answer": task.vocab.decode(problems.answer[i, : int(problems.answer_length[i])]),
        }
        for i in range(len(problems))
    ]
    if not args.json:
        print("\n".join(f"{row['prompt']} → {row['answer']}" for row in rows))
    return say(args, rows)
