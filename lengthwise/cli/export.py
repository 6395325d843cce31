"""The command ``export``: write weights as a graph for other programs, or a task for lm-evaluation-harness."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from lengthwise.api import UsageError, catalog
from lengthwise.api.export import INPUT_NAMES, export
from lengthwise.base.extras import import_library
from lengthwise.base.ranges import Size
from lengthwise.cli.console import print_result, show_elapsed
from lengthwise.cli.options import parse_task_sizes
from lengthwise.cli.shared import Argument, OutputOptions, ProgressOptions, Words
from lengthwise.evaluation.harness import write_harness_task
from lengthwise.experiment.resources import estimate_problems
from lengthwise.runs.run import load


@dataclass(kw_only=True)
class Options(OutputOptions, ProgressOptions):
    """Write weights as a graph (ONNX, torch.export), or a task for lm-evaluation-harness."""

    weights: Argument | None = None  # WEIGHTS: shipped weights by name, a folder, or hf:user/name
    changes: Words = ()  # name=value: with --lm-eval: the task's fields, e.g. base=2
    onnx: str | None = None  # FILE: write this ONNX file; missing folders are created
    program: str | None = None  # FILE: write this file of torch.export (.pt2); missing folders are created
    # number type of the graph; float64 keeps rounding below 1e-5 (default: the weights')
    dtype: Literal["float32", "float64"] | None = None
    lm_eval: str | None = None  # TASK: write this task, e.g. addition, for lm-evaluation-harness
    lengths: str | None = None  # SIZES: with --lm-eval: sizes, e.g. 4,8,16
    count: Size = 500  # N: with --lm-eval: problems of each size (default: 500)
    out: str | None = None  # FOLDER: with --lm-eval: the folder to write to (default: lengthwise_TASK)


def run(args: Options) -> int:
    """Write weights as ONNX, as a program of torch.export, or both; or a task for lm-evaluation-harness."""
    if args.lm_eval:
        return _write_task(args)
    files = [file for file in (args.program, args.onnx) if file]
    if not args.weights or args.changes or not files:
        advice = "--onnx FILE.onnx, --program FILE.pt2, or both; or a task: --lm-eval addition --lengths 4,8,16"
        raise UsageError(f"export: name one set of weights, and a file to write: {advice}")
    if args.onnx:
        for name in ("onnx", "onnxscript"):
            import_library(name, "onnx")
    weights = load(args.weights)
    with show_elapsed(f"{weights.name}: exported", quiet=args.quiet):
        export(weights, onnx=args.onnx, program=args.program, dtype=args.dtype)
    return print_result(args, {"files": files, "inputs": INPUT_NAMES, "outputs": ["logits"]}, *files)


def _write_task(args: Options) -> int:
    changes = [*([args.weights] if args.weights else []), *args.changes]
    if args.onnx or args.program or args.dtype or not args.lengths or any("=" not in change for change in changes):
        raise UsageError("export: name a task, its fields, and sizes: --lm-eval addition base=2 --lengths 4,8")
    task = catalog.find_task(args.lm_eval or "", changes)
    sizes = parse_task_sizes(task, args.lengths)
    estimate_problems(args.count, max(sizes, key=sum)).check(f"{args.count} problems of a size")
    folder = Path(args.out or f"lengthwise_{task.name.replace('-', '_')}")
    files = [*map(str, write_harness_task(folder, task, sizes, args.count))]
    return print_result(args, {"files": files}, *files)
