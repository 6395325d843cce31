"""Runs and weights: a run's folder together with its recipe, model and checkpoint."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor, nn

from lengthwise.base.errors import NotImported, UsageError, clean, quote_value
from lengthwise.base.fields import suggest
from lengthwise.base.files import (
    check_no_link,
    inside,
    is_folder,
    one_line,
    path_of,
    read_bytes,
    read_text,
    read_tree,
    regular,
    remove,
    write,
    write_json,
)
from lengthwise.base.formatting import as_html, as_text
from lengthwise.base.quantities import duration
from lengthwise.base.results import RunOutline, Score
from lengthwise.base.score_rows import latest, share_text, size_text
from lengthwise.base.streams import suppress_warnings
from lengthwise.experiment.outline import outline
from lengthwise.experiment.own_code import changed_classes, own_code
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.resources import memory, of_model
from lengthwise.hub import PREFIX, fetch, place
from lengthwise.models import Model
from lengthwise.report.scored import Scores
from lengthwise.runs.folder import SHIPPED, RunFolder, list_shipped, run_path, runs_folder

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FINAL = "final.pt"  # the state at the end of a training, for others that go on from it
CODE = "code.json"  # what code of a user's own a run was trained with
MAX_NUMBERS_BYTES = 2**34  # of weights or a checkpoint; the largest model that is meant here has a hundredth of that


WRITTEN = (
    "config.json",
    "metrics.jsonl",
    "state.pt",
    FINAL,
    "model.safetensors",
    "about.json",
    "failed.json",
    CODE,
)  # in training


@dataclass(frozen=True)
class Weights:
    """A trained model with its recipe."""

    name: str
    recipe: Recipe
    model: Model


def load(weights: str | Path, device: str | torch.device = "cpu") -> Weights:
    """Load weights by their shipped name, from a folder with config.json and model.safetensors, e.g. a run's, or from
    the Hub: ``hf:user/name``, ``hf:user/name@revision``.

    Raises UsageError if a file is missing, damaged, or does not fit the recipe. No file can run code.
    """
    chosen, folder = choose_device(device), weights_folder(weights)
    recipe = read_recipe(folder)
    path = regular(folder / "model.safetensors")
    if not path.is_file():
        raise UsageError(f"{folder}: there is no model.safetensors: has its training ended?")
    of_model(recipe).check(f"{folder}: its model")
    model = recipe.build()
    try:
        model.load_state_dict(rename_parameters(load_tensors(read_bytes(path, max_numbers()))))
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path}: not a whole safetensors file ({one_line(error)})") from None
    except RuntimeError as error:
        raise UsageError(f"{path}: these weights do not fit the recipe beside them ({one_line(error)})") from None
    return Weights(name_of(weights, folder), recipe, model.to(chosen).eval())


def weights_folder(weights: str | Path) -> Path:
    """The folder of weights: as it is, by its name among the runs, by a shipped name, or ``hf:user/name`` from the Hub.
    Raises UsageError if there is none."""
    if not isinstance(weights, (str, Path)):
        raise UsageError(f"weights are named by a folder or a name, not by {quote_value(weights)}")
    if str(weights).startswith(PREFIX):
        return fetch(str(weights))
    for folder in (path_of(weights), runs_folder() / weights):
        if is_folder(folder):
            return folder
    if str(weights) in list_shipped():
        return SHIPPED / str(weights)
    near = suggest(str(weights), list_shipped())
    raise UsageError(f"{weights}: neither a folder nor one of the shipped weights: {', '.join(list_shipped())}{near}")


def name_of(weights: str | Path, folder: Path) -> str:
    """What weights are called: the Hub's folders have the names of commits."""
    return place(str(weights)).repository if str(weights).startswith(PREFIX) else clean(folder.resolve().name)


def choose_device(name: str | torch.device) -> torch.device:
    """The device with this name; ``auto`` is a CUDA GPU if there is one, else one of MPS (Apple), else the CPU. Raises
    UsageError if the device is missing."""
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if str(name) == "cuda" and from_torchrun():  # each of its processes has a GPU of its own
        name = f"cuda:{os.environ['LOCAL_RANK']}"
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # some devices, e.g. meta, compute nothing
    except (RuntimeError, AssertionError, TypeError, ValueError):
        here = ["auto", "cpu", *["cuda"] * torch.cuda.is_available(), *["mps"] * torch.backends.mps.is_available()]
        raise UsageError(f"device: {quote_value(name)} is not here; there are: {', '.join(here)}") from None
    return device


