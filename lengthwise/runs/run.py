"""Runs, whose folders hold a recipe, weights and a checkpoint, and the loading of weights."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from glob import glob
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor, nn

from lengthwise.base.errors import UsageError, quote_value, remove_controls
from lengthwise.base.fields import suggest, validate
from lengthwise.base.files import format_error, read_bytes, read_json_object, read_text, remove, write, write_json
from lengthwise.base.results import RunOutline
from lengthwise.experiment.own_code import hash_user_code, list_differing_classes
from lengthwise.experiment.recipe import Recipe, build_outline, is_shipped_recipe
from lengthwise.experiment.resources import estimate_model, get_available_memory
from lengthwise.models import Model, get_device
from lengthwise.runs.folder import (
    SHIPPED_FOLDER,
    RunFolder,
    check_is_run,
    find_run,
    get_runs_folder,
    list_shipped_weights,
    require_run,
)
from lengthwise.runs.hub import HUB_PREFIX, download_weights, parse_address

FINAL_FILE = "final.pt"  # the final training state, from which another run can start
CODE_FILE = "code.json"  # hashes of the user-defined classes that a run was trained with
MAX_TENSOR_BYTES = 2**34  # maximum size of weights or a checkpoint: about a hundred times the largest shipped recipe's


@dataclass(frozen=True)
class Weights:
    """A trained model with its recipe."""

    name: str
    recipe: Recipe
    model: Model

    @property
    def device(self) -> torch.device:
        """The device of the model's parameters."""
        return get_device(self.model)


def load(weights: str | Path | Run, device: str | torch.device = "cpu") -> Weights:
    """Load a run's weights, shipped weights by name, or weights from a folder with config.json and model.safetensors or
    from the Hub (``hf:user/name``, ``hf:user/name@revision``). Raises UsageError if a file is missing or damaged, or
    if the weights do not fit the recipe. No file can run code."""
    if isinstance(weights, Run):
        return weights.weights(device)
    chosen, folder = choose_device(device), find_weights_folder(weights)
    recipe = read_recipe(folder)
    path = folder / "model.safetensors"
    if not path.is_file():
        advice = RunFolder(folder).continue_advice
        raise UsageError(f"{folder}: there is no model.safetensors: has its training ended? {advice}")
    estimate_model(recipe).check(f"{folder}: its model")
    model = recipe.build()
    try:
        tensors = load_tensors(read_bytes(path, compute_max_tensor_bytes()))
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path}: not a complete safetensors file ({format_error(error)})") from None
    try:
        model.load_state_dict(tensors)
    except RuntimeError:
        raise UsageError(f"{path}: {_describe_misfit(model, tensors, Run(folder, recipe))}") from None
    return Weights(get_weights_name(weights, folder), recipe, model.to(chosen).eval())


def _describe_misfit(model: Model, tensors: Mapping[str, Tensor], run: Run) -> str:
    """Return why a run's weights cannot be loaded into a model of its recipe."""
    shapes = {name: value.shape for name, value in model.state_dict().items()}
    faults = {
        "missing:": [name for name in shapes if name not in tensors],
        "unexpected:": [name for name in tensors if name not in shapes],
        "of another shape:": [name for name in shapes if name in tensors and tensors[name].shape != shapes[name]],
    }
    found = {fault: names for fault, names in faults.items() if names}
    rest_texts = [f" and {len(names) - 1} more" * (len(names) > 1) for names in found.values()]
    reasons = [f"{fault} {found[fault][0]}{rest}" for fault, rest in zip(found, rest_texts, strict=True)]
    reason = f"these weights do not fit the recipe beside them: {', '.join(reasons)}"
    if changed := run.list_changed_classes(model):
        reason += f"; {', '.join(changed)} changed since they were trained: undo the change, or train again"
    return reason


