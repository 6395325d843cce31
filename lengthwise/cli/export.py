"""The command ``export``: write weights as a graph for other programs."""

from __future__ import annotations

import argparse

from lengthwise.api.export import NAMES, check_exporters, export
from lengthwise.base.types import UsageError
from lengthwise.cli.console import doing, say
from lengthwise.runs.run import load


def run(args: argparse.Namespace) -> int:
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
