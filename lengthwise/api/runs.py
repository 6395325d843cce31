"""The runs that the Python interface returns, training of several seeds, and comparison of scores."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import nn

from lengthwise.api.arguments import quote, resolve_recipe
from lengthwise.base import rng
from lengthwise.base.errors import UsageError, quote_value
from lengthwise.base.files import is_folder
from lengthwise.base.formatting import format_duration, format_html_table, format_listing
from lengthwise.base.results import Score
from lengthwise.base.score_rows import format_share, format_size, select_reported_rows
from lengthwise.experiment.own_code import describe_user_error
from lengthwise.experiment.recipe import Recipe
from lengthwise.models import ModelSpec
from lengthwise.report.comparisons import Scores
from lengthwise.report.pooled import PooledComparison
from lengthwise.runs import run
from lengthwise.runs.folder import SHIPPED_FOLDER, RunFolder, get_runs_folder, list_shipped_weights, require_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ModuleFactory = Callable[[], nn.Module]


class Run(run.Run):
    """A run: its folder, recipe, weights, checkpoint, scores and figures."""

    @property
    def scores(self) -> Scores:
        """The saved scores, one per size, kind of problems and stopping rule (see ``select_reported_rows``)."""
        names, scores = {field.name for field in fields(Score)}, []
        for row in select_reported_rows(self.rows("scores")):
            values: dict[str, Any] = {"whole_row": None} | {name: row[name] for name in names & row.keys()}
            scores.append(Score(**values | {"sizes": tuple(row["sizes"])}))
        return Scores(scores, self.outline)

    def plot(self, title: str | None = None) -> Figure:
        """Plot exact match against length or, before an evaluation, the loss against steps. Raises UsageError if the
        run has neither scores nor losses."""
        if self.rows("scores"):
            return self.scores.plot(title)
        from lengthwise.report.loss_figure import draw_loss_figure  # late: matplotlib is slow to import

        return draw_loss_figure([self])

    def _repr_html_(self) -> str:
        return format_html_table(repr(self), self._list_facts())

    def __str__(self) -> str:
        return format_listing(repr(self), self._list_facts())

    def _list_facts(self) -> list[tuple[str, str]]:
        about, scores, own_rule = self.about(), self.scores, self.recipe.stopping.name
        rule = own_rule if own_rule in scores.rules else next(iter(scores.rules), own_rule)
        status = f"trained in {format_duration(about['wall_s'])}" if about else "training has not ended"
        measured = [score for score in scores if (score.problems, score.stopping) == ("uniform", rule)]
        shares = [f"{format_size(score.sizes)}: {format_share(score.exact, 3)}" for score in measured]
        label = "exact match" if rule == own_rule else f"exact match, {rule}"
        return [("recipe", self.recipe.name), ("seed", str(self.recipe.seed)), ("training", status),
                (label, ", ".join(shares) or "not measured yet")]  # fmt: skip


# Several seeds


def build_replicate(module: nn.Module | ModuleFactory, seed: int) -> nn.Module:
    """Return a copy of a module with new initial weights, drawn by its submodules' ``reset_parameters``; or the module
    that a function builds. Torch's generator is seeded with ``seed``, and restored afterwards."""
    with rng.preserve_generators():
        rng.seed_torch(rng.derive_seed(seed, "weights"))
        if not isinstance(module, nn.Module):
            try:
                built: Any = module()
            except Exception as error:
                raise UsageError(f"the function that builds the module: {describe_user_error(error)}") from error
            if isinstance(built, nn.Module):
                return built
            fault = f"returns {quote_value(built)}, which is not a torch module"
            raise UsageError(f"the function that builds the module {fault}")
        new = copy.deepcopy(module)
        for name, submodule in [*new.named_modules()][::-1]:  # inner ones first: an outer one may change their biases
            reset = getattr(submodule, "reset_parameters", getattr(submodule, "_reset_parameters", None))
            if callable(reset):
                reset()
            elif submodule._parameters:
                location = f"{name} ({type(submodule).__name__})" if name else type(submodule).__name__
                fault = f"{location} has weights but no reset_parameters method to reinitialize them"
                raise UsageError(f"seeds: {fault}: add one, or pass a function that builds the module")
    return new