def find_weights_folder(weights: str | Path) -> Path:
    """Return the folder of weights given by a path, a run's name, the name of shipped weights or an address on the Hub.
    Raises UsageError if there is no such folder."""
    if not isinstance(weights, (str, Path)):
        raise UsageError(f"give weights as a folder or a name, not as {quote_value(weights)}")
    if str(weights).startswith(HUB_PREFIX):
        return download_weights(str(weights))
    if folder := find_run(weights):
        return folder
    if str(weights) in list_shipped_weights():
        return SHIPPED_FOLDER / str(weights)
    pattern = f"{re.escape(str(weights))}-[0-9a-f]{{10}}"
    # Unlike Path.glob, glob ignores folders that cannot be read.
    names = (Path(found).parent.name for found in glob("*/config.json", root_dir=get_runs_folder()))
    if trained := sorted(str(get_runs_folder() / name) for name in names if re.fullmatch(pattern, name)):
        raise UsageError(f"{weights}: name one of its runs: {', '.join(trained[:3])}")
    if is_shipped_recipe(str(weights)):
        raise UsageError(f"{weights}: this recipe has no shipped weights: train it first: `lengthwise train {weights}`")
    names = list_shipped_weights()
    advice = suggest(str(weights), names) or "; other recipes are trained first: `lengthwise train RECIPE`"
    raise UsageError(f"{weights}: neither a folder nor one of the shipped weights: {', '.join(names)}{advice}")


def get_weights_name(weights: str | Path, folder: Path) -> str:
    """Return the name of weights: the name of their folder or, for weights from the Hub, whose folders are named after
    commits, the repository."""
    is_address = str(weights).startswith(HUB_PREFIX)
    return parse_address(str(weights)).repository if is_address else remove_controls(folder.resolve().name)


def choose_device(name: str | torch.device) -> torch.device:
    """Return the named device; ``auto`` prefers CUDA, then MPS. Raises UsageError if the device is missing."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if str(name) == "cuda" and is_torchrun_process():  # each torchrun process has its own GPU
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # some devices, e.g. meta, compute nothing
    except (RuntimeError, AssertionError, TypeError, ValueError):
        available = ["auto", "cpu", *["cuda"] * torch.cuda.is_available(), *["mps"] * torch.backends.mps.is_available()]
        unknown = f"device: {quote_value(name)} is not available"
        raise UsageError(f"{unknown}; available are: {', '.join(available)}") from None
    return device


def is_torchrun_process() -> bool:
    """Return whether torchrun started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def read_recipe(folder: Path) -> Recipe:
    """Read the recipe in a folder's config.json. Raises UsageError if the file is missing or invalid."""
    check_is_run(folder)
    text = read_text(folder / "config.json")
    try:
        return Recipe.read(text)
    except UsageError as error:
        raise UsageError(f"{folder / 'config.json'}: {error}") from None


def compute_max_tensor_bytes() -> float:
    """Return the maximum size, in bytes, of weights or a checkpoint that this machine reads."""
    return min(MAX_TENSOR_BYTES, get_available_memory())


def check_storable(weights: Mapping[str, object]) -> None:
    """Raise UsageError if model.safetensors cannot hold one of these weights."""
    for name, value in weights.items():
        if not isinstance(value, Tensor):
            raise UsageError(f"{name}: weights must be tensors, not {type(value).__name__}")
        try:
            dump_tensors({name: torch.empty(0, dtype=value.dtype)})
        except KeyError:
            raise UsageError(f"{name}: model.safetensors cannot hold numbers of {value.dtype}") from None


def save_weights(folder: Path, recipe: Recipe, weights: dict[str, Tensor]) -> None:
    """Write a recipe and weights to a folder, as config.json and model.safetensors."""
    write(folder / "config.json", (recipe.json() + "\n").encode())
    # Copy each: the format refuses tensors that share memory, such as a tied embedding and read-out.
    contiguous = torch.contiguous_format
    copies = {name: value.detach().cpu().clone(memory_format=contiguous) for name, value in weights.items()}
    write(folder / "model.safetensors", dump_tensors(copies))


