"""What several verbs make of the command line: the text of options → objects."""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from lengthwise import catalog
from lengthwise.base import fields, literals
from lengthwise.base.errors import NotImported, quote_value
from lengthwise.base.extras import library
from lengthwise.base.files import is_folder, one_line, parse_object, read_bytes
from lengthwise.base.results import AnySize
from lengthwise.base.types import Kind, UsageError
from lengthwise.experiment import resources
from lengthwise.experiment.recipe import Recipe, check_stopping
from lengthwise.experiment.stopping import After, Stopping
from lengthwise.hub import PREFIX
from lengthwise.jobs.launchers import Launcher, Local
from lengthwise.jobs.ray_cluster import Ray
from lengthwise.jobs.slurm import Slurm
from lengthwise.run import Run, choose_device, read_recipe, weights_folder
from lengthwise.training.arithmetic import Matmul

# Sizes


def parse_sizes(text: str) -> list[AnySize]:
    """``8,12,16`` · ``1-60`` · ``10-100:10`` (every tenth); for a task of two sizes ``2x15`` · ``1-20x1-40`` (every
    pair); or several with commas, each once. UsageError in one line otherwise, and where no machine holds as many."""
    parts = [_spans_of(part.strip()) for part in text.split(",")]
    resources.of_sizes(sum(math.prod(map(len, spans)) for spans in parts)).check(f"{text[:40]}: a row for each size")
    return list(
        dict.fromkeys(size for spans in parts for size in (itertools.product(*spans) if spans[1:] else spans[0]))
    )


def parse_grid(text: str) -> list[AnySize]:
    """``20x40``: every pair up to 20 and 40. UsageError as for sizes, and where there is no pair."""
    if "x" not in text:
        raise UsageError(f"{text[:40]!r} is no grid: write 20x40 for every pair up to 20 and 40")
    return parse_sizes(re.sub(r"(?<![\d-])(\d+)x(\d+)(?![\d-])", r"1-\1x1-\2", text))


def _spans_of(part: str) -> list[range]:
    """The sizes that a part names, axis by axis."""
    spans = []
    for axis in part.split("x"):
        match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18})(?::(\d{1,18}))?)?", axis)
        low, high, step = (int(match[1]), int(match[2] or match[1]), int(match[3] or 1)) if match else (0, 0, 0)
        spans.append(range(low, high + 1, step) if low and step else range(0))
    if len(spans) > 2 or not all(spans):
        raise UsageError(f"{part[:40]!r} names no sizes: write 8,12,16 or 1-60 or 10-100:10 or 2x15, from 1 up")
    return spans


def parse_size(text: str, axes: int) -> tuple[int, ...]:
    """One size, ``5`` or ``5x3``; a bare number is taken on all axes. UsageError if it is none."""
    if not re.fullmatch(r"\d{1,18}(x\d{1,18})*", text):
        raise UsageError(f"{text[:40]!r} is no size: write 5, or 5x3 for a task of two sizes")
    size = tuple(int(part) for part in text.split("x"))
    return size * axes if len(size) == 1 else size


# Problems


def further_kinds(args: argparse.Namespace) -> list[Kind]:
    """The kinds of problems that have an option of their own, of those asked for."""
    return [kind for kind in ("hard", "natural") if getattr(args, kind)]


def kind_of(args: argparse.Namespace) -> Kind:
    """The kind of problems asked for. UsageError if there are two."""
    kinds = further_kinds(args) + ([args.family] if getattr(args, "family", None) else [])
    if len(kinds) > 1:
        raise UsageError(
            "--family stands alone" if len(further_kinds(args)) < 2 else "give --hard or --natural, not both"
        )
    return kinds[0] if kinds else "uniform"


# Recipes and folders


def recipe_of(name: str, changes: Sequence[str]) -> Recipe:
    """A recipe by name, or of a run, or of weights on the Hub, or from a JSON file."""
    path = Path(name)
    if name.startswith(PREFIX):
        return read_recipe(weights_folder(name)).change(changes)
    if is_folder(path):
        return Run.open(path).recipe.change(changes)
    if path.suffix in (".json", ".yaml", ".yml"):
        return _read(path).change(changes)
    if path.suffix in (".toml", ".ini", ".cfg", ".txt") or (path.suffix == ".py" and path.is_file()):
        own = f"name a recipe, and import the module that defines it: RECIPE --import {path.stem}"
        files = "a recipe's file is JSON or YAML, as `lengthwise show RECIPE --json` prints it, or name a recipe"
        raise UsageError(f"{path}: {own if path.suffix == '.py' else files}")
    return catalog.recipe(name, changes)


def _read(path: Path) -> Recipe:
    try:
        return _recipe_in(read_bytes(path).decode(), path)
    except NotImported as error:
        raise NotImported(f"{path}: {error}") from None
    except (OSError, UsageError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"{path}: not a recipe that can be read ({reason})") from None


