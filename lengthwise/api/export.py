"""Export trained weights as a graph for other programs, in the format of ONNX or torch.export."""

from __future__ import annotations

import copy
import io
import json
import logging
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch

from lengthwise.base.files import check_writable, write
from lengthwise.base.rng import stream
from lengthwise.base.types import UsageError
from lengthwise.experiment.loops import Constant
from lengthwise.models.retran import LSTMModel, ReTranModel
from lengthwise.runners.exported import INPUT_NAMES, export_program
from lengthwise.runs.run import Weights


def export(
    weights: Weights,
    *,
    onnx: str | None = None,
    program: str | None = None,
    dtype: Literal["float32", "float64"] | None = None,
) -> None:
    """Write weights as an ONNX file, a file of torch.export (.pt2), or both, in ``dtype``. Raises UsageError, and
    writes nothing, if torch cannot trace or convert the model."""
    for option, file in (("--onnx", onnx), ("--program", program)):
        if file:
            check_writable(option, Path(file))
    if dtype:
        weights = replace(weights, model=copy.deepcopy(weights.model).to(getattr(torch, dtype)))
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # torch logs that torchvision is missing, which no model here needs
    try:
        with warnings.catch_warnings(action="ignore"):  # torch warns about its planned changes
            traced = trace_model(weights)
            graph = _convert_to_onnx(traced, weights) if onnx else b""
            if program:
                buffer = io.BytesIO()
                torch.export.save(traced, buffer)
                write(Path(program), buffer.getvalue())
            if onnx:
                write(Path(onnx), graph)
    finally:
        logging.disable(level)


def _convert_to_onnx(traced: torch.export.ExportedProgram, weights: Weights) -> bytes:
    """Return a traced model as an ONNX file's bytes. Raises UsageError if this version of torch cannot convert it."""
    names = {"input_names": list(INPUT_NAMES), "output_names": ["logits"]}
    try:
        exported = torch.onnx.export(traced, dynamo=True, verbose=False, **names)
    except Exception as error:
        advice = "use torch 2.13 or newer, or export with --program"
        message = f"torch {torch.__version__} cannot convert this model to ONNX ({type(error).__name__}); {advice}"
        raise UsageError(message) from error
    assert exported is not None
    reads, writes = (json.dumps(vocab.symbols) for vocab in weights.recipe.layout.vocabs(weights.recipe.task))
    exported.model.metadata_props.update(reads=reads, writes=writes)
    return exported.model_proto.SerializeToString()


def trace_model(weights: Weights) -> torch.export.ExportedProgram:
    """Trace the weights on a few small problems. Raises UsageError if torch cannot trace the model."""
    recipe = weights.recipe
    has_one_loop = isinstance(weights.model, (LSTMModel, ReTranModel))
    if has_one_loop and recipe.loops != Constant(1):
        raise UsageError(f"{type(weights.model).__name__} is exported with one loop only, but its recipe has more")
    sizes = torch.tensor([recipe.sizes(recipe.task.list_smallest_sizes(5)[-1])] * 5)  # five problems of the fifth size
    batch = recipe.layout.write(recipe.task.sample(sizes, stream(0, "export")), recipe.task)
    return export_program(weights.model, batch.inputs, recipe.loops.planned(batch.rounds))