def train_seeds(
    train: Callable[..., Any], *, recipe: Any, changes: Sequence[str], seed: int | None, seeds: int | None, **rest: Any
) -> Any:
    """Train one or several seeds and return the run or the runs. A module gets new initial weights for each seed."""
    if seeds is not None and rest["folder"] is not None:
        raise UsageError("folder: each seed needs its own folder: omit folder or seeds")
    is_own_module = isinstance(recipe, nn.Module) or (callable(recipe) and not isinstance(recipe, (Recipe, ModelSpec)))
    # `resolve_recipe` raises UsageError for anything but a recipe.
    default_seed = 0 if is_own_module or recipe is None else resolve_recipe(recipe, rest["task"]).seed
    first = default_seed if seed is None else seed
    runs = []
    for number in range(first, first + (seeds or 1)):
        argument = build_replicate(recipe, number) if is_own_module else recipe
        runs.append(train(argument, *changes, seed=number, **rest))
        if isinstance(recipe, nn.Module) and number == first:
            recipe.load_state_dict(argument.state_dict())
    return runs if seeds is not None else runs[0]


# Comparison


def resolve_scores(source: object) -> Scores:
    """Return ``source`` itself if it is a ``Scores``, else the scores saved in a run, given the run or its folder."""
    if isinstance(source, (str, Path)):
        source = run.Run.open(source)
    scores = Run(source.folder, source.recipe).scores if isinstance(source, run.Run) else source
    if not isinstance(scores, Scores):
        raise UsageError(f"compare takes scores that evaluate returned, runs or their folders, not {quote(source)}")
    if not scores:
        raise UsageError(f"{scores.outline.name}: no scores yet; `lengthwise evaluate RUN` measures a run")
    return scores


def pool_by_recipe(sources: Sequence[object]) -> PooledComparison | None:
    """Pool runs, lists of runs and shipped weights by recipe. Return None unless ``sources`` contain a list or shipped
    weights, or are runs of which two differ only in their seeds."""
    shipped = {name for name in list_shipped_weights() if not is_folder(get_runs_folder() / name)}
    if not any(_is_sequence(source) or (isinstance(source, str) and source in shipped) for source in sources):
        if not all(isinstance(source, run.Run | str | Path) for source in sources):
            return None
        outlines = [_open_run(source).outline for source in sources]
        recipes = {source.seedless_id for source in outlines}
        if len({(source.seedless_id, source.seed, source.data_seed) for source in outlines}) == len(recipes):
            return None
    runs = [_open_run(source) for part in sources for source in (part if _is_sequence(part) else [part])]
    scored = [one for one in runs if any(row["stopping"] == one.outline.stopping for row in one.rows("scores"))]
    recipes = {one.outline.seedless_id for one in scored}
    for one in runs:  # a diverged seed may lack scores if other seeds of its recipe have some; the table names it
        if one not in scored and not (one.diverged and one.outline.seedless_id in recipes):
            fault = f"{one.folder.name}: no scores yet by its own stopping rule"
            raise UsageError(f"{fault}; lw.evaluate(run, …, save=True) saves them")
    return PooledComparison(runs)


def _is_sequence(value: object) -> TypeGuard[Sequence[object]]:
    return isinstance(value, list | tuple) and not isinstance(value, Scores)


def _open_run(source: object) -> RunFolder:
    """Return a run, or open the folder of a run or of shipped weights. Raises UsageError for anything else."""
    if isinstance(source, run.Run):
        return source
    if isinstance(source, str) and source in list_shipped_weights():
        return RunFolder(SHIPPED_FOLDER / source)
    if isinstance(source, str | Path):
        return RunFolder(require_run(source))
    advice = "pass scores without a list, or save them in a run with lw.evaluate(run, …, save=True)"
    raise UsageError(f"compare pools runs, their folders and shipped weights, not {type(source).__name__}; {advice}")
