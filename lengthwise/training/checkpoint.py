"""Checks and loading of the state from which a training continues: its checkpoint, or another run's final state.

A checkpoint may come from a stranger, and optimizers do not check the shapes of its tensors, so it must have exactly
the form of a checkpoint that the recipe writes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from lengthwise.base.errors import UsageError
from lengthwise.base.fields import validate
from lengthwise.base.files import error_line
from lengthwise.base.ranges import Count, NotNegative, Whole
from lengthwise.experiment.recipe import Parent, Recipe
from lengthwise.models.external import tensor_bytes
from lengthwise.runs.folder import RunFolder, list_shipped, runs_folder
from lengthwise.runs.hub import PREFIX
from lengthwise.runs.run import FINAL_FILE, Run, load, read_recipe, rename_parameters, weights_folder

# Settings of checkpoints written by versions that did not record them.
DEFAULT_SURROUNDINGS = {"processes": 1, "stacked": 1, "matmul": "fp32", "compiled": False}


def validate_state(state: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Raise ValueError or KeyError unless a checkpoint's numbers are in their ranges, and its tensors have the names,
    shapes and types of ``expected``, a checkpoint of the same recipe."""
    numbers = {"passed": 0, "diverged": 0, "parts": 1, **state}
    for name in ("step", "passed", "diverged", "parts"):
        validate(Count if name == "parts" else Whole, numbers[name], name)
    for name in ("wall_s", "cpu_s"):
        validate(NotNegative, state["spent"][name], name)
    best, moments = state["best"], expected["optimizer"]["state"]
    validate(Whole, best["step"], "best: step")
    if type(best["merit"]) is not float:
        raise ValueError("best: merit must be a float")
    _check_tensors(state["model"], expected["model"], "model")
    if expected["average"] is not None:
        _check_tensors(state["average"], expected["average"], "average")
    if best["weights"]:
        _check_tensors(best["weights"], expected["model"], "best")
    for number, tensors in state["optimizer"]["state"].items():
        _check_tensors(tensors, moments[number], f"optimizer: parameter {number}")
    for name, value in state["sums"].items():  # some values are not logged at every step
        _check_tensors({name: value}, {name: expected["sums"].get(name, torch.zeros(()))}, "sums")


def rename_weights(state: Mapping[str, Any]) -> None:
    """Give the weights in a checkpoint of an older version their present parameter names."""
    for tree, key in ((state, "model"), (state, "average"), (state.get("best"), "weights")):
        if isinstance(tree, dict) and isinstance(tree.get(key), dict):
            tree[key] = rename_parameters(tree[key])


def checkpoint_to_send(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint for the first of several processes to send to the others: on the CPU, and without the best
    weights, which only the first process keeps."""
    return tree_map_only(Tensor, Tensor.cpu, {**state, "best": {**state["best"], "weights": {}}})


def _check_tensors(actual: Mapping[str, Any], expected: Mapping[str, Any], entry: str) -> None:
    if actual.keys() != expected.keys():
        raise ValueError(f"{entry}: its tensors must have the names {', '.join(expected)}"[:200])
    for name, tensor in expected.items():
        found, form = actual[name], (tensor.shape, tensor.dtype) if isinstance(tensor, Tensor) else type(tensor)
        # Checkpoints are always loaded onto the CPU.
        is_dense = type(found) is Tensor and found.layout == torch.strided and found.device.type == "cpu"
        if form != ((found.shape, found.dtype) if is_dense else type(found)):
            raise ValueError(f"{entry}: {name} must be of the form {form}")


def continue_from(run: str | Path, recipe: Recipe) -> Recipe:
    """Return the recipe of a training that continues from ``run``: a run, shipped weights, or weights on the Hub. The
    optimizer's state is used if the run kept it and both optimizers have the same type; otherwise only the weights are
    used.

    Raises UsageError if its training has not ended, or its weights do not fit the recipe.
    """
    folder = weights_folder(run)
    about, own = RunFolder(folder).about(), read_recipe(folder)
    fits = type(own.optimizer) is type(recipe.optimizer) and bool(own.ema) == bool(recipe.ema)
    state = Run(folder, own).load_state(FINAL_FILE) if fits else None
    provided = state or {"model": load(run).model.state_dict()}
    try:
        recipe.build().load_state_dict(provided["model"])
    except (RuntimeError, KeyError, AttributeError, TypeError) as error:
        raise UsageError(f"{run}: its weights do not fit this recipe's model ({error_line(error)})") from None
    if str(run).startswith(PREFIX) or str(run) in list_shipped():
        name = str(run)
    else:
        name = folder.name if folder.resolve().parent == runs_folder().resolve() else str(folder.resolve())
    step = about.get("steps", own.steps)
    return recipe.change(parent=Parent(state_digest(provided), step, state is not None, name))


def read_parent(parent: Parent) -> tuple[dict[str, Any], Recipe]:
    """Return the parent run's state, or only its weights, and its recipe. Raises UsageError if the digest of the state
    has changed."""
    folder = weights_folder(parent.run)
    own = read_recipe(folder)
    found = Run(folder, own).load_state(FINAL_FILE) if parent.state else {"model": load(parent.run).model.state_dict()}
    if found is None or (digest := state_digest(found)) != parent.digest:
        changed = "its final.pt is gone" if found is None else f"they have the digest {digest}, not {parent.digest}"
        raise UsageError(f"{parent.run}: not the weights that this run continues from: {changed}; restore them")
    found["model"] = rename_parameters(found["model"])
    return found, own


def state_digest(state: Mapping[str, Any]) -> str:
    """Return a hash, 16 hexadecimal digits, of the state that another run continues from; bit-identical trainings give
    the same one."""
    digest = hashlib.blake2b(digest_size=8)
    parts = ("step", "passed", "model", "average", "optimizer")
    _update_digest(digest, {name: state[name] for name in parts if name in state})
    return digest.hexdigest()


def _update_digest(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        digest.update(tensor_bytes(value))
    elif isinstance(value, Mapping):
        for name in sorted(value, key=str):
            digest.update(f"{name}:".encode())
            _update_digest(digest, value[name])
    elif isinstance(value, list | tuple):
        for one in value:
            _update_digest(digest, one)
    else:
        digest.update(f"{value!r};".encode())
