"""Modules with new initial weights for each of several seeds, and runs pooled by recipe."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from torch import nn

from lengthwise.api.arguments import resolve_recipe
from lengthwise.base import rng
from lengthwise.base.errors import UsageError, quote_value
from lengthwise.base.files import is_folder
from lengthwise.experiment.own_code import describe_user_error
from lengthwise.experiment.recipe import Recipe
from lengthwise.models import ModelSpec
from lengthwise.report.scored import PooledComparison, Scores
from lengthwise.runs.folder import SHIPPED, RunFolder, list_shipped, run_path, runs_folder
from lengthwise.runs.run import Run

Factory = Callable[[], nn.Module]


def build_replicate(module: nn.Module | Factory, seed: int) -> nn.Module:
    """Return a copy of a module with new initial weights, which its parts' ``reset_parameters`` draw; or the module
    that a function without arguments builds. Torch's generator is seeded by ``seed``, then restored.

    Raises UsageError for a module with weights that no ``reset_parameters`` draws.
    """
    with rng.preserve_generators():
        rng.seed_torch(rng.derive_seed(seed, "weights"))
        if not isinstance(module, nn.Module):
            try:
                found: Any = module()
            except Exception as error:
                raise UsageError(f"the function that builds the module: {describe_user_error(error)}") from error
            if isinstance(found, nn.Module):
                return found
            raise UsageError(
                f"the function that builds the module returns {quote_value(found)}, which is not a torch module"
            )
        new = copy.deepcopy(module)
        for name, part in [*new.named_modules()][::-1]:  # a part that resets its own parts' biases comes after them
            reset = getattr(part, "reset_parameters", getattr(part, "_reset_parameters", None))
            if callable(reset):
                reset()
            elif part._parameters:
                where = f"{name}, a {type(part).__name__}," if name else type(part).__name__
                raise UsageError(
                    f"seeds: {where} has weights and no reset_parameters to draw them anew: add it, or give a function "
                    f"that builds the module: lw.train(lambda: {type(module).__name__}(…), …)"
                )
    return new


def train_seeds(
    train: Callable[..., Any], *, recipe: Any, changes: Sequence[str], seed: int | None, seeds: int | None, **named: Any
) -> Any:
    """Train several seeds and return their runs; a module, given or built by a function, has different weights in
    each."""
    if seeds is not None and named["folder"] is not None:
        raise UsageError("folder: each seed has a folder of its own: omit folder or seeds")
    fresh = isinstance(recipe, nn.Module) or (callable(recipe) and not isinstance(recipe, (Recipe, ModelSpec)))
    own = 0 if fresh or recipe is None else resolve_recipe(recipe, named["task"]).seed  # raises for what is no recipe
    first = own if seed is None else seed
    runs = []
    for number in range(first, first + (seeds or 1)):
        one = build_replicate(recipe, number) if fresh else recipe
        runs.append(train(one, *changes, seed=number, **named))
        if isinstance(recipe, nn.Module) and number == first:
            recipe.load_state_dict(one.state_dict())
    return runs if seeds is not None else runs[0]


def pool_by_recipe(things: Sequence[object]) -> PooledComparison | None:
    """Pool runs, lists of runs and names of shipped weights by recipe, if a list or a name of shipped weights is among
    them or, where all are runs, two of them differ only in their seeds; otherwise return None."""
    shipped = {name for name in list_shipped() if not is_folder(runs_folder() / name)}
    if not any(_is_list(one) or (isinstance(one, str) and one in shipped) for one in things):
        if not all(isinstance(one, Run | str | Path) for one in things):
            return None
        outlines = [_open(one).outline for one in things]
        recipes = {one.seedless_id for one in outlines}
        if len({(one.seedless_id, one.seed, one.data_seed) for one in outlines}) == len(recipes):
            return None
    return PooledComparison([_open(one) for part in things for one in (part if _is_list(part) else [part])])


def _is_list(thing: object) -> TypeGuard[Sequence[object]]:
    return isinstance(thing, list | tuple) and not isinstance(thing, Scores)


def _open(source: object) -> RunFolder:
    """Return a run, or open the folder of a run or of shipped weights. Raises UsageError for anything else."""
    if isinstance(source, Run):
        return source
    if isinstance(source, str) and source in list_shipped():
        return RunFolder(SHIPPED / source)
    if isinstance(source, str | Path):
        return RunFolder(run_path(source))
    raise UsageError(
        f"compare pools runs, their folders and shipped weights, not {type(source).__name__}; "
        "give scores without a list, or keep them in a run with lw.evaluate(run, …, save=True)"
    )