class Run(RunFolder):
    """A run: its folder, recipe, weights and checkpoint."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        super().__init__(folder)
        self.recipe = recipe

    @classmethod
    def of(cls, recipe: Recipe, folder: Path | None = None) -> Self:
        """Return the run of a recipe in ``folder``, by default its own folder of ``runs``, which is created if needed.
        Raises UsageError if the folder holds another recipe."""
        run = cls(folder, recipe) if folder else cls.locate(recipe)
        if (run.folder / "config.json").exists():
            if read_recipe(run.folder).id != recipe.id:
                raise UsageError(f"{run.folder}: holds a run of another recipe; choose another folder")
        else:
            write(run.folder / "config.json", (recipe.json() + "\n").encode())
        return run

    @classmethod
    def locate(cls, recipe: Recipe) -> Self:
        """Return the run of a recipe without creating or reading its folder."""
        return cls(get_runs_folder() / f"{recipe.name}-{recipe.id}", recipe)

    @classmethod
    def open(cls, folder: str | Path) -> Self:
        """Open an existing run, given its folder or name. Raises UsageError if there is no such run."""
        path = require_run(folder)
        return cls(path, read_recipe(path))

    def config(self) -> dict[str, Any]:
        """Return the recipe as plain values, with defaults for fields that config.json lacks."""
        return json.loads(self.recipe.json())

    @cached_property
    def outline(self) -> RunOutline:
        """The facts of the recipe that a report shows."""
        return build_outline(self.recipe)

    @cached_property
    def model(self) -> Model:
        """The trained model, on the CPU. Raises UsageError if training has not ended."""
        return self.weights().model

    def record_code(self, model: nn.Module) -> None:
        """Store hashes of the user-defined classes that train this run. Raises UsageError if a class has changed since
        training began."""
        if not self.done and not (self.folder / "state.pt").exists():  # nothing is trained yet
            if (hashes := hash_user_code(self.recipe, model)) or (self.folder / CODE_FILE).exists():
                write_json(self.folder / CODE_FILE, hashes)
        elif changed := self.list_changed_classes(model):
            raise UsageError(
                f"{self.folder}: {', '.join(changed)} changed since this run was trained; set name=… for a new run, or "
                "delete the folder"
            )

    def list_changed_classes(self, model: nn.Module | None = None) -> list[str]:
        """Return the names of user-defined classes in the recipe and ``model`` (by default the trained model) that have
        changed since this run was trained."""
        if not (self.folder / CODE_FILE).exists():  # no own classes, or a run of an earlier version
            return []
        hashes = hash_user_code(self.recipe, self.model if model is None else model)
        path = self.folder / CODE_FILE
        return list_differing_classes(validate(dict[str, str], read_json_object(path), str(path)), hashes)

    def count_measured_problems(self, seed: int = 0) -> dict[tuple[tuple[int, ...], str, str], int]:
        """Return the largest number of problems that a score counts, by sizes, kind of problems and stopping rule.
        Scores of another ``seed``, and of families that were measured by name, are ignored."""
        counts: dict[tuple[tuple[int, ...], str, str], int] = {}
        for row in self.rows("scores"):
            if row.get("seed") == seed and row.get("family") != "alone":
                key = tuple(row["sizes"]), row["problems"], row["stopping"]
                counts[key] = max(counts.get(key, 0), row["count"])
        return counts

    def weights(self, device: str | torch.device = "cpu") -> Weights:
        """Load the trained model onto a device. Raises UsageError if training has not ended."""
        return load(self.folder, device)

    # The training state

    def save_state(self, state: dict[str, Any], file_name: str = "state.pt") -> None:
        """Write a training state: the checkpoint or, under another ``file_name``, the final state."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write(self.folder / file_name, buffer.getvalue(), make_folder=False)  # fails if the folder has vanished

    def remove_state(self) -> None:
        """Remove the checkpoint after training has ended."""
        if (path := self.folder / "state.pt").exists():  # on a read-only disk, unlinking a missing file fails too
            remove(path)

    def load_state(self, file_name: str = "state.pt") -> dict[str, Any] | None:
        """Load a training state onto the CPU: the last checkpoint or, under another ``file_name``, the final state.
        Return None if there is no such file. Raises UsageError if the file is damaged."""
        path = self.folder / file_name
        if not path.exists():
            return None
        try:
            content = read_bytes(path, compute_max_tensor_bytes())
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
        try:
            with warnings.catch_warnings(action="ignore"):
                state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except Exception:  # torch has many errors for damaged files; their messages often advise to trust the file
            state = None
        if not isinstance(state, dict):
            raise UsageError(f"{path}: not a checkpoint, or a damaged one; delete it to start over")
        return state


def read_git_commit() -> str:
    """Return the git commit of this package's code, with ``+`` if files are changed; empty outside a checkout."""
    describe = ["git", "-C", str(Path(__file__).parents[1]), "describe", "--always", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(describe, capture_output=True, text=True, timeout=10).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""
