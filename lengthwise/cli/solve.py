"""The command ``solve``: answer prompts with trained weights."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from lengthwise.api import Solver, Task, UsageError
from lengthwise.base.files import format_json
from lengthwise.base.formatting import format_duration
from lengthwise.base.process import get_result_stream
from lengthwise.cli.console import show_elapsed
from lengthwise.cli.options import parse_single_rule
from lengthwise.cli.shared import Argument, OutputOptions, Texts, Words
from lengthwise.experiment.recipe import check_stopping
from lengthwise.runs.run import choose_device, load

SLOW_SECONDS = 1.0  # estimated seconds from which a prompt's progress is shown


@dataclass(kw_only=True)
class Options(OutputOptions):
    """Answer prompts from arguments or from standard input (e.g. < FILE), one per line; a grid may take several lines.
    Answers go to standard output; for a wrong answer, the right answer goes to standard error."""

    weights: Argument  # WEIGHTS: shipped weights by name, a folder, or hf:user/name
    prompts: Words = ()  # PROMPT: e.g. 128+9
    # RULE: a stopping rule to use instead of the recipe's, e.g. Oracle, After(loops=10), MaxConfidence(extra=20)
    stopping: Texts = ()
    # print JSON for each prompt: answer, right answer, loops, and confidence (geometric mean of the symbols'
    # probabilities, 0 to 1; `evaluate --rows` writes its logarithm)
    json: bool = False
    device: str = "auto"  # cpu, cuda, cuda:1, mps, or auto (default): the first available of CUDA, MPS and CPU


def run(args: Options) -> int:
    """Print an answer per prompt; return 1 if some prompts could not be parsed, else 0."""
    solver = Solver(load(args.weights, choose_device(args.device)))
    if (stopping := parse_single_rule(args.stopping)) is not None:
        check_stopping(solver.weights.recipe.layout, stopping)
    prompts: Iterable[str] = args.prompts
    if not prompts:
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError("solve: no prompt: give prompts as arguments, or one per line on standard input")
        prompts = _join_grids((line.rstrip("\n") for line in sys.stdin), solver.weights.recipe.task)
    count = bad = 0
    for count, prompt in enumerate(prompts, 1):
        try:
            seconds = solver.demand(prompt, stopping).seconds
            with show_elapsed(f"prompt {count}: about {format_duration(seconds)}", quiet=seconds < SLOW_SECONDS):
                solved = solver.solve(prompt, stopping)
            result = {name: value for name, value in vars(solved).items() if value != ()}
            text = solved.text
        except UsageError as error:
            result, text = {"prompt": prompt, "error": str(error)}, ""
            bad += 1
        print(format_json(result) if args.json else text, file=get_result_stream(), flush=True)
        if "error" in result:
            print(f"lengthwise: prompt {count}: {result['error']}", file=sys.stderr)
        elif result["correct"] is False and not args.json:
            print(f"lengthwise: prompt {count}: wrong; the right answer is {result['right']}", file=sys.stderr)
    if not count:
        raise UsageError("solve: standard input was empty: write one prompt per line")
    return 1 if bad else 0


def _join_grids(lines: Iterable[str], task: Task) -> Iterator[str]:
    """Join the lines of each grid that has one of the task's shapes into one prompt, with / between lines. Spaces may
    separate the cells of a grid; an empty line, or a line of another width, ends it. Other lines are prompts."""
    shapes = {task.shape([size] * len(task.axes)) for size in task.list_smallest_sizes(100)} - {None}
    widths, block = {shape[1] for shape in shapes if shape}, list[str]()
    for text in lines:
        is_spaced = shapes and " " not in task.symbols and all(len(cell) == 1 for cell in text.split())
        line = text.replace(" ", "") if is_spaced else text
        if block and len(line) != len(block[0]):
            yield "/".join(block)
            block = []
        if len(line) in widths and "/" not in line:
            block.append(line)
        elif line.strip() or not shapes:
            yield line
        if (len(block), len(line)) in shapes:
            yield "/".join(block)
            block = []
    if block:
        yield "/".join(block)