def from_torchrun() -> bool:
    """Has torchrun started this process?"""
    return "TORCHELASTIC_RUN_ID" in os.environ


def read_recipe(folder: Path) -> Recipe:
    """Read the recipe of a folder. Raises UsageError if there is none."""
    text = read_text(folder / "config.json")
    try:
        return Recipe.read(text)
    except UsageError as error:
        kind = NotImported if isinstance(error, NotImported) else UsageError
        raise kind(f"{folder / 'config.json'}: {error}") from None


def rename_parameters(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights by the present names of parameters. Before version 0.2 a block's mixer was always called attention."""
    old = re.compile(r"^((?:module\.)?blocks\.\d+\.)(norm_)?attention\.")
    return {old.sub(r"\1\2mixer.", name): weight for name, weight in weights.items()}


def max_numbers() -> float:
    """Bytes of weights or of a checkpoint that are read at most: what this machine may hold, within bounds."""
    return min(MAX_NUMBERS_BYTES, memory())


def check_kept(weights: Mapping[str, object]) -> None:
    """Raise UsageError where model.safetensors cannot hold one of these weights."""
    for name, value in weights.items():
        if not isinstance(value, Tensor):
            raise UsageError(f"{name}: weights are kept as tensors, and this is a {type(value).__name__}")
        try:
            dump_tensors({name: torch.empty(0, dtype=value.dtype)})
        except KeyError:
            raise UsageError(f"{name}: model.safetensors cannot hold numbers of {value.dtype}") from None


def save(folder: Path, recipe: Recipe, weights: dict[str, Tensor]) -> None:
    """Write config.json and model.safetensors."""
    _write_recipe(folder, recipe)
    # A copy each: the format refuses tensors that share memory, as those of a tied embedding and read-out do.
    alone = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in weights.items()}
    write(folder / "model.safetensors", dump_tensors(alone))


def _write_recipe(folder: Path, recipe: Recipe) -> None:
    write(folder / "config.json", (recipe.json() + "\n").encode())


