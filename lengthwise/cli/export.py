"""Trained weights as a graph for other programs: ONNX, torch.export."""

from __future__ import annotations

import argparse
import io
import json
import warnings
from pathlib import Path

import torch

from lengthwise.base.extras import library
from lengthwise.base.files import write
from lengthwise.base.rng import stream
from lengthwise.base.types import UsageError
from lengthwise.cli.console import doing, say
from lengthwise.experiment.loops import Constant
from lengthwise.models.lstm import LSTMModel
from lengthwise.models.retran import ReTranModel
from lengthwise.runners.exported import NAMES, export_program
from lengthwise.runs.run import Weights, load

ROWS, BEYOND = 5, 4  # rows that are traced; their size beyond the smallest


def run(args: argparse.Namespace) -> int:
    """Write weights as ONNX, as a program of torch.export, or both."""
    if not (args.onnx or args.program):
        raise UsageError("export: name a file to write: --onnx FILE.onnx, --program FILE.pt2, or both")
    if args.onnx:
        for name in ("onnx", "onnxscript"):
            library(name, "onnx")
    weights = load(args.weights)
    files = []
    with doing(f"{weights.name}: exported", quiet=args.quiet), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own plans
        program = traced(weights)
        if args.program:
            buffer = io.BytesIO()
            torch.export.save(program, buffer)
            write(Path(args.program), buffer.getvalue())
            files.append(args.program)
        if args.onnx:
            write(Path(args.onnx), onnx_bytes(weights, program))
            files.append(args.onnx)
    return say(args, {"files": files, "inputs": NAMES, "outputs": ["logits"]}, *files)


def traced(weights: Weights) -> torch.export.ExportedProgram:
    """The weights' program, traced on a few small problems. UsageError where torch cannot trace the model."""
    recipe = weights.recipe
    once = isinstance(weights.model, (LSTMModel, ReTranModel))
    if once and recipe.loops != Constant(1):
        raise UsageError(f"{type(weights.model).__name__} is exported with one loop only, and its recipe has more")
    sizes = torch.tensor([recipe.sizes(recipe.task.smallest + BEYOND)] * ROWS)
    batch = recipe.layout.write(recipe.task.sample(sizes, stream(0, "export")), recipe.task)
    return export_program(weights.model, batch.inputs, recipe.loops.planned(batch.rounds))


def onnx_bytes(weights: Weights, program: torch.export.ExportedProgram) -> bytes:
    """The program as an ONNX file, which names the symbols that are read and written in its metadata."""
    exported = torch.onnx.export(program, dynamo=True, verbose=False, input_names=list(NAMES), output_names=["logits"])
    reads, writes = weights.recipe.layout.vocabs(weights.recipe.task)
    assert exported is not None
    exported.model.metadata_props.update(reads=json.dumps(reads.symbols), writes=json.dumps(writes.symbols))
    return exported.model_proto.SerializeToString()
