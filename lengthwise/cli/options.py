"""Convert the text of command-line options, shared by several commands, to objects."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import os
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch

from lengthwise.api import After, Stopping, Task, UsageError, catalog
from lengthwise.base import fields, literals
from lengthwise.base.errors import quote_value
from lengthwise.base.extras import import_library
from lengthwise.base.files import format_error, read_json_object, read_text
from lengthwise.base.results import AnySize
from lengthwise.base.types import Kind
from lengthwise.cli.parser import format_flag
from lengthwise.cli.shared import KindOptions, MeasurementOptions, TrainingOptions
from lengthwise.experiment import resources
from lengthwise.experiment.recipe import Recipe, check_stopping
from lengthwise.jobs.launchers import Launcher, Local
from lengthwise.jobs.ray_cluster import Ray
from lengthwise.jobs.slurm import Slurm
from lengthwise.runs.folder import find_run
from lengthwise.runs.hub import HUB_PREFIX
from lengthwise.runs.run import Run, choose_device, find_weights_folder, read_recipe
from lengthwise.training.arithmetic import Matmul

# Sizes


def parse_sizes(text: str) -> list[AnySize]:
    """Parse sizes and ranges, separated by commas: ``8,12,16``, ``1-60``, ``10-100:10`` (every tenth) or, for a task
    with two axes, ``2x15`` or ``1-20x1-40`` (every pair). Duplicates are dropped."""
    parts: list[list[range]] = []  # for each part of the list, such as 1-20x1-40, the range of each axis
    for part in map(str.strip, text.split(",")):
        spans = []
        for axis in part.split("x"):
            match = re.fullmatch(r"(\d{1,18})(?:-(\d{1,18})(?::(\d{1,18}))?)?", axis)
            low, high, step = (int(match[1]), int(match[2] or match[1]), int(match[3] or 1)) if match else (0, 0, 0)
            spans.append(range(low, high + 1, step) if low and step else range(0))
        if len(spans) > 2 or not all(spans):
            raise UsageError(f"{part[:40]!r} names no sizes: write 8,12,16 or 1-60 or 10-100:10 or 2x15, from 1 up")
        parts.append(spans)
    count = sum(math.prod(map(len, spans)) for spans in parts)
    resources.ResourceEstimate(2000.0 * count, 0).check(f"{text[:40]}: a row for each size")
    sizes: list[AnySize] = []
    for spans in parts:
        sizes += itertools.product(*spans) if spans[1:] else spans[0]
    return list(dict.fromkeys(sizes))


def parse_task_sizes(task: Task, text: str) -> list[tuple[int, ...]]:
    """Parse sizes for a task: a bare number applies to all of its axes."""
    return [size if isinstance(size, tuple) else (size,) * len(task.axes) for size in parse_sizes(text)]


def parse_grid(text: str) -> list[AnySize]:
    """Parse a grid such as ``20x40``: every pair up to 20 and 40. Raises UsageError for any other text."""
    if "x" not in text:
        raise UsageError(f"{text[:40]!r} is not a grid: write 20x40 for every pair up to 20 and 40")
    parse_sizes(text)  # refuses wrong sizes as they were typed
    return parse_sizes(re.sub(r"(?<![\d-])(\d+)x(\d+)(?![\d-])", r"1-\1x1-\2", text))


# Problems


def list_extra_kinds(args: KindOptions, task: Task) -> list[Kind]:
    """Return the kinds of problems requested by --hard or --natural."""
    if args.hard and not task.has_harder_set:
        raise UsageError(f"--hard: {task.name} has no harder set of problems; omit --hard")
    return [kind for kind in ("hard", "natural") if getattr(args, kind)]


def choose_kind(args: KindOptions, task: Task) -> Kind:
    """Return the requested kind of problems. Raises UsageError if there are several, or if the task lacks the kind."""
    kinds, family = list_extra_kinds(args, task), getattr(args, "family", None)
    if len(kinds) > 1:
        raise UsageError("give --hard or --natural, not both")
    if kinds and family:
        raise UsageError("--family cannot be combined with --hard or --natural")
    return family or (kinds[0] if kinds else "uniform")


# Recipes and folders


def find_recipe(name: str, changes: Sequence[str]) -> Recipe:
    """Return a recipe with ``changes``, given its name, a run, weights on the Hub, or a JSON or YAML file."""
    path = Path(name)
    if name.startswith(HUB_PREFIX):
        return read_recipe(find_weights_folder(name)).change(changes)
    if folder := find_run_folder(name):
        return Run.open(folder).recipe.change(changes)
    if path.suffix in (".json", ".yaml", ".yml"):
        return _read_recipe_file(path).change(changes)
    if path.suffix and path.is_file():  # names of recipes have no suffix
        raise UsageError(f"{path}: a recipe's file is JSON or YAML; for a module's recipe, give RECIPE --import MODULE")
    return catalog.find_recipe(name, changes)


def find_run_folder(name: str) -> Path | None:
    """Return a run's folder, given its path or its name in the folder of all runs; None if it is neither."""
    folder = find_run(name)
    is_path = folder == Path(name)  # in the folder of runs, a folder without a run may have a recipe's name
    return folder if folder and (is_path or (folder / "config.json").is_file()) else None


