"""What the verbs of the command line do: each takes the parsed arguments and returns an exit status."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from lengthwise import catalog, fields
from lengthwise.cost import cost
from lengthwise.data import fresh_problems
from lengthwise.evaluation import default_sizes, evaluate, parse_sizes
from lengthwise.fleet import Fleet
from lengthwise.live import follow
from lengthwise.recipe import Recipe
from lengthwise.report import curves
from lengthwise.report.tables import detail_table, score_table
from lengthwise.run import Run, load, runs_folder, shipped
from lengthwise.solver import Solver
from lengthwise.stopping import Stopping
from lengthwise.studies import Study
from lengthwise.training import choose_device, computing, train
from lengthwise.types import Score, UsageError

out = Console()
progress = Console(stderr=True)


def run(args: argparse.Namespace) -> int:
    """Do what was asked for; the exit status."""
    if getattr(args, "samples", 1) < 1:
        raise UsageError(f"--samples must be 1 or more, not {args.samples}")
    if hasattr(args, "device"):
        choose_device(args.device)
    sys.path.insert(0, os.getcwd())  # a user's own modules stand where they work
    for name in vars(args)["import"]:
        try:
            catalog.add(importlib.import_module(name))
        except ImportError as error:
            raise UsageError(f"--import {name}: {error}") from None
    verb: Callable[[argparse.Namespace], int] = globals()[f"_{args.verb}"]
    return verb(args)


def _say(args: argparse.Namespace, result: Any, *renderables: Any) -> int:
    """The result, as JSON or for people."""
    if args.json:
        print(json.dumps(result))
    else:
        for renderable in renderables:
            out.print(renderable)
    return 0


# Looking around


def _list(args: argparse.Namespace) -> int:
    recipes, studies = catalog.recipes(), catalog.studies()
    runs = {path.parent.name: Run.open(path.parent) for path in sorted(runs_folder().glob("*/config.json"))}
    result = {
        "recipes": {name: _summary(function) for name, function in recipes.items()},
        "studies": {name: _summary(function) for name, function in studies.items()},
        "weights": {name: _summary_of_weights(name) for name in shipped()},
        "runs": {name: "done" if run.done else "begun" for name, run in runs.items()},
        "parts": {name: list(kinds) for name, kinds in catalog.parts().items()},
    }
    tables = []
    for title in ("recipes", "studies", "weights", "runs"):
        if result[title]:
            table = Table(title=title, title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
            for name, text in result[title].items():
                table.add_row(f"[bold]{name}[/]", text)
            tables += [table, ""]
    table = Table(title="parts of a recipe", title_justify="left", show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, kinds in result["parts"].items():
        table.add_row(f"[bold]{name}[/]", ", ".join(kinds))
    return _say(args, result, *tables, table)


def _summary(function: Callable[..., Any]) -> str:
    return (function.__doc__ or "").strip().split("\n\n")[0].replace("\n    ", " ")


def _summary_of_weights(name: str) -> str:
    recipe = load(name).recipe
    return f"{recipe.task.name}, trained up to {recipe.lengths.top}"


def _show(args: argparse.Namespace) -> int:
    recipe = _recipe(args.recipe, args.changes)
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
    return _say(args, result, table)


def _sample(args: argparse.Namespace) -> int:
    task = catalog.task(args.task, args.changes)
    (size,) = _one_size(args.size, len(task.axes))
    if args.count < 1:
        raise UsageError(f"--count must be 1 or more, not {args.count}")
    problems = fresh_problems(task, size, args.count, seed=args.seed or 0, hard=args.hard)
    rows = [
        {
            "prompt": task.vocab.decode(problems.prompt[i, : int(problems.prompt_length[i])]),
            "answer": task.vocab.decode(problems.answer[i, : int(problems.answer_length[i])]),
        }
        for i in range(len(problems))
    ]
    if not args.json:
        print("\n".join(f"{row['prompt']} → {row['answer']}" for row in rows))
    return _say(args, rows)


def _one_size(text: str, axes: int) -> list[tuple[int, ...]]:
    try:
        size = tuple(int(part) for part in text.split("x"))
    except ValueError:
        raise UsageError(f"{text!r} is no size: write 5, or 5x3 for a task of two sizes") from None
    return [size * axes if len(size) == 1 else size]


# Training and evaluating


def _recipe(name: str, changes: Sequence[str]) -> Recipe:
    """A recipe by name, or of a run, or from a JSON file."""
    path = Path(name)
    if path.is_dir():
        return Run.open(path).recipe.change(changes)
    if path.suffix == ".json":
        try:
            return Recipe.read(path.read_text()).change(changes)
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
    return catalog.recipe(name, changes)


def _seeds(recipe: Recipe, first: int | None, count: int) -> list[Recipe]:
    """Replicates that share neither weights nor problems."""
    if count < 1:
        raise UsageError(f"--seeds must be 1 or more, not {count}")
    if first is None and count == 1:
        return [recipe]
    start = recipe.seed if first is None else first
    return [replace(recipe, seed=seed, data_seed=seed) for seed in range(start, start + count)]


def _train(args: argparse.Namespace) -> int:
    recipe = _recipe(args.recipe, args.changes)
    sizes = parse_sizes(args.lengths) if args.lengths else default_sizes(recipe)
    recipes = _seeds(recipe, args.seed, args.seeds)
    own_folder = Path(args.recipe) if Path(args.recipe).is_dir() and not args.changes and len(recipes) == 1 else None
    runs = [Run.of(recipe, own_folder) for recipe in recipes]
    if len(runs) > 1 and _jobs(args) > 1:
        _train_together(args, runs, args.lengths)
    else:
        for one in runs:
            train(
                one.recipe,
                one.folder,
                device=args.device,
                threads=args.threads,
                save_every=args.save_every,
                quiet=args.quiet,
            )
            _measure(args, one, sizes, hard=False)
            if args.hard:
                _measure(args, one, sizes, hard=True)
    result = [{"run": str(run.folder), "about": run.about(), "scores": run.rows("scores")} for run in runs]
    where = "\n".join(f"[dim]{run.folder}[/]  {run.about()['wall_s']:.0f} s" for run in runs)
    return _say(args, result, score_table(curves(runs)), where)


def _jobs(args: argparse.Namespace) -> int:
    if args.jobs is not None and args.jobs < 1:
        raise UsageError(f"--jobs must be 1 or more, not {args.jobs}")
    return min(2, os.cpu_count() or 1) if args.jobs is None else args.jobs


def _train_together(args: argparse.Namespace, runs: list[Run], lengths: str | None) -> None:
    arguments = ["--device", args.device, *(["--lengths", lengths] if lengths else [])]
    for option in ("samples", "threads", "save_every"):
        if hasattr(args, option):
            arguments += [f"--{option.replace('_', '-')}", str(getattr(args, option))]
    arguments += ["--hard"] if getattr(args, "hard", False) else []
    for name in vars(args)["import"]:
        arguments += ["--import", name]
    with Fleet(runs, arguments, jobs=_jobs(args)) as fleet:
        follow(fleet, runs, progress, quiet=args.quiet)


def _measure(args: argparse.Namespace, run: Run, sizes: Sequence[Any], *, hard: bool) -> None:
    """Evaluate a run where it has not been, so that a command given again goes on where it was cut."""
    samples = args.samples
    device = choose_device(args.device)
    weights = run.weights(device)
    known = {
        (tuple(row["sizes"]), row["problems"], row["stopping"])
        for row in run.rows("scores")
        if row["count"] == samples and row["seed"] == 0
    }
    problems, rule, axes = "hard" if hard else "uniform", weights.recipe.stopping.name, len(weights.recipe.task.axes)
    missing = [s for s in sizes if ((s if isinstance(s, tuple) else (s,) * axes), problems, rule) not in known]
    with computing(args.threads):
        for score in evaluate(weights, missing, samples=samples, hard=hard):
            run.append("scores", score.row() | {"seed": 0})


def _stopping(text: str | None) -> Stopping | None:
    return fields.decode(Stopping, fields.parse(text, "--stopping"), "--stopping") if text else None


def _evaluate(args: argparse.Namespace) -> int:
    weights = load(_folder(args.weights), choose_device(args.device))
    if args.lengths and args.grid:
        raise UsageError("give --lengths or --grid, not both")
    sizes = parse_sizes(args.grid or args.lengths) if args.grid or args.lengths else default_sizes(weights.recipe)
    seed = args.seed or 0
    folder = Path(_folder(args.weights))
    run = Run.open(folder) if (folder / "metrics.jsonl").exists() else None
    scores: list[Score] = []
    asked = {"samples": args.samples, "stopping": _stopping(args.stopping), "hard": args.hard, "seed": seed}
    with computing(args.threads), progress.status("") as status:
        for size in sizes:
            status.update(f"measuring at {size}")
            for score in evaluate(weights, [size], **asked):
                scores.append(score)
                if run:
                    run.append("scores", score.row() | {"seed": seed})
    rows = [score.row() | {"seed": seed} for score in scores]
    return _say(args, rows, detail_table(rows, weights.recipe.lengths.top))


def _folder(name: str) -> str:
    """A run may be called by its folder's name alone."""
    inside = runs_folder() / name
    return str(inside) if not Path(name).is_dir() and inside.is_dir() else name


