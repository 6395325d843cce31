"""The Python interface, used by ``import lengthwise as lw``. Its functions accept names, folders and objects."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import NoneType
from typing import Any, Literal, overload

from torch import nn

from lengthwise.api import arguments, catalog
from lengthwise.api.checking import check
from lengthwise.api.depth import depth
from lengthwise.api.runs import ModuleFactory, Run, pool_by_recipe, resolve_scores, train_seeds
from lengthwise.base import fields
from lengthwise.base.errors import Interrupted
from lengthwise.base.formatting import Listing
from lengthwise.base.progress import Progress
from lengthwise.base.ranges import Count, Range, Seed, Seeds
from lengthwise.base.results import AnySize
from lengthwise.base.rng import stream
from lengthwise.base.types import Batch, Inputs, Kind, Loss, Problems, Purpose, Score, Trace, UsageError, Vocab
from lengthwise.evaluation.families import count_family_samples, evaluate_with_progress, select_family_rules
from lengthwise.evaluation.scores import MAX_SAMPLES, SAMPLES
from lengthwise.evaluation.solver import Answer, Solver, load
from lengthwise.experiment.data import check_test_problems, choose_default_sizes
from lengthwise.experiment.layout import FullOutput, Grid, Labelled, Layout, NextToken, Pairs, Tagged
from lengthwise.experiment.lengths import (
    Curriculum,
    Lengths,
    LogUniform,
    Mastery,
    Natural,
    OneOf,
    SampledLengths,
    Uniform,
)
from lengthwise.experiment.loops import Constant, ExtraLoops, Loops, PerRound
from lengthwise.experiment.optim import LAMB, AdamW, Optimizer, Schedule
from lengthwise.experiment.problem_set import ProblemSet, draw_problems
from lengthwise.experiment.recipe import ChosenOn, Recipe, Watch, build_outline
from lengthwise.experiment.resources import estimate_problems
from lengthwise.experiment.source import Finite, Fresh, Source
from lengthwise.experiment.stopping import After, Converged, MaxConfidence, Oracle, Restarts, Settled, Stopping
from lengthwise.experiment.study import Panel, Study
from lengthwise.models import Model, ModelSpec, preserve_modes
from lengthwise.models.retran import LSTM, ReTran
from lengthwise.models.single_pass import SinglePass
from lengthwise.models.transformer import Transformer
from lengthwise.nn.attention import Attention
from lengthwise.nn.mixer import AttentionContext, Mixer, MixerSpec
from lengthwise.nn.position import ALiBi, Encoding, Learned, NoPE, Position, RoPE
from lengthwise.nn.window import Local
from lengthwise.objectives import Every, Final, Objective, Progressive, Segments
from lengthwise.registry import sources
from lengthwise.report.comparisons import Comparison, Scores
from lengthwise.report.pooled import PooledComparison
from lengthwise.runners import Runner
from lengthwise.runners.cpu import plain
from lengthwise.runners.plain import detach, unroll
from lengthwise.runs.run import Weights
from lengthwise.tasks import SequenceTask, SquareGridTask, Task
from lengthwise.tasks.arithmetic import Addition
from lengthwise.tasks.family import Family
from lengthwise.tasks.file import File
from lengthwise.tasks.parity import Parity
from lengthwise.tasks.strings import Copy
from lengthwise.training import loop, stacked
from lengthwise.training.arithmetic import Matmul, computation_settings

WeightsSource = Run | Weights | str | Path | nn.Module


# Training


@overload
def train(
    recipe: Recipe | str | ModelSpec | nn.Module | ModuleFactory | None = None,
    *changes: str,
    name: str | None = None,
    task: Task | str | None = None,
    model: ModelSpec | None = None,
    layout: Layout | None = None,
    lengths: Lengths | int | None = None,
    loops: Loops | None = None,
    objective: Objective | None = None,
    optimizer: Optimizer | None = None,
    steps: int | None = None,
    batch: int | None = None,
    seed: int | None = None,
    seeds: None = None,
    folder: str | Path | None = None,
    device: str = "auto",
    matmul: Matmul = "fp32",
    compile: bool = False,
    graphs: bool = True,
    track: str | Sequence[str] = (),
    threads: int = 1,
    save_every: float = 60.0,
    quiet: bool = False,
    wait: bool = False,
    parent: Run | str | Path | None = None,
    keep_state: bool = False,
) -> Run: ...
@overload
def train(*args: Any, seeds: int, **options: Any) -> list[Run]: ...
@fields.validate_arguments
def train(
    recipe: Recipe | str | ModelSpec | nn.Module | ModuleFactory | None = None,
    *changes: str,
    name: str | None = None,
    task: Task | str | None = None,
    model: ModelSpec | None = None,
    layout: Layout | None = None,
    lengths: Lengths | int | None = None,
    loops: Loops | None = None,
    objective: Objective | None = None,
    optimizer: Optimizer | None = None,
    steps: int | None = None,
    batch: int | None = None,
    seed: int | None = None,
    seeds: Seeds | None = None,
    folder: str | Path | None = None,
    device: str = "auto",
    matmul: Matmul = "fp32",
    compile: bool = False,
    graphs: bool = True,
    track: str | Sequence[str] = (),
    threads: int = 1,
    save_every: float = 60.0,
    quiet: bool = False,
    wait: bool = False,
    parent: Run | str | Path | None = None,
    keep_state: bool = False,
) -> Run | list[Run]:
    """Train a model and return its run; continue where an earlier call was stopped.

    ``recipe`` is a Recipe, the name of one (see ``list_recipes``), the configuration of a model such as
    ``Transformer(width=32)``, or a torch module that maps tokens "b t" to logits "b t v", where v is the number of
    output symbols. A configuration or a module needs ``task`` too; a module holds the trained weights afterwards.
    ``changes`` are texts as on the command line: ``"model.width=32"``.

    The next arguments replace fields of the recipe. If ``recipe`` is only a model, they default to the values in
    parentheses. ``name``: the recipe's name; ``task``: a Task, its name or ``"Addition(base=2)"``; ``model``: another
    configuration; ``layout``: how rows are written (``NextToken()``); ``lengths``: sizes of training problems, or the
    largest (20); ``loops``: how often the model is applied (``Constant(1)``); ``objective``: the loss (``Final()``);
    ``optimizer`` (``AdamW(1e-3)``, with warm-up and cosine decay); ``steps`` (2,500); ``batch``: rows per step (64);
    ``seed``: the seed of weights and problems; ``seeds``: the number of seeds, each with its own initial weights.

    ``folder``: the run's folder, by default in ``runs/``; ``device``: "auto", "cpu" or "cuda"; ``matmul``: the
    precision of matrix products, "fp32", "tf32" (CUDA only) or "bf16"; ``compile``: compile a transformer's loops
    (GPUs); ``graphs``: record steps as CUDA graphs; ``track``: one or several of the trackers "tensorboard", "trackio"
    and "wandb"; ``threads``: CPU threads; ``save_every``: seconds between checkpoints; ``quiet``: show no progress;
    ``wait``: if another process trains this run, wait instead of raising an error. ``parent``: a run or weights from
    which training continues until step ``steps`` (``recipe`` defaults to the parent's); ``keep_state``: keep the
    optimizer's state, so that a later run can continue from this one bit for bit.

    Raises UsageError, with a one-line message, for a wrong argument. At Ctrl-C, saves and raises Interrupted.
    """
    if seeds is not None or not isinstance(recipe, (Recipe, str, ModelSpec, nn.Module, NoneType)):
        return train_seeds(train, **locals())
    values: dict[str, Any] = {"name": name, "model": model, "layout": layout, "loops": loops, "objective": objective,
        "optimizer": optimizer, "steps": steps, "batch": batch, "seed": seed, "data_seed": seed}  # fmt: skip
    chosen = arguments.build_training_recipe(recipe, changes, task, lengths, parent, values)
    options: dict[str, Any] = {"threads": threads, "save_every": save_every, "wait": wait, "graphs": graphs,
        "matmul": matmul, "keep_state": keep_state, "track": arguments.resolve_texts(track, "track")}  # fmt: skip
    with Progress(quiet=quiet) as progress:
        trained = loop.train(chosen, folder, device=device, compile=compile, progress=progress, **options)
    run = Run(trained.folder, trained.recipe)
    if isinstance(recipe, nn.Module):
        recipe.load_state_dict((run.model.module if isinstance(run.model, SinglePass) else run.model).state_dict())
    return run


@fields.validate_arguments
def train_stacked(
    recipe: Recipe | str | ModelSpec | nn.Module,
    *changes: str,
    seeds: Seeds,
    task: Task | str | None = None,
    device: str = "auto",
    matmul: Matmul = "fp32",
    track: str | Sequence[str] = (),
    threads: int = 1,
    save_every: float = 60.0,
    quiet: bool = False,
    wait: bool = False,
    graphs: bool = True,
) -> list[Run]:
    """Train several seeds of a recipe together, in one process with their weights stacked, and return their runs. Each
    run has its own folder and the results of ``train``. On a CPU, stacking saves time only for tiny models.

    ``seeds`` is the number of seeds; the first is the recipe's own. ``recipe``, ``changes``, ``task``, ``device``,
    ``matmul``, ``track``, ``threads``, ``save_every``, ``quiet``, ``wait`` and ``graphs`` mean the same as in
    ``train``; a torch module is not changed.

    A run that diverges is not ``done``; the other runs continue. Raises the errors of ``train``, and
    UsageError for a model that draws random numbers in training, as dropout does.
    """
    first = arguments.resolve_recipe(recipe, task).change(changes)
    recipes = [first.with_seed(seed) for seed in range(first.seed, first.seed + seeds)]
    options: dict[str, Any] = {"threads": threads, "save_every": save_every, "wait": wait, "graphs": graphs,
        "matmul": matmul, "track": arguments.resolve_texts(track, "track")}  # fmt: skip
    with Progress(quiet=quiet) as progress:
        runs = stacked.train_stacked(recipes, device=device, progress=progress, **options)
    return [Run(run.folder, run.recipe) for run in runs]


# Evaluation


@fields.validate_arguments
def evaluate(
    weights: WeightsSource,
    lengths: AnySize | Iterable[AnySize] | None = None,
    *,
    task: Task | str | None = None,
    layout: Layout | None = None,
    loops: Loops | None = None,
    trained_to: int | None = None,
    samples: int | None = None,
    precision: float | None = None,
    stopping: Stopping | str | Sequence[Stopping | str] | None = None,
    kind: Kind = "uniform",
    families: bool = False,
    seed: int = 0,
    device: str = "auto",
    quiet: bool = False,
    save: bool = False,
    rows: bool = False,
) -> Scores:
    """Measure exact match on fresh problems; return a Score per length.

    ``weights`` is a run, weights, the name of shipped weights, a folder of a run or weights, or any torch module that
    maps tokens "b t" to logits "b t v" (a ``forward`` with a parameter ``padding_mask`` gets the mask too).
    ``lengths`` is one size or several, by default 1, 1.5, 2, 3 and 5 times the training length; on two axes, each size
    is a pair, or one number for both.

    Four arguments apply only to modules: ``task``, a Task or its name; ``layout``, how problems are written as rows, by
    default ``NextToken()``, whose symbols are ``layout.vocabs(task)``; ``loops``, for a module that is a ``Model``;
    ``trained_to``, its training length (20 unless given), which sets the default lengths and is shaded in figures.

    ``samples`` is the number of problems per length, 1,000 unless given. With ``precision``, e.g. 0.01, sampling ends
    once the length's 95 % interval is within ± 0.01, or after ``samples`` problems (10,000 unless given). ``stopping``
    is one rule or several, or their texts (``"After(loops=10)"``), by default the recipe's own rule; ``kind`` is
    "uniform", "hard", "natural" or the name of a family of structured problems. ``families`` adds the scores of all
    families, each on a tenth as many problems (100 unless ``samples`` is given). ``seed`` chooses the problems;
    ``device`` is "auto", "cpu" or "cuda" (a module stays where it is); ``quiet`` shows no progress. ``save`` keeps a
    run's scores in its folder, where ``compare`` finds them. With ``rows``, ``scores.answers`` has a row per problem.

    Raises UsageError, with a one-line message, for a wrong argument.
    """
    own_run = arguments.find_run_for_scores(weights) if save else None
    resolved = arguments.resolve_weights(weights, device, task=task, layout=layout, loops=loops, trained_to=trained_to)
    recipe, name = resolved.recipe, resolved.name
    sizes = list(choose_default_sizes(recipe)) if lengths is None else arguments.resolve_sizes(lengths, recipe.task)
    rules = arguments.resolve_stopping(stopping) or [recipe.stopping]
    max_samples = (MAX_SAMPLES if precision else SAMPLES) if samples is None else samples
    fields.validate(Count, max_samples, "samples")
    fields.validate(Seed, seed, "seed")
    estimate_problems(max_samples, max(map(recipe.sizes, sizes), key=sum)).check(f"{max_samples:,} problems of a size")
    check_test_problems(recipe, sizes, kind)
    options: dict[str, Any] = {"seed": seed, "rows": rows}
    with preserve_modes(resolved.model), computation_settings(1), Progress(quiet=quiet) as progress:
        uniform = options | {"samples": max_samples, "kind": kind, "precision": precision}
        scores = [*evaluate_with_progress(resolved, sizes, rules, progress, label=f"{name}: exact match", **uniform)]
        if families:
            rules, options["samples"] = select_family_rules(rules), count_family_samples(samples or SAMPLES)
            label = f"{name}: families"
            scores += evaluate_with_progress(resolved, sizes, rules, progress, label=label, families=True, **options)
    if own_run:
        own_run.append_new("scores", *(score.row() | {"seed": seed} for score in scores))
    facts = replace(build_outline(recipe), name=name)
    if isinstance(weights, nn.Module) and trained_to is None:  # its training length is unknown
        facts = replace(facts, top=0, tops=(0,) * len(facts.axes))
    return Scores(scores, facts)


@fields.validate_arguments
def problems(
    task: Task | str,
    sizes: AnySize | Iterable[AnySize],
    count: int,
    *,
    split: Purpose | None = None,
    seed: int = 0,
    kind: Kind = "uniform",
) -> ProblemSet:
    """Draw ``count`` problems of a ``task`` (or its name) for other programs, each of a size drawn uniformly from
    ``sizes``. ``seed`` chooses the problems.

    ``split`` is "train", "validation" or "test", which share no prompts, or None for all prompts. ``kind`` is
    "uniform", "hard" or the name of a family of structured problems. The result is a sequence of dictionaries that a
    torch ``DataLoader`` reads; it has ``lines()`` of JSON, ``digest``, ``batches(rows, layout)``, and tensors in
    ``problems``. ``lengthwise sample --jsonl`` writes the same problems.

    Raises UsageError if the task has no such size or kind.
    """
    chosen = arguments.resolve_task(task)
    fields.validate(Count, count, "count")
    fields.validate(Seed, seed, "seed")
    resolved = arguments.resolve_sizes(sizes, chosen)
    size_tuples = [size if isinstance(size, tuple) else (size,) * len(chosen.axes) for size in resolved]
    estimate_problems(count, max(size_tuples, key=sum)).check(f"{count:,} problems")
    drawn = draw_problems(chosen, size_tuples, count, split=split, seed=seed, kind=kind)
    return ProblemSet(chosen, Problems.join([*drawn]))


ScoreSource = Scores | Run | str | Path


def compare(
    first: ScoreSource | Sequence[ScoreSource], *others: ScoreSource | Sequence[ScoreSource]
) -> Comparison | PooledComparison:
    """Compare scores, or the scores that runs have saved.

    Seeds are pooled by recipe if two of the given runs or folders differ only in their seeds, or if lists of runs or
    names of shipped weights are given: ``compare(*runs)``, ``compare(runs, "looped-parity")``. The result prints a
    table of mean exact match over seeds, on uniform problems and the worst family. It also shows how much each recipe's
    mean differs from the first recipe's, with a 95 % interval over seeds (Welch's t) if both have two seeds or more.

    Otherwise, and for scores that ``evaluate`` returned, the result shows ``first`` and ``others`` side by side for the
    sizes and kinds of problems on which all were measured. It also shows the difference between the last and the first,
    with a 95 % interval over problems, which is paired if ``evaluate`` returned both for the same problems. The
    interval does not cover the spread between training seeds.

    Both results have ``rows()``, ``frame()``, ``plot()`` and ``savefig("x.pdf")``; the pooled one also ``to_latex()``.

    Raises UsageError if the scores share no size or are of different tasks, or if a run has no scores.
    """
    pooled = pool_by_recipe(sources := [first, *others])
    return Comparison([resolve_scores(source) for source in sources]) if pooled is None else pooled


def style(width: Literal["column", "page"] = "page") -> AbstractContextManager[None]:
    """Apply the package's style to figures that are drawn in a ``with`` block::

        with lw.style("column"):
            figure, axes = pyplot.subplots()

    ``width`` is the default width of figures: a paper's column (3.25 inches) or page (6.75). Lines differ in
    dashes and in colours, which suit any colour vision: 35 lines look different. Raises UsageError for another width.
    """
    from lengthwise.report import style as module  # late: it imports matplotlib

    return module.style(width)


# Catalog


@fields.validate_arguments
def families(task: Task | str, *changes: str) -> dict[str, str]:
    """Return the description of each of a task's families of structured problems, by the family's name. ``task`` is a
    Task or its name, ``changes`` are texts such as ``"base=2"``."""
    return {family.name: family.about for family in arguments.resolve_task(task, changes).families}


@fields.validate_arguments
def find(name: str, *changes: str) -> Recipe:
    """Return the recipe of this ``name``, with ``changes``: ``find("looped-parity", "model.width=32")``."""
    return catalog.find_recipe(name, changes)


def list_recipes(*words: str) -> Listing:
    """Return the name and summary of each recipe, or only of recipes that match every one of ``words``."""
    about = {name: catalog.read_summary(function) for name, function in catalog.list_recipes().items()}
    return Listing(sources.filter_entries(about, arguments.resolve_texts(words, "words")))


def list_tasks(*words: str) -> Listing:
    """Return the name and summary of each task, or only of tasks that match every one of ``words``."""
    return _list_parts({fields.to_kebab_case(name): cls for name, cls in catalog.list_parts()["tasks"].items()}, words)


def list_models(*words: str) -> Listing:
    """Return the name and summary of each model, or only of models that match every one of ``words``."""
    return _list_parts(catalog.list_parts()["models"], words)


def _list_parts(parts: Mapping[str, type], words: Sequence[str]) -> Listing:
    about = {name: sources.extract_first_sentence(inspect.getdoc(cls) or "") for name, cls in parts.items()}
    return Listing(sources.filter_entries(about, arguments.resolve_texts(words, "words")))
