"""Convert Python callers' arguments to the package's types. An invalid argument raises UsageError."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from numbers import Integral
from pathlib import Path
from typing import Any

from torch import nn

from lengthwise.api import catalog
from lengthwise.base import fields
from lengthwise.base.errors import UsageError, quote_value
from lengthwise.base.results import AnySize
from lengthwise.experiment.layout import Layout, NextToken
from lengthwise.experiment.lengths import Lengths, Uniform
from lengthwise.experiment.loops import Constant, Loops
from lengthwise.experiment.optim import AdamW, Schedule
from lengthwise.experiment.recipe import Recipe
from lengthwise.experiment.stopping import Stopping
from lengthwise.models import Model, ModelSpec
from lengthwise.models.external import ExternalModule
from lengthwise.models.single_pass import SinglePass
from lengthwise.objectives import Final
from lengthwise.runs.run import Run, Weights, choose_device, find_weights_folder, read_recipe
from lengthwise.runs.run import load as load_weights
from lengthwise.tasks import Task
from lengthwise.training.checkpoint import continue_from

MAX_SIZE_COUNT = 10_000


def resolve_recipe(recipe: object, task: Task | str | None) -> Recipe:
    """Return the recipe that an argument means: a recipe, its name, or a user's own model with its task."""
    if isinstance(recipe, Recipe):
        return recipe
    if isinstance(recipe, str):
        return catalog.find_recipe(recipe)
    if isinstance(recipe, (ModelSpec, nn.Module)):
        if task is None:
            raise UsageError(f"{type(recipe).__name__}: name the task to train it on, e.g. task='parity'")
        built = build_recipe(recipe, task)
        if isinstance(built.model, ExternalModule) and isinstance(recipe, nn.Module):
            built.model.store_copy(recipe)
        return built
    raise UsageError(f"train takes a recipe, its name, a model's configuration or a torch module, not {quote(recipe)}")


def build_recipe(model: ModelSpec | nn.Module, task: Task | str, **settings: Any) -> Recipe:
    """Return a recipe with default settings for a user's own model."""
    spec = model if isinstance(model, ModelSpec) else ExternalModule.from_module(model)
    name = spec.name if isinstance(spec, ExternalModule) else type(spec).__name__
    chosen = resolve_task(task)
    defaults: dict[str, Any] = {
        "layout": NextToken(),
        "lengths": Uniform(top=20, bottom=chosen.smallest),
        "loops": Constant(1),
        "objective": Final(),
        "steps": 2500,
        "optimizer": AdamW(rate=1e-3),
        "schedule": Schedule("cosine", warmup=0.05),
    }
    return Recipe(name=f"{fields.to_kebab_case(name)}-{chosen.name}", task=chosen, model=spec, **defaults | settings)


def resolve_task(task: Task | str, changes: Iterable[str] = ()) -> Task:
    """Return a task, given as an object, a name or text (``Addition(base=2)``), with ``name=value`` changes."""
    if isinstance(task, Task | type):
        return fields.override(fields.validate(Task, task, "task"), changes)
    if not isinstance(task, str):
        raise UsageError(f"task: {quote(task)} is neither a task nor the name of one; lw.list_tasks() lists them")
    return catalog.find_task(task, changes)


def resolve_weights(
    weights: object,
    device: str,
    *,
    task: Task | str | None,
    layout: Layout | None,
    loops: Loops | None,
    trained_to: int | None,
) -> Weights:
    """Return the weights that an argument means: weights, a run, a name, a folder, or a torch module."""
    settings = {name: value for name, value in (("layout", layout), ("loops", loops)) if value is not None}
    if isinstance(weights, nn.Module):
        if task is None:
            raise UsageError(f"{type(weights).__name__}: name the task to measure it on, e.g. task='parity'")
        top = 20 if trained_to is None else trained_to
        lengths = Uniform(top, bottom=min(top, resolve_task(task).smallest))
        recipe = build_recipe(weights, task, lengths=lengths, **settings)
        return Weights(type(weights).__name__, recipe, weights if isinstance(weights, Model) else SinglePass(weights))
    if task is not None or trained_to is not None or settings:
        raise UsageError("task, layout, loops and trained_to apply only to a module: omit them")
    chosen = choose_device(device)
    if isinstance(weights, Weights):
        must_move = device != "auto" and weights.device != chosen
        return replace(weights, model=copy.deepcopy(weights.model).to(chosen)) if must_move else weights
    if isinstance(weights, (Run, str, Path)):
        return load_weights(weights, chosen)
    raise UsageError(f"evaluate takes a run, weights, a name, a folder or a torch module, not {quote(weights)}")


