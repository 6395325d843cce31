"""The state from which training continues: a checkpoint, or another run's final state."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map_only

from lengthwise.base.errors import UsageError
from lengthwise.base.files import format_error
from lengthwise.experiment.recipe import Parent, Recipe
from lengthwise.models.external import read_tensor_bytes
from lengthwise.runs.folder import RunFolder, get_runs_folder, list_shipped_weights
from lengthwise.runs.hub import HUB_PREFIX
from lengthwise.runs.run import FINAL_FILE, Run, find_weights_folder, load, read_recipe


def build_checkpoint_to_send(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checkpoint that the first of several processes sends to the others: on the CPU, and without the best
    weights, which only the first process keeps."""
    return tree_map_only(Tensor, Tensor.cpu, {**state, "best": {**state["best"], "weights": {}}})


def continue_from(run: str | Path, recipe: Recipe) -> Recipe:
    """Return ``recipe``, changed to continue from ``run``, which is a run, shipped weights, or weights on the Hub. The
    optimizer's state is used if the run kept it and both optimizers have the same type; otherwise only the weights are
    used.

    Raises UsageError if ``run`` is not finished, or its weights do not fit the recipe.
    """
    folder = find_weights_folder(run)
    about, own = RunFolder(folder).about(), read_recipe(folder)
    fits = type(own.optimizer) is type(recipe.optimizer) and bool(own.ema) == bool(recipe.ema)
    state = Run(folder, own).load_state(FINAL_FILE) if fits else None
    provided = state or {"model": load(run).model.state_dict()}
    try:
        recipe.build().load_state_dict(provided["model"])
    except (RuntimeError, KeyError, AttributeError, TypeError) as error:
        raise UsageError(f"{run}: its weights do not fit this recipe's model ({format_error(error)})") from None
    if str(run).startswith(HUB_PREFIX) or str(run) in list_shipped_weights():
        name = str(run)
    else:
        name = folder.name if folder.resolve().parent == get_runs_folder().resolve() else str(folder.resolve())
    step = about.get("steps", own.steps)
    return recipe.change(parent=Parent(compute_state_digest(provided), step, state is not None, name))


def read_parent(parent: Parent) -> tuple[dict[str, Any], Recipe]:
    """Return the parent run's state, or only its weights, and its recipe. Raises UsageError if the digest of the state
    has changed."""
    folder = find_weights_folder(parent.run)
    own = read_recipe(folder)
    found = Run(folder, own).load_state(FINAL_FILE) if parent.state else {"model": load(parent.run).model.state_dict()}
    if found is None or (digest := compute_state_digest(found)) != parent.digest:
        changed = "its final.pt is gone" if found is None else f"its digest is {digest}, not {parent.digest}"
        raise UsageError(f"{parent.run} is no longer what this run continues from: {changed}; restore it")
    return found, own


def compute_state_digest(state: Mapping[str, Any]) -> str:
    """Return a hash (16 hexadecimal digits) of the state that another run continues from. It is equal for states that
    are equal bit for bit."""
    digest = hashlib.blake2b(digest_size=8)
    parts = ("step", "passed", "model", "average", "optimizer")
    _update_digest(digest, {name: state[name] for name in parts if name in state})
    return digest.hexdigest()


def _update_digest(digest: Any, value: Any) -> None:
    if isinstance(value, Tensor):
        digest.update(f"{value.dtype} {tuple(value.shape)}".encode())
        digest.update(read_tensor_bytes(value))
    elif isinstance(value, Mapping):
        for name in sorted(value, key=str):
            digest.update(f"{name}:".encode())
            _update_digest(digest, value[name])
    elif isinstance(value, list | tuple):
        for one in value:
            _update_digest(digest, one)
    else:
        digest.update(f"{value!r};".encode())