def _recipe_in(text: str, path: Path) -> Recipe:
    """A recipe from a file's text: all of it, as ``show --json`` prints it; or ``recipe: NAME`` and changed fields."""
    if path.suffix == ".json":
        tree = parse_object(text, "it is")
    else:
        yaml = library("yaml", "yaml", "to read YAML takes PyYAML")
        try:
            tree = _numbers(yaml.safe_load(text))
        except yaml.YAMLError as error:
            raise UsageError(f"not YAML: {one_line(error)}") from None
    recipe = tree.get("recipe", tree) if isinstance(tree, dict) else tree
    if not isinstance(recipe, str):
        return Recipe.read(json.dumps(recipe))
    changes = [f"{name}={value if isinstance(value, str) else json.dumps(value)}" for name, value in tree.items()
               if name != "recipe"]  # fmt: skip
    return catalog.recipe(recipe, [change.replace("=null", "=none") for change in changes])


def _numbers(tree: Any) -> Any:
    """A tree of YAML's, in which 1e-3 is a number, as it is in JSON."""
    if isinstance(tree, dict):
        return {str(name): _numbers(value) for name, value in tree.items()}
    if isinstance(tree, list):
        return [_numbers(value) for value in tree]
    is_number = isinstance(tree, str) and re.fullmatch(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+", tree)
    return float(tree) if is_number else tree


def check_seeds(recipe: Recipe) -> None:
    """UsageError for a recipe whose problems are those of another seed, where each seed draws its own."""
    if recipe.data_seed not in (0, recipe.seed):
        raise UsageError(f"data_seed={recipe.data_seed}: every seed draws problems of its own here: leave it out")


def seeds_of(recipe: Recipe, first: int | None, count: int) -> list[Recipe]:
    """Replicates that share neither weights nor problems. UsageError where the recipe chooses problems by itself."""
    if first is None and count == 1:
        return [recipe]
    check_seeds(recipe)
    start = recipe.seed if first is None else first
    return [recipe.seeded(seed) for seed in range(start, start + count)]


# Stopping rules


def rules_of(args: argparse.Namespace, recipe: Recipe) -> list[Stopping]:
    """The stopping rules asked for, else the recipe's own. UsageError where one is wrong, or does not suit the recipe's
    layout."""
    rules = stoppings(args.stopping) + _after(getattr(args, "loops", None)) or [recipe.stopping]
    for rule in rules:
        check_stopping(recipe.layout, rule)
    return rules


def only_rule(args: argparse.Namespace) -> Stopping | None:
    """The stopping rule asked for, if one is. UsageError where there are several."""
    if len(args.stopping) > 1:
        raise UsageError(f"{args.verb} answers by one rule: give --stopping once")
    return next(iter(stoppings(args.stopping)), None)


def stoppings(texts: Sequence[str]) -> list[Stopping]:
    """Stopping rules as they are typed. UsageError where one is wrong."""
    return [fields.decode(Stopping, literals.parse(text, "--stopping"), "--stopping") for text in texts]


def _after(loops: str | None) -> list[Stopping]:
    """A rule for each number of ``1,8,16``."""
    if not loops:
        return []
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", loops):
        raise UsageError(f"--loops: numbers from 1 up with commas, e.g. 1,8,16, not {loops!r}")
    return [After(int(count)) for count in loops.split(",")]


# Processes


def jobs_of(args: argparse.Namespace) -> int:
    """Processes at a time."""
    return min(2, os.cpu_count() or 1) if args.jobs is None else args.jobs


def check_stack(args: argparse.Namespace) -> None:
    """UsageError for options that do not go with a stack."""
    if args.stack and args.compile:
        raise UsageError("--stack computes all seeds together, uncompiled: leave --compile out")


def engine(args: argparse.Namespace) -> Launcher:
    """Where to train, as it is typed: ``local``, ``slurm``, ``ray`` or ``Slurm(partition=main, minutes=60)``."""
    value = literals.parse(args.on, "--on")
    if isinstance(value, str):
        value = {engine.__name__.lower(): engine.__name__ for engine in (Local, Ray, Slurm)}.get(value.lower(), value)
    return fields.decode(Launcher, value, "--on")


def local_device(args: argparse.Namespace) -> tuple[torch.device, Matmul]:
    """The device and the arithmetic with which something can be tried in this process: those asked for, but where other
    machines train, which may have a GPU that is not here, a CPU. UsageError for a device that is not here, or is none.
    """
    if isinstance(engine(args), Local):
        return choose_device(args.device), args.matmul
    try:
        if args.device != "auto":
            torch.device(args.device)
    except RuntimeError:
        raise UsageError(f"device: {quote_value(args.device)} is no device; say cuda, cpu or auto") from None
    elsewhere = args.matmul == "tf32" and args.device != "cpu"  # which a CPU does not know
    return torch.device("cpu"), "fp32" if elsewhere else args.matmul


def training_options(args: argparse.Namespace) -> list[str]:
    """The options that every process of training is given too."""
    allowed = ["--allow-divergence"] * args.allow_divergence
    return [
        "--device",
        args.device,
        "--matmul",
        args.matmul,
        *["--compile"] * args.compile,
        *allowed,
        *(word for name in vars(args)["import"] for word in ("--import", name)),
    ]
