"""The run folder, and weights on disk: the only code that touches files of results.

A run is ``runs/<name>-<id>/`` (or under ``$LENGTHWISE_RUNS``):

    config.json         the recipe                      } a folder of weights, in the Hugging Face
    model.safetensors   the weights that are evaluated  } layout; here once training is done
    metrics.jsonl       what training measured, a row per line
    scores.jsonl        what evaluation measured, a row per line
    depth.jsonl         what every loop would have answered, a row per size
    anatomy.jsonl       how answers went wrong, a row per size
    state.pt            all that resuming needs
    about.json          versions, commit, device, time

Every file is replaced whole or appended to; nothing is ever half-written. No file can make code run.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as dump_tensors
from torch import Tensor

from lengthwise.base.types import UsageError
from lengthwise.models import Model
from lengthwise.recipe.recipe import Recipe

SHIPPED = Path(__file__).parent / "weights"


@dataclass(frozen=True)
class Weights:
    """A trained model, ready to answer, with the recipe that made it."""

    name: str
    recipe: Recipe
    model: Model


def shipped() -> list[str]:
    """The names of the weights that come with the package."""
    return sorted(path.parent.name for path in SHIPPED.glob("*/config.json"))


def load(weights: str | Path, device: str | torch.device = "cpu") -> Weights:
    """Weights by their shipped name, or from a run's or any other folder with config.json and model.safetensors.

    UsageError says what is missing or wrong; nothing in a file is ever run.
    """
    folder = Path(weights)
    if not folder.is_dir():
        if str(weights) not in shipped():
            raise UsageError(f"{weights}: neither a folder nor one of the shipped weights: {', '.join(shipped())}")
        folder = SHIPPED / str(weights)
    recipe = read_recipe(folder)
    path = folder / "model.safetensors"
    if not path.is_file():
        raise UsageError(f"{folder}: there is no model.safetensors: has its training ended?")
    model = recipe.build()
    try:
        model.load_state_dict(load_tensors(path.read_bytes()))
    except (SafetensorError, OSError) as error:
        raise UsageError(f"{path}: not a whole safetensors file ({_line(error)})") from None
    except RuntimeError as error:
        raise UsageError(f"{path}: these weights do not fit the recipe beside them ({_line(error)})") from None
    return Weights(folder.resolve().name, recipe, model.to(device).eval())


def read_recipe(folder: Path) -> Recipe:
    """The recipe of a folder. UsageError where there is none."""
    try:
        return Recipe.read((folder / "config.json").read_text())
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"{folder}: its config.json cannot be read ({reason})") from None
    except UsageError as error:
        raise UsageError(f"{folder / 'config.json'}: {error}") from None


def save(folder: Path, recipe: Recipe, weights: dict[str, Tensor]) -> None:
    """Write config.json and model.safetensors."""
    write(folder / "config.json", (recipe.json() + "\n").encode())
    write(folder / "model.safetensors", dump_tensors({k: v.detach().cpu().contiguous() for k, v in weights.items()}))


def write(path: Path, content: bytes) -> None:
    """Replace a file, whole or not at all. UsageError where the disk refuses."""
    with _disk(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with part.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


def write_json(path: Path, tree: Any) -> None:
    """Replace a file by a tree of plain values. UsageError where the disk refuses."""
    write(path, (json.dumps(tree, indent=1) + "\n").encode())


def _cut_short(file: BinaryIO) -> bool:
    """Does a file of lines end amid one?"""
    if file.seek(0, os.SEEK_END) == 0:
        return False
    file.seek(-1, os.SEEK_END)
    return file.read() != b"\n"


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"{folder}: cannot write there ({error.strerror or error})") from None


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


def runs_folder() -> Path:
    """Where runs are kept."""
    return Path(os.environ.get("LENGTHWISE_RUNS", "runs"))


class Folder:
    """A folder with files of rows, which are only appended to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"

    def append(self, name: str, *rows: dict[str, Any]) -> None:
        """Add rows to ``<name>.jsonl``; a last line cut short is dropped."""
        with _disk(self.folder), (self.folder / f"{name}.jsonl").open("ab+") as file:
            if _cut_short(file):
                file.seek(0)
                file.truncate(file.read().rfind(b"\n") + 1)
            file.write("".join(json.dumps(row) + "\n" for row in rows).encode())

    def rows(self, name: str) -> list[dict[str, Any]]:
        """All rows of ``<name>.jsonl``; a last line cut short by a crash does not count. UsageError if a line is none
        of ours."""
        path = self.folder / f"{name}.jsonl"
        try:
            rows = [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
        except FileNotFoundError:
            return []
        except ValueError as error:
            raise UsageError(f"{path}: a line is not JSON ({_line(error)})") from None
        if not all(isinstance(row, dict) for row in rows):
            raise UsageError(f"{path}: a line is not a row")
        return rows


class Run(Folder):
    """One run's folder: rows of ``metrics``, ``scores``, ``depth`` and ``anatomy``, weights and the training state."""

    def __init__(self, folder: Path, recipe: Recipe) -> None:
        super().__init__(folder)
        self.recipe = recipe

    @staticmethod
    def of(recipe: Recipe, folder: Path | None = None) -> Run:
        """The run of this recipe, new or begun. UsageError if the folder holds another recipe."""
        run = Run(folder, recipe) if folder else place_of(recipe)
        if (run.folder / "config.json").exists():
            if read_recipe(run.folder).id != recipe.id:
                raise UsageError(f"{run.folder}: holds a run of another recipe; name another folder")
        else:
            write(run.folder / "config.json", (recipe.json() + "\n").encode())
        return run

    @staticmethod
    def open(folder: str | Path) -> Run:
        """A run that exists: its folder, or a folder's name among the runs. UsageError where there is none."""
        path = Path(folder)
        if not path.is_dir() and (runs_folder() / path).is_dir():
            path = runs_folder() / path
        if not path.is_dir():
            raise UsageError(f"{folder}: there is no such run; `lengthwise list` shows those that are there")
        return Run(path, read_recipe(path))

    @property
    def done(self) -> bool:
        return (self.folder / "model.safetensors").exists()

    def weights(self, device: str | torch.device = "cpu") -> Weights:
        """The trained model. UsageError if training has not ended."""
        return load(self.folder, device)

    def cut(self, name: str, step: int) -> None:
        """Drop rows of later steps: what was logged after the last checkpoint will be logged again."""
        rows = self.rows(name)
        if not all(isinstance(row.get("step"), int) for row in rows):
            raise UsageError(f"{self.folder / name}.jsonl: a row has no step")
        kept = [json.dumps(row) + "\n" for row in rows if row["step"] <= step]
        write(self.folder / f"{name}.jsonl", "".join(kept).encode())

    # The training state

    def save_state(self, state: dict[str, Any]) -> None:
        """Replace the checkpoint."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write(self.folder / "state.pt", buffer.getvalue())

    def state(self, device: torch.device) -> dict[str, Any] | None:
        """The last checkpoint, or None. UsageError if the file is damaged or is not one."""
        path = self.folder / "state.pt"
        if not path.exists():
            return None
        try:
            state = torch.load(path, map_location=device, weights_only=True)
            if not isinstance(state, dict):
                raise ValueError(f"it holds a {type(state).__name__}")
            return state
        except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
            raise UsageError(
                f"{path}: not a checkpoint that can be resumed ({_line(error)}); delete it to start over"
            ) from None

    def describe(self, about: dict[str, Any]) -> None:
        """Write about.json."""
        write(self.folder / "about.json", (json.dumps(about, indent=1) + "\n").encode())

    def about(self) -> dict[str, Any]:
        """Versions, commit, device and time of a finished run; empty while it is not. UsageError if it is damaged."""
        try:
            return json.loads((self.folder / "about.json").read_bytes())
        except FileNotFoundError:
            return {}
        except ValueError as error:
            raise UsageError(f"{self.folder / 'about.json'}: not JSON ({_line(error)})") from None


def commit() -> str:
    """The commit of the code that runs, with ``+`` where files were changed; empty outside a checkout."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, timeout=10)
        status = subprocess.run(
            [*git, "status", "--porcelain", "-uno", "."], capture_output=True, text=True, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return head.stdout.strip() + ("+" if status.stdout.strip() else "") if head.returncode == 0 else ""


def place_of(recipe: Recipe) -> Run:
    """The run of a recipe where it would be among the runs; nothing is made or read."""
    return Run(runs_folder() / f"{recipe.name}-{recipe.id}", recipe)