def resolve_sizes(lengths: object, task: Task) -> list[AnySize]:
    """Return one or several sizes as a list. Raises UsageError if they are not valid sizes."""
    listed = [lengths] if isinstance(lengths, Integral) else lengths
    if isinstance(listed, tuple) and len(listed) == len(task.axes) > 1:
        listed = [listed]
    if isinstance(listed, str) or not isinstance(listed, Iterable) or getattr(listed, "ndim", 1) == 0:
        raise UsageError(f"lengths: {quote(lengths)} is neither a size nor a list of sizes, such as [8, 12]")
    sizes: list[AnySize] = []
    for size in islice(listed, MAX_SIZE_COUNT + 1):
        parts = tuple(size) if isinstance(size, (tuple, list)) else (size,)  # in JSON, pairs are lists
        # numpy's whole numbers are sizes too.
        are_whole = all(isinstance(part, Integral) and not isinstance(part, bool) for part in parts)
        if not are_whole or not all(0 < int(part) <= 10**6 for part in parts):
            raise UsageError(f"lengths: {quote(size)} is not a size: a size is a whole number from 1 to a million")
        sizes.append(tuple(map(int, parts)) if isinstance(size, (tuple, list)) else int(size))
    if not 1 <= len(sizes) <= MAX_SIZE_COUNT:
        raise UsageError(f"lengths: give between 1 and {MAX_SIZE_COUNT:,} sizes")
    return sizes


def resolve_texts(texts: object, name: str) -> list[str]:
    """Return one or several strings as a list. Raises UsageError, beginning with ``name``, for anything else."""
    listed = [texts] if isinstance(texts, str) else texts
    if not isinstance(listed, Collection) or not all(isinstance(text, str) for text in listed):
        raise UsageError(f"{name} must be a string or a list of strings, not {quote(texts)}")
    return list(listed)


def resolve_stopping(stopping: Stopping | str | Sequence[Stopping | str] | None) -> list[Stopping]:
    """Return a list of stopping rules, given one or several rules or their texts; empty for None."""
    if stopping is None:
        return []
    listed = stopping if isinstance(stopping, (list, tuple)) else [stopping]
    if not listed:
        raise UsageError("stopping: give at least one rule, or None for the recipe's rule")
    return [fields.validate(Stopping, rule, "stopping") for rule in listed]


def quote(value: object) -> str:
    """Return an argument as short text for an error message."""
    return quote_value(value, max_length=60)


def build_training_recipe(
    recipe: object,
    changes: Sequence[str],
    task: Task | str | None,
    lengths: Lengths | int | None,
    parent: Run | str | Path | None,
    settings: dict[str, Any],
) -> Recipe:
    """Return the recipe to train: ``recipe`` or, if it is None, the parent's recipe. Entries of ``settings`` that are
    not None replace its fields; then ``changes`` are applied."""
    parent_folder = parent.folder if isinstance(parent, Run) else parent
    if parent_folder is not None and (recipe is None or (isinstance(recipe, str) and "=" in recipe)):
        changes = (recipe, *changes) if isinstance(recipe, str) else changes
        recipe = read_recipe(find_weights_folder(parent_folder))
    chosen = resolve_recipe(recipe, task)
    if settings["model"] is not None and isinstance(recipe, (ModelSpec, nn.Module)):
        raise UsageError(f"model: the recipe {type(recipe).__name__} is a model; omit model")
    if task is not None:
        settings |= {"task": resolve_task(task)}
    if lengths is not None:
        smallest = settings.get("task", chosen.task).smallest
        lengths = Uniform(top=lengths, bottom=smallest) if isinstance(lengths, Integral) else lengths
        if not isinstance(lengths, Lengths):
            advice = "such as 20, nor a rule, such as lw.Uniform(top=20)"
            raise UsageError(f"lengths: {quote(lengths)} is neither the longest training length, {advice}")
        settings |= {"lengths": lengths}
    chosen = chosen.change(**{name: value for name, value in settings.items() if value is not None}).change(changes)
    return chosen if parent_folder is None else continue_from(parent_folder, chosen)


def find_run_for_scores(weights: object) -> Run:
    """Return the run in whose folder scores are saved. Raises UsageError if these weights are not a run."""
    run = weights if isinstance(weights, Run) else Run.open(weights) if isinstance(weights, (str, Path)) else None
    if run is None or not run.is_run:
        raise UsageError(f"save: {quote(weights)} is not a run, and scores are saved in a run's folder: omit save")
    return run
