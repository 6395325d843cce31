"""The Python interface, gathered: what ``import lengthwise as lw`` offers, by the names in its ``__all__``."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

from lengthwise import catalog
from lengthwise.base.fields import override
from lengthwise.base.rng import stream
from lengthwise.base.types import Batch, Inputs, Kind, Loss, Problems, Score, Trace, UsageError
from lengthwise.base.vocab import Vocab
from lengthwise.depth import Runner
from lengthwise.depth.plain import unroll
from lengthwise.evaluation.families import SHARE, evaluate_families
from lengthwise.evaluation.scores import default_sizes
from lengthwise.evaluation.scores import evaluate as measure
from lengthwise.evaluation.solver import Answer, Solver, load
from lengthwise.fast import plain
from lengthwise.models import Model, ModelSpec
from lengthwise.models.lstm import LSTM
from lengthwise.models.retran import ReTran
from lengthwise.models.transformer import Transformer
from lengthwise.nn.attention import Attention
from lengthwise.nn.mixer import Mixer, MixerSpec
from lengthwise.nn.position import ALiBi, Encoding, Learned, NoPE, Position, RoPE
from lengthwise.nn.sight import Sight
from lengthwise.nn.window import Local
from lengthwise.objectives import Objective
from lengthwise.objectives.every import Every
from lengthwise.objectives.final import Final
from lengthwise.objectives.progressive import Progressive
from lengthwise.recipe.layout import FullOutput, Layout, NextToken, Pairs
from lengthwise.recipe.lengths import Curriculum, Lengths, Mastery, Natural, Uniform
from lengthwise.recipe.loops import Constant, ExtraLoops, Loops, PerRound
from lengthwise.recipe.optim import LAMB, AdamW, Optimizer, Schedule
from lengthwise.recipe.recipe import Recipe, Watch
from lengthwise.recipe.source import Finite, Fresh
from lengthwise.recipe.stopping import After, Converged, MaxConfidence, Oracle, Stopping
from lengthwise.run import Run, Weights
from lengthwise.run import load as load_weights
from lengthwise.studies import Panel, Study
from lengthwise.tasks import Listed, Task
from lengthwise.tasks.addition import Addition
from lengthwise.tasks.copy import Copy
from lengthwise.tasks.family import Family
from lengthwise.tasks.parity import Parity
from lengthwise.training import loop


class Scores(list[Score]):
    """Score rows, in the order of the lengths asked for."""

    def frame(self) -> Any:
        """The rows as a pandas DataFrame. ImportError where pandas is not installed."""
        import pandas  # type: ignore[import-not-found,import-untyped]

        return pandas.DataFrame([score.row() for score in self])


def find(name: str, *changes: str) -> Recipe:
    """A shipped recipe by name, with ``name=value`` changes as on the command line."""
    return catalog.recipe(name, changes)


def train(recipe: Recipe | str, *changes: str, seed: int | None = None, **options: Any) -> Run:
    """Train a recipe, or one named, to its end; go on where an earlier call was stopped.

    ``seed`` sets the seed of the weights and of the problems. ``options`` are those of
    ``lengthwise.training.loop.train``: ``folder``, ``device``, ``threads``, ``save_every`` (seconds), ``quiet``.
    """
    chosen = catalog.recipe(recipe, changes) if isinstance(recipe, str) else override(recipe, changes)
    if seed is not None:
        chosen = chosen.change(seed=seed, data_seed=seed)
    return loop.train(chosen, **options)


def evaluate(
    weights: Run | Weights | str | Path,
    lengths: Iterable[int | tuple[int, ...]] | None = None,
    *,
    samples: int = 1000,
    stopping: Stopping | None = None,
    kind: Kind = "uniform",
    families: bool = False,
    seed: int = 0,
    device: str = "auto",
) -> Scores:
    """Exact match on fresh problems, a Score per length; by default at 1, 1.5, 2, 3 and 5 times the training length.

    ``kind`` is "uniform", "hard", "natural" or the name of a family of structured problems (see ``families``). With
    ``families``, scores of all families follow, on a tenth of the samples each.
    """
    if not isinstance(weights, Weights):
        chosen = loop.choose_device(device)
        weights = weights.weights(chosen) if isinstance(weights, Run) else load_weights(weights, chosen)
    sizes = default_sizes(weights.recipe) if lengths is None else list(lengths)
    with loop.computing(1):
        found = measure(weights, sizes, samples=samples, stopping=stopping, kind=kind, seed=seed)
        scores = Scores(found)
        if families:
            few = max(1, samples // SHARE)
            scores += evaluate_families(weights, sizes, samples=few, stopping=stopping, seed=seed)
        return scores


def families(task: Task | str, *changes: str) -> dict[str, str]:
    """A task's families of structured problems: what each is, by name."""
    found = catalog.task(task, list(changes)) if isinstance(task, str) else task
    return {family.name: family.about for family in found.families}


def style(width: Literal["column", "page"] = "page") -> AbstractContextManager[None]:
    """Draw your own figures as the package draws its own::

        with lw.style("column"):
            figure, axes = pyplot.subplots()

    ``width`` is that of new figures without a size: of a column (3.25 inches) or a page (6.75) of a paper. Lines take
    colours that are told apart with any colour vision, then dashes: 35 lines before one looks like another. Raises
    UsageError for another width.
    """
    from lengthwise.report import style as module  # late: it imports matplotlib

    return module.style(width)