# Solving


def _solve(args: argparse.Namespace) -> int:
    solver = Solver(load(_folder(args.weights), choose_device(args.device)))
    stopping = _stopping(args.stopping)
    if args.prompts:
        prompts: Any = args.prompts
    elif sys.stdin is None or sys.stdin.isatty():
        raise UsageError("solve: no prompt: give some as arguments, or one a line on standard input")
    else:
        prompts = (line.rstrip("\n") for line in sys.stdin)
    count = bad = 0
    for count, prompt in enumerate(prompts, 1):
        try:
            answer = solver.solve(prompt, stopping)
            print(json.dumps(vars(answer)) if args.json else answer.text, flush=True)
        except UsageError as error:
            bad += 1
            print(json.dumps({"prompt": prompt, "error": str(error)}) if args.json else "", flush=True)
            print(f"lengthwise: prompt {count}: {error}", file=sys.stderr)
    if not count:
        raise UsageError("solve: standard input was empty: write one prompt a line")
    return 1 if bad else 0


# Studies and reports


def _reproduce(args: argparse.Namespace) -> int:
    study = catalog.study(args.study)
    if args.dry_run:
        return _plan(args, study)
    return _study(args, study, Path(args.out or Path("results") / args.study))


def _plan(args: argparse.Namespace, study: Study) -> int:
    table = Table("recipe", "seeds", "to train", "minutes each", title=study.title, title_justify="left", box=None)
    result: list[dict[str, Any]] = []
    for recipe in study.recipes:
        runs = [Run(runs_folder() / f"{r.name}-{r.id}", r) for r in _seeds(recipe, 0, args.seeds)]
        missing = sum(not run.done for run in runs)
        minutes = cost(recipe).minutes
        result.append({"recipe": recipe.name, "seeds": args.seeds, "missing": missing, "minutes_each": minutes})
        table.add_row(recipe.name, str(args.seeds), str(missing), f"{minutes:.1f}")
    total = sum(row["missing"] * row["minutes_each"] for row in result) / _jobs(args)
    note = f"about {total:.0f} minutes of training in {_jobs(args)} processes, evaluation not counted"
    return _say(args, result, table, note)


def _study(args: argparse.Namespace, study: Study, folder: Path) -> int:
    runs = [Run.of(one) for recipe in study.recipes for one in _seeds(recipe, 0, args.seeds)]
    args.hard = bool(study.hard_sizes)
    _train_together(args, runs, ",".join(map(str, study.sizes)))
    return _publish(args, runs, folder, study)


def _report(args: argparse.Namespace) -> int:
    return _publish(args, [Run.open(name) for name in args.runs], Path(args.out or "figures"))


def _publish(args: argparse.Namespace, runs: list[Run], folder: Path, study: Study | None = None) -> int:
    from lengthwise.report.publish import publish

    files = publish(runs, folder, title=study.title if study else None)
    result = {"files": [str(file) for file in files], "scores": [row for run in runs for row in run.rows("scores")]}
    shown = [score_table(curves(runs))] if result["scores"] else []
    return _say(args, result, *shown, *([study.note] if study else []), "\n".join(map(str, files)))


def _demo(args: argparse.Namespace) -> int:
    from lengthwise.demo import demo

    return demo(args)
