"""The command ``demo``: train two models on short sums, then test them on long ones."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.text import Text

from lengthwise.api import Answer, Solver, UsageError, catalog
from lengthwise.base.progress import Terminal
from lengthwise.base.ranges import Count, Seed, Size
from lengthwise.cli.console import print_files
from lengthwise.cli.options import resolve_jobs
from lengthwise.cli.shared import OutputOptions, ProgressOptions
from lengthwise.experiment.data import draw_fresh_problems
from lengthwise.jobs.pool import JobPool, show_progress
from lengthwise.report import WORST_FAMILY, curves
from lengthwise.report.publish import publish
from lengthwise.report.tables import build_score_table
from lengthwise.report.terminal import plot
from lengthwise.runs.folder import get_runs_folder
from lengthwise.runs.run import Run
from lengthwise.viewer.document import write_page
from lengthwise.viewer.report import build_report_page, load_exportable_weights

INTRODUCTION = """Two small models learn to add numbers of up to [bold]{top}[/] digits, from the same sums.
  [bold]{looped}[/]    one block that sees a digit's neighbours, applied again and again
  [bold]{standard}[/]  four layers that see the whole row, applied once
Then both meet sums that are longer than any they have seen."""

NEXT_STEPS = """\
  lengthwise solve looped-pairs 4821973650128839+9178026349871162     a sum of your own, with weights that are shipped
  lengthwise solve {run} 99999999+1     … or with the ones you have just trained
  lengthwise train looped-parity                                      another task: is the number of ones odd?
  lengthwise train looped-pairs model.width=32                        another model: any field can be changed
  lengthwise list                                                     what else there is
docs/how-to shows how to plug in a task or a model of your own, in a short file each."""


@dataclass(kw_only=True)
class Options(OutputOptions, ProgressOptions):
    """Train a looped and a standard model on sums of up to 8 digits; show how long sums each model solves."""

    seed: Seed | None = None  # N: seed of weights and problems (default: the recipe's)
    jobs: Size | None = None  # J: processes at a time (default: number of cores, at most 2)
    steps: Count | None = None  # N: train for N steps instead of the recipe's
    out: str | None = None  # FOLDER: where tables and figures go
    samples: Size = 400  # N: fresh problems per length (default: 400)


def run(args: Options) -> int:
    """Train, measure and print the results. A repeated call resumes, or prints the stored results."""
    console = Terminal(stderr=args.json)
    study = catalog.find_study("pairs")
    (panel,) = study.panels
    seed = args.seed or 0
    recipes = [recipe.with_seed(seed) for recipe in study.recipes]
    if args.steps is not None:
        recipes = [replace(recipe, steps=args.steps) for recipe in recipes]
    folder = Path(args.out) if args.out else get_runs_folder() / "demo"
    runs = [Run.of(recipe) for recipe in recipes]
    looped, standard = recipes
    if not args.quiet:
        intro = INTRODUCTION.format(top=looped.lengths.top, looped=looped.name, standard=standard.name)
        console.print(Text.from_markup(intro), "")
    options = ["--lengths", ",".join(map(str, panel.sizes)), "--samples", str(args.samples), "--hard", "--families"]
    with JobPool(runs, lambda _: options, jobs=resolve_jobs(args.jobs)) as pool:
        show_progress(pool, runs, console, quiet=args.quiet, extra_display=lambda: plot_progress(runs))
    pool.raise_failures()
    files = publish(runs, folder, title=study.title)
    page = build_report_page(runs, title=study.title, command="lengthwise demo", models=load_exportable_weights(runs))
    files.append(write_page(str(folder / "page.html"), page))
    if args.json:
        return print_files(args, files, scores={run.recipe.name: run.rows("scores") for run in runs})
    console.print(plot_lengths(runs), "", build_score_table(curves(runs)), study.notes, "")
    console.print(show_example_sums(runs), "")
    console.print(Text("Figures and tables", "bold"), *(f"  {file}" for file in files), "", sep="\n")
    next_steps = Text("What to type next", "bold"), NEXT_STEPS.format(run=runs[0].folder)
    console.print(*next_steps, sep="\n", highlight=False, soft_wrap=True)
    return 0


def plot_progress(runs: Sequence[Run]) -> RenderableType:
    """Plot exact match against steps while training; once there are scores, against length."""
    if any(run.rows("scores") for run in runs):
        return plot_lengths(runs)
    steps = {}
    for run in runs:
        rows = [row for row in run.rows("metrics") if "exact" in row]
        for size in run.recipe.watch.sizes:
            steps[f"{run.recipe.name}, {size} digits"] = [(row["step"], row["exact"][str(size)]) for row in rows]
    return plot(steps, "steps")


def plot_lengths(runs: Sequence[Run]) -> RenderableType:
    """Plot exact match against digits, for the digits that were measured."""
    measured = [curve for curve in curves(runs) if curve.problems in ("uniform", WORST_FAMILY)]
    labels = [curve.label if curve.problems == "uniform" else f"{curve.label}, {WORST_FAMILY}" for curve in measured]
    points = [[(point.length, point.mean) for point in curve.diagonal] for curve in measured]
    return plot(dict(zip(labels, points, strict=True)), "digits", runs[0].recipe.lengths.top)


def show_example_sums(runs: Sequence[Run]) -> RenderableType:
    """Show a few fresh sums with each model's answer, wrong digits marked."""
    task = runs[0].recipe.task
    panels = []
    for size in (8, 16, 32):
        problem = draw_fresh_problems(task, (size,), 1, seed=1)
        first, second = (str(int(operand)) for operand in task.to_text(problem.prompt[0]).split("+"))
        right = str(int(first) + int(second))
        lines = [Text(f"{'':>16} {first:>{len(right)}}"), Text(f"{'+':>16} {second:>{len(right)}}")]
        for run in runs:
            answer = None
            with suppress(UsageError):  # longer than its position table
                answer = Solver(run.weights()).solve(f"{first}+{second}")
            lines.append(_mark_wrong_digits(run.recipe.name, answer, right))
        panels.append(Panel(Group(*lines), title=f"{size} digits", title_align="left", expand=False))
    return Group(*panels)


def _mark_wrong_digits(name: str, answer: Answer | None, right_answer: str) -> Text:
    line = Text(f"{name:>16} ")
    if answer is None:
        return line.append("too long for its position table", "dim")
    width = max(len(answer.text), len(right_answer))  # the answer may have too many digits
    wrong_count = 0
    for digit, right_digit in zip(answer.text.rjust(width), right_answer.rjust(width), strict=True):
        line.append(digit, "" if digit == right_digit else "bold underline red")
        wrong_count += digit != right_digit
    return line.append("  right" if answer.correct else f"  {wrong_count} of {width} digits wrong", "dim")
