"""Looking around: what there is, what it costs, problems, and programs at work."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.markup import escape
from rich.table import Table
from rich.text import Text

from lengthwise import catalog
from lengthwise.ask import Asked
from lengthwise.base import fields
from lengthwise.base.types import UsageError
from lengthwise.rasp.program import answer, execute, rounds_shown, shown
from lengthwise.rasp.programs import PUBLISHED, program
from lengthwise.recipe.data import fresh_problems
from lengthwise.run import Run, load, runs_folder, shipped
from lengthwise.training.cost import cost
from lengthwise.verbs.console import out, say, summary_of
from lengthwise.verbs.train import kind_of, recipe_of


def list_(args: argparse.Namespace) -> int:
    """Recipes, studies, weights, runs and parts."""
    recipes, studies = catalog.recipes(), catalog.studies()
    runs = {path.parent.name: _standing(path.parent) for path in sorted(runs_folder().glob("*/config.json"))}
    result = {
        "recipes": {name: summary_of(function) for name, function in recipes.items()},
        "studies": {name: summary_of(function) for name, function in studies.items()},
        "weights": {name: _summary_of_weights(name) for name in shipped()},
        "runs": runs,
        "asked": {path.parent.name: _replies(path.parent) for path in sorted(runs_folder().glob("*/asked.json"))},
        "parts": {name: list(kinds) for name, kinds in catalog.parts().items()},
    }
    tables = []
    for title in ("recipes", "studies", "weights", "runs", "asked"):
        if result[title]:
            table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
            for name, text in _grouped(result[title]).items():
                table.add_row(f"[bold]{escape(name)}[/]", escape(text))
            tables += [table, ""]
    table = Table(title="parts of a recipe", title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, kinds in result["parts"].items():
        table.add_row(f"[bold]{name}[/]", ", ".join(kinds))
    return say(args, result, *tables, table)


def _standing(folder: Path) -> str:
    try:
        return "done" if Run.open(folder).done else "begun"
    except UsageError as error:  # of another version, or with parts that --import would make known
        return str(error).removeprefix(f"{folder / 'config.json'}: ")


def _replies(folder: Path) -> str:
    try:
        asked = Asked.open(folder)
        return f"{asked.inquiry.model} on {asked.inquiry.task.name}, {len(asked.replies())} replies"
    except UsageError as error:
        return str(error).removeprefix(f"{folder / 'asked.json'}: ")


def _grouped(summaries: dict[str, str]) -> dict[str, str]:
    """Names that share a summary, as a family's members do, on one line."""
    groups: dict[str, list[str]] = {}
    for name, text in summaries.items():
        groups.setdefault(text, []).append(name)
    shown = {}
    for text, names in groups.items():
        few = len(names) < 6 or text in ("done", "begun")
        shown |= dict.fromkeys(names, text) if few else {f"{names[0]} … {names[-1]}": f"{len(names)} recipes. {text}"}
    return shown


def _summary_of_weights(name: str) -> str:
    recipe = load(name).recipe
    return f"{recipe.task.name}, trained up to {recipe.lengths.top}"


def show(args: argparse.Namespace) -> int:
    """A recipe, and what it costs."""
    recipe = recipe_of(args.recipe, args.changes)
    price = cost(recipe)
    result = {
        "recipe": fields.encode(recipe),
        "id": recipe.id,
        "parameters": price.parameters,
        "operations_per_step": price.operations,
        "seconds_per_step": price.seconds,
        "minutes": price.minutes,
    }
    table = Table(title=f"{recipe.name}  {recipe.id}", title_justify="left", show_header=False, box=None)
    for name in fields.encode(recipe):
        if name not in ("kind", "name"):
            table.add_row(f"[bold]{name}[/]", fields.text(getattr(recipe, name)))
    table.add_section()
    table.add_row("[bold]parameters[/]", f"{price.parameters:,}")
    table.add_row("[bold]operations[/]", f"{price.operations / 1e9:.2f} GFLOP per step, forward and backward")
    table.add_row(
        "[bold]time[/]", f"about {price.minutes:.1f} min of processor time on one thread, measured here just now"
    )
    return say(args, result, table)


def sample(args: argparse.Namespace) -> int:
    """Problems of a task."""
    task = catalog.task(args.task, args.changes)
    (size,) = _one_size(args.size, len(task.axes))
    if args.count < 1:
        raise UsageError(f"--count must be 1 or more, not {args.count}")
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


def _one_size(text: str, axes: int) -> list[tuple[int, ...]]:
    try:
        size = tuple(int(part) for part in text.split("x"))
    except ValueError:
        raise UsageError(f"{text!r} is no size: write 5, or 5x3 for a task of two sizes") from None
    return [size * axes if len(size) == 1 else size]


def rasp(args: argparse.Namespace) -> int:
    """A program's state after each round; without a task, the programs there are."""
    tasks = {task.name: task for task in PUBLISHED}
    if args.task is None:
        known = {name: summary_of(type(program(task))) for name, task in tasks.items()}
        table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
        for name, text in known.items():
            table.add_row(f"[bold]{name}[/]", text)
        return say(args, known, table)
    if args.prompt is None:
        raise UsageError(f"rasp: give the program of {args.task} a prompt, for example: rasp parity 10110")
    task = fields.override(tasks.get(args.task) or catalog.task(args.task), args.changes)
    run = execute(program(task), task.parse(args.prompt))
    row, rounds, said = shown(run.row), rounds_shown(run), answer(run, task)
    result = {"prompt": args.prompt, "row": row, "rounds": rounds, "answer": said}
    return say(args, result, _beside(row, rounds), f"answer {said}")


def _beside(row: str, rounds: Sequence[dict[str, str]]) -> Text:
    """A column per part of the state, a line per round; one below the other where they are too wide for that."""
    width = max(len(row), *map(len, rounds[0])) + 2
    groups = [list(rounds[0])] if 6 + width * len(rounds[0]) <= out.width else [[name] for name in rounds[0]]
    lines = []
    for names in groups:
        lines += ["round " + "".join(name.ljust(width) for name in names)]
        lines += ["      " + "".join(row.ljust(width) for _ in names)]
        lines += [f"{i:>5} " + "".join(state[name].ljust(width) for name in names) for i, state in enumerate(rounds)]
    return Text("\n".join(line.rstrip() for line in lines), no_wrap=True, overflow="ignore")