class Run(RunFolder):
    """A run: its folder, recipe, weights and checkpoint."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        super().__init__(folder)
        self.recipe = recipe

    @staticmethod
    def of(recipe: Recipe, folder: Path | None = None) -> Run:
        """The run of a recipe; its folder is created if needed. Raises UsageError if it holds another recipe,
        or is a link among the runs."""
        run = Run(folder, recipe) if folder else Run.locate(recipe)
        if not folder:
            inside(runs_folder(), run.folder.name)
        if (run.folder / "config.json").exists():
            if read_recipe(run.folder).id != recipe.id:
                raise UsageError(f"{run.folder}: holds a run of another recipe; name another folder")
        else:
            _write_recipe(run.folder, recipe)
        return run

    @staticmethod
    def locate(recipe: Recipe) -> Run:
        """The run of a recipe, whether or not its folder exists; nothing is created or read."""
        return Run(runs_folder() / f"{recipe.name}-{recipe.id}", recipe)

    @staticmethod
    def open(folder: str | Path) -> Run:
        """Open an existing run by its folder or its folder's name. Raises UsageError if there is none."""
        path = run_path(folder)
        return Run(path, read_recipe(path))

    def config(self) -> dict[str, Any]:
        """The recipe as plain values, with defaults for fields that its file lacks."""
        return json.loads(self.recipe.json())

    @cached_property
    def outline(self) -> RunOutline:
        """The facts of the recipe that a report shows."""
        return outline(self.recipe)

    @cached_property
    def model(self) -> Model:
        """The trained model, on the CPU. UsageError if training has not ended."""
        return self.weights().model

    def hold_code(self, model: nn.Module) -> None:
        """Keep which code of a user's own trains this run. Raises UsageError if it is not what it was, or if a file
        that training will write is a link."""
        for name in () if self.done else WRITTEN:
            check_no_link(self.folder / name)
        if not self.done and not (self.folder / "state.pt").exists():  # nothing is trained yet
            if (now := own_code(self.recipe, model)) or (self.folder / CODE).exists():
                write_json(self.folder / CODE, now)
        elif changed := self.changed_code(model):
            raise UsageError(
                f"{self.folder}: {', '.join(changed)} changed since this run was trained; name=… makes another run, or "
                "delete the folder"
            )

    def changed_code(self, model: nn.Module | None = None) -> list[str]:
        """The classes of a user's own that are not as they were when this run was trained, in its ``model`` and
        recipe."""
        if not (self.folder / CODE).exists():  # it has none, or an earlier version began it
            return []
        return changed_classes(
            read_tree(self.folder / CODE), own_code(self.recipe, self.model if model is None else model)
        )

    @property
    def scores(self) -> Scores:
        """What it was measured on, and kept: empty before it is. Of a size measured more than once, the score that
        counts."""
        names = [field.name for field in fields(Score)]
        rows: list[dict[str, Any]] = [
            {"whole_row": None} | row | {"sizes": tuple(row["sizes"])} for row in latest(self.rows("scores"))
        ]
        return Scores([Score(**{name: row[name] for name in names if name in row}) for row in rows], self.outline)

    def measured(self, seed: int = 0) -> dict[tuple[tuple[int, ...], str, str], int]:
        """On how many problems of this seed each size was measured, by size, kind of problems and stopping rule;
        without families that were asked for by name."""
        found: dict[tuple[tuple[int, ...], str, str], int] = {}
        for row in self.rows("scores"):
            if row.get("seed") == seed and row.get("family") != "alone":
                key = tuple(row["sizes"]), row["problems"], row["stopping"]
                found[key] = max(found.get(key, 0), row["count"])
        return found

    def plot(self, title: str | None = None) -> Figure:
        """Exact match against length or, before it is measured, the loss against steps. UsageError where there is
        neither."""
        if self.rows("scores"):
            return self.scores.plot(title)
        from lengthwise.report.loss_figure import loss_figure  # late: matplotlib is slow to import

        return loss_figure([self])

    def _repr_html_(self) -> str:
        return as_html(repr(self), self._facts())

    def __str__(self) -> str:
        return as_text(repr(self), self._facts())

    def _facts(self) -> list[tuple[str, str]]:
        about, scores, own = self.about(), self.scores, self.recipe.stopping.name
        rule = own if own in scores.rules else next(iter(scores.rules), own)
        ended = f"trained in {duration(about['wall_s'])}" if about else "training has not ended"
        measured = [one for one in scores if (one.problems, one.stopping) == ("uniform", rule)]
        shares = [f"{size_text(one.sizes)}: {share_text(one.exact, 3)}" for one in measured]
        what = "exact match" if rule == own else f"exact match, {rule}"
        return [("recipe", self.recipe.name), ("seed", str(self.recipe.seed)), ("training", ended),
                (what, ", ".join(shares) or "not measured yet")]  # fmt: skip

    def weights(self, device: str | torch.device = "cpu") -> Weights:
        """Load the trained model. Raises UsageError if training has not ended."""
        return load(self.folder, device)

    # The training state

    def save_state(self, state: dict[str, Any], name: str = "state.pt") -> None:
        """Replace the checkpoint, or what is kept at the end of training."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write(self.folder / name, buffer.getvalue(), make=False)  # one that has vanished is noticed

    def forget_state(self) -> None:
        """Remove the checkpoint of a training that has ended."""
        if (path := self.folder / "state.pt").exists():  # on a read-only disk, removing what is not there fails too
            remove(path)

    def state(self, name: str = "state.pt") -> dict[str, Any] | None:
        """Load the last checkpoint, onto the CPU; None if there is none. Raises UsageError if the file is damaged."""
        path = regular(self.folder / name)
        if not path.exists():
            return None
        try:
            content = read_bytes(path, max_numbers())
        except OSError as error:
            raise UsageError(f"{path}: cannot be read ({error.strerror})") from None
        try:
            with suppress_warnings():
                state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except Exception:  # whatever torch says of foreign bytes, often advice to trust them
            state = None
        if not isinstance(state, dict):
            raise UsageError(f"{path}: not a checkpoint, or a damaged one; delete it to start over")
        return state


def commit() -> str:
    """The git commit of this code, with ``+`` if files are changed; empty outside a checkout."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, timeout=10)
        status = subprocess.run(
            [*git, "status", "--porcelain", "-uno", "."], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return head.stdout.strip() + ("+" if status.stdout.strip() else "") if head.returncode == 0 else ""
