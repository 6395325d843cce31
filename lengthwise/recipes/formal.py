"""Formal languages: recipes that train several architectures in the same way.

All architectures have about the same number of parameters. They train on words of up to 40 symbols with the curriculum
``Mastery``: the longest length grows by half when .9 of the answers are right. ``lengthwise.studies.formal`` defines
the test lengths.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import torch

from lengthwise.base import fields
from lengthwise.base.rng import stream
from lengthwise.base.types import UsageError
from lengthwise.experiment.layout import FullOutput, Labelled, Layout, Tagged
from lengthwise.experiment.lengths import Mastery
from lengthwise.experiment.loops import Constant
from lengthwise.experiment.optim import AdamW, Schedule
from lengthwise.experiment.recipe import ChosenOn, Recipe, import_parts, index_recipes
from lengthwise.models import ModelSpec
from lengthwise.models.torch_recurrent import TorchLSTM
from lengthwise.models.transformer import Transformer
from lengthwise.nn.attention import Attention
from lengthwise.nn.mixer import MixerSpec
from lengthwise.nn.mixers.delta import DeltaNet, GatedDeltaNet
from lengthwise.nn.mixers.mamba2 import Mamba2
from lengthwise.nn.mixers.xlstm import SLSTM
from lengthwise.nn.position import RoPE
from lengthwise.objectives import Final
from lengthwise.tasks import Task
from lengthwise.tasks.automaton import CycleNavigation, EvenPairs, GroupWords
from lengthwise.tasks.languages import CountedBlocks, Dyck
from lengthwise.tasks.modular_arithmetic import ModularArithmetic
from lengthwise.tasks.parity import Parity

Scale = Literal["cpu", "paper", "long"]
STEPS: dict[Scale, int] = {"cpu": 1_000, "paper": 10_000, "long": 30_000}
# At the cpu scale, 3e-3 was better than 1e-2 on parity and Dyck words with seed 0, after half of the steps.
DEFAULT_RATES: dict[Scale, float] = {"cpu": 3e-3, "paper": 2e-3, "long": 2e-3}
SPECIAL_RATES = {("modular-arithmetic", "lstm"): 5e-3}  # where the default fails; best of 1e-3, 2e-3, 5e-3, seed 0
MAX_SYMBOLS, START_SYMBOLS = 40, 4  # symbols of the longest words in training, and in its first steps


def build_two_blocks(mixer: MixerSpec, width: int = 64) -> Transformer:
    """Return a model of two blocks, each a mixer and an MLP, without positional encodings."""
    return Transformer(width=width, layers=2, heads=4, mlp=2, mixer=mixer, init_std=0.1, embedding_std=0.3)


ARCHITECTURES: dict[str, ModelSpec] = {
    "attention": build_two_blocks(Attention()),
    "rope": Transformer(width=64, layers=2, heads=4, mlp=2, positions=(RoPE(),), init_std=0.1, embedding_std=0.3),
    "deltanet-01": build_two_blocks(DeltaNet()),
    "deltanet": build_two_blocks(DeltaNet(negative=True)),
    "gated-deltanet": build_two_blocks(GatedDeltaNet(negative=True), 60),
    "mamba2": build_two_blocks(Mamba2(negative=True), 56),
    "slstm": build_two_blocks(SLSTM(), 56),
    "lstm": TorchLSTM(),
}
# Each task with its layout and the number of symbols of a word per unit of size.
TASKS: dict[str, tuple[Task, Layout, int]] = {
    "parity": (Parity(), Labelled(), 1),
    "even-pairs": (EvenPairs(), Labelled(), 1),
    "cycle-navigation": (CycleNavigation(), Labelled(), 1),
    "modular-arithmetic": (ModularArithmetic(), Labelled(), 2),
    "counted-blocks": (CountedBlocks(), Labelled(), 3),
    "s3": (GroupWords("S3"), Tagged(), 1),
    "s5": (GroupWords("S5"), Tagged(), 1),
    "dyck": (Dyck(), Tagged(), 1),
}


def build_formal_recipe(task: str, architecture: str, scale: Scale = "cpu", *, families: float = 0.0) -> Recipe:
    """Return the recipe of an architecture on a task. ``task`` is a key of ``TASKS`` or the name of a task's class,
    ``architecture`` a key of ``ARCHITECTURES`` or the name of a mixer's class. ``families`` is the fraction of problems
    that are drawn from families."""
    if task in TASKS:
        problems, layout, symbols = TASKS[task]
        top, start = MAX_SYMBOLS // symbols, max(problems.smallest, START_SYMBOLS // symbols)
    else:
        problems = _build_part(Task, task)
        layout = next(form for form in (Tagged(), Labelled(), FullOutput()) if form.accepts(problems))
        top, start = (_find_largest_size(problems, symbols) for symbols in (MAX_SYMBOLS, START_SYMBOLS))
    return Recipe(
        name=f"formal-{fields.to_kebab_case(task)}-{fields.to_kebab_case(architecture)}{'-families' * (families > 0)}",
        task=problems,
        layout=layout,
        lengths=Mastery(top=top, start=start, bottom=problems.smallest, every=25, grow=1.5),
        loops=Constant(1),
        model=ARCHITECTURES[architecture]
        if architecture in ARCHITECTURES
        else build_two_blocks(_build_part(MixerSpec, architecture)),
        objective=Final(),
        steps=STEPS[scale],
        optimizer=AdamW(rate=SPECIAL_RATES.get((task, architecture), DEFAULT_RATES[scale])),
        schedule=Schedule("cosine", warmup=0.05, floor=0.02),
        families=families,
        chosen_on=ChosenOn((top,)),
    )


def _build_part(base: type, name: str) -> Any:
    """Build the part whose class is called ``name``, with default fields. Raises UsageError for an unknown name."""
    import_parts()
    if name not in (classes := fields.find_part_classes(base)):
        ours, kind = (ARCHITECTURES, "mixer") if base is MixerSpec else (TASKS, "task")
        raise UsageError(
            f"{name!r} is neither one of {', '.join(ours)} nor the class of a {kind}"
            f"{fields.suggest(name, [*ours, *classes])}; import your own module with --import"
        )
    return fields.build(classes[name], ())


def _find_largest_size(task: Task, symbols: int) -> int:
    """Return the largest size whose words have at most ``symbols`` symbols, or the smallest size if all are longer."""
    largest, draw = task.smallest, stream(0, "symbols")
    for size in task.list_smallest_sizes(symbols):
        if task.sample(torch.full((1, len(task.axes)), size), draw).prompt_length > symbols:
            break
        largest = size
    return largest


def build_exact_parity() -> dict[str, Recipe]:
    """Parity by a recurrent layer whose reflections (Grazzi et al., 2025) are exact enough for 256 bits. Without a
    short convolution, the first block's keys depend on a single bit. A seed takes a minute of one CPU thread."""
    gated = replace(build_two_blocks(GatedDeltaNet(negative=True, taps=0)), layers=1, heads=1)
    settings = {
        "deltanet": (build_two_blocks(DeltaNet(negative=True, taps=0)), Final(), 800, 4e-2),
        # With label smoothing decays and reflections become more exact even after parity is solved.
        "gated-deltanet": (gated, Final(smoothing=0.1), 1200, 2e-2),
    }
    return index_recipes(
        replace(
            build_formal_recipe("parity", architecture),
            name=f"exact-parity-{architecture}",
            model=model,
            objective=objective,
            steps=steps,
            optimizer=AdamW(rate=rate, weight_decay=0.0),
            chosen_on=ChosenOn((40, 128, 256)),
        )
        for architecture, (model, objective, steps, rate) in settings.items()
    )


# By task, architectures whose outcome is known from papers.
KNOWN_OUTCOMES = {"parity": ("attention", "deltanet-01", "deltanet", "gated-deltanet", "lstm"), "s3": ("lstm",)}


def build_formal_languages() -> dict[str, Recipe]:
    """An architecture on a formal language; papers report whether it learns the language."""
    return index_recipes(build_formal_recipe(task, name) for task, names in KNOWN_OUTCOMES.items() for name in names)
