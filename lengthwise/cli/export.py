"""The command ``export``: write weights as a graph for other programs."""

from __future__ import annotations

from dataclasses import dataclass

from lengthwise.api.export import NAMES, check_exporters, export
from lengthwise.base.types import UsageError
from lengthwise.cli.console import doing, say
from lengthwise.cli.shared import Argument, Printed, Quiet
from lengthwise.runs.run import load


@dataclass(kw_only=True)
class Options(Printed, Quiet):
    """Write trained weights as a graph for other programs: ONNX, torch.export."""

    weights: Argument  # WEIGHTS: shipped weights by name, a folder, or hf:user/name
    onnx: str | None = None  # FILE: write this ONNX file
    program: str | None = None  # FILE: write this file of torch.export (.pt2)


def run(args: Options) -> int:
    """Write weights as ONNX, as a program of torch.export, or both."""
    files = [file for file in (args.program, args.onnx) if file]
    if not files:
        raise UsageError("export: name a file to write: --onnx FILE.onnx, --program FILE.pt2, or both")
    if args.onnx:
        check_exporters()
    weights = load(args.weights)
    with doing(f"{weights.name}: exported", quiet=args.quiet):
        export(weights, onnx=args.onnx, program=args.program)
    return say(args, {"files": files, "inputs": NAMES, "outputs": ["logits"]}, *files)