def _read_recipe_file(path: Path) -> Recipe:
    """Read a recipe from a file: all fields, as ``show --json`` prints them; or ``recipe: NAME`` and changed fields."""
    tree = read_json_object(path) if path.suffix == ".json" else _read_yaml(path)
    recipe = tree.get("recipe", tree) if isinstance(tree, dict) else tree
    try:
        if not isinstance(recipe, str):
            return Recipe.read(json.dumps(recipe))
        texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in tree.items()}
        texts |= {name: "none" for name, value in tree.items() if value is None}
        return catalog.find_recipe(recipe, [f"{name}={text}" for name, text in texts.items() if name != "recipe"])
    except UsageError as error:
        raise UsageError(f"{path}: not a recipe: {error}") from None


def _read_yaml(path: Path) -> Any:
    """Read a YAML file as JSON values. Raises UsageError if it cannot be read or is not YAML."""
    text, yaml = read_text(path), import_library("yaml", "yaml", "reading YAML needs PyYAML")
    try:
        # By YAML 1.1, 1e-3 is a text; here it is a number, as in JSON.
        loader: Any = type("Loader", (yaml.SafeLoader,), {})
        exponent = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$")
        loader.add_implicit_resolver("tag:yaml.org,2002:float", exponent, [*"-+0123456789"])
        return json.loads(json.dumps(yaml.load(text, loader), default=str))  # a date becomes text
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"{path}: not YAML: {format_error(error)}") from None


def check_data_seed(recipe: Recipe) -> None:
    """Raise UsageError if a recipe has a ``data_seed`` (0 means none) other than its seed: in training of several
    seeds, each draws its own problems."""
    if recipe.data_seed not in (0, recipe.seed):
        raise UsageError(f"data_seed={recipe.data_seed}: remove it, since each trained seed draws its own problems")


def replicate_recipe(recipe: Recipe, first_seed: int | None, count: int) -> list[Recipe]:
    """Return ``count`` copies of a recipe with consecutive seeds, from ``first_seed`` or else the recipe's own."""
    if first_seed is None and count == 1:
        return [recipe]
    check_data_seed(recipe)
    start = recipe.seed if first_seed is None else first_seed
    return [recipe.with_seed(seed) for seed in range(start, start + count)]


# Stopping rules


def choose_rules(args: MeasurementOptions, recipe: Recipe) -> list[Stopping]:
    """Return the requested stopping rules or, without any, the recipe's rule. Each must fit the recipe's layout."""
    loops = getattr(args, "loops", None) or ""
    if loops and not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", loops):
        raise UsageError(f"--loops: give numbers from 1 up, separated by commas, e.g. 1,8,16, not {loops!r}")
    rules = [*parse_rules(args.stopping), *(After(int(count)) for count in loops.split(",") if count)]
    rules = rules or [recipe.stopping]
    for rule in rules:
        check_stopping(recipe.layout, rule)
    return rules


def parse_single_rule(texts: Sequence[str]) -> Stopping | None:
    """Return the requested stopping rule, or None. Raises UsageError if there are several."""
    if len(texts) > 1:
        raise UsageError("this command uses a single rule: give --stopping once")
    return next(iter(parse_rules(texts)), None)


def parse_rules(texts: Sequence[str]) -> list[Stopping]:
    """Parse stopping rules. Raises UsageError if one is invalid."""
    return [fields.decode(Stopping, literals.parse_literal(text, "--stopping"), "--stopping") for text in texts]


# Processes


def resolve_jobs(jobs: int | None) -> int:
    """Return the number of concurrent processes: ``jobs`` or, if it is None, one per CPU core, at most 2."""
    return min(2, os.cpu_count() or 1) if jobs is None else jobs


def parse_launcher(args: TrainingOptions) -> Launcher:
    """Parse --on: ``local``, ``slurm``, ``ray`` or ``Slurm(partition=main, minutes=60)``."""
    value = literals.parse_literal(args.on, "--on")
    if isinstance(value, str):
        value = {engine.__name__.lower(): engine.__name__ for engine in (Local, Ray, Slurm)}.get(value.lower(), value)
    return fields.decode(Launcher, value, "--on")


def local_device(args: TrainingOptions) -> tuple[torch.device, Matmul]:
    """Return the device and the precision of matrix products for a trial in this process. They are the requested
    ones if this machine trains, else the CPU and a precision that it has, since this machine may lack a GPU."""
    if isinstance(parse_launcher(args), Local):
        return choose_device(args.device), args.matmul
    try:
        if args.device != "auto":
            torch.device(args.device)
    except RuntimeError:
        raise UsageError(f"device: {quote_value(args.device)} is not a device; use cuda, cpu or auto") from None
    needs_other = args.matmul == "tf32" and args.device != "cpu"  # a CPU has no tf32
    return torch.device("cpu"), "fp32" if needs_other else args.matmul


# Options that only the starting command uses: its training processes do not receive them.
CALL_OPTIONS = {"json", "quiet", "seeds", "jobs", "on", "dry_run", "measure"}


def list_training_options(args: TrainingOptions) -> list[str]:
    """Return the options that every training process receives too."""
    passed = {field.name for field in dataclasses.fields(TrainingOptions)} - CALL_OPTIONS
    return format_option_words(args, {field.name for field in dataclasses.fields(args)} - passed)


def format_option_words(args: Any, omitted_fields: Collection[str]) -> list[str]:
    """Return a command's options as words of a command line, except ``omitted_fields`` and those at their default."""
    words = []
    for field in dataclasses.fields(args):
        value, flag = getattr(args, field.name), format_flag(field.name)
        if field.name in omitted_fields or value == field.default or value == []:
            continue
        if value is True:
            words.append(flag)
        else:
            for item in [value] if isinstance(value, (str, int, float)) else value:
                words += [flag, str(item)]
    return words
