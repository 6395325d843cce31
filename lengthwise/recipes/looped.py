"""Looped transformers and their baselines (Fan et al. 2025): eight methods on six tasks, at two scales.

``paper-<method>-<task>`` is the published recipe, ``<method>-<task>`` the same at a small width, for a CPU: no
positional encoding, no window. A method is a layout, a number of loops and a depth; all else is the same for all
methods of a task, the problems and their number too. Our own form of the system is in ``recipes/window.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from lengthwise.base.types import UsageError
from lengthwise.models.transformer import Transformer
from lengthwise.objectives.final import Final
from lengthwise.recipe.layout import FullOutput, Layout, NextToken
from lengthwise.recipe.lengths import Curriculum
from lengthwise.recipe.loops import Constant, Loops, PerRound
from lengthwise.recipe.optim import AdamW, Schedule
from lengthwise.recipe.recipe import ChosenOn, Recipe, Watch
from lengthwise.tasks import Task
from lengthwise.tasks.addition import Addition
from lengthwise.tasks.binary_sum import BinarySum
from lengthwise.tasks.copy import Copy
from lengthwise.tasks.multiplication import Multiplication
from lengthwise.tasks.parity import Parity
from lengthwise.tasks.unique_set import UniqueSet

Scale = Literal["cpu", "paper"]

LOOPS = 20  # of the methods whose number of loops is fixed; and the depth of those without loops, in blocks
PAUSES = 20


@dataclass(frozen=True)
class Method:
    """What sets a method apart."""

    layout: Layout
    loops: Loops
    looped: bool = True  # one block again and again, or as many blocks as LOOPS loops would apply
    injection: bool = True


METHODS = {
    "ntp": Method(NextToken(), Constant(1), looped=False),
    "ntp-pause": Method(NextToken(PAUSES), Constant(1), looped=False),
    "ntp-loop": Method(NextToken(), Constant(LOOPS)),
    "fop": Method(FullOutput(), Constant(1), looped=False),
    "fop-pause": Method(FullOutput(PAUSES), Constant(1), looped=False),
    "fop-loop-fixed": Method(FullOutput(), Constant(LOOPS)),
    "fop-loop-adaptive": Method(FullOutput(), PerRound()),
    "fop-loop-adaptive-wo": Method(FullOutput(), PerRound(), injection=False),
}


@dataclass(frozen=True)
class Setting:
    """What a task takes at one scale; as it stands, what all tasks share in Fan et al. 2025, section 6 and appendix.

    The published read-in is a linear layer on one-hot symbols as torch initialises it: uniform, with a spread of
    1 / √(3 · symbols), which is 0.29 for four symbols.
    """

    task: Task
    layers: int  # of the block
    heads: int
    every: int  # steps until the curriculum's next length
    constant: int  # steps until the rate falls
    steps: int = 100_000
    batch: int = 64
    rate: float = 1e-4
    width: int = 256
    init_std: float = 0.02
    embedding_std: float = 0.29
    ema: float = 0.0
    ema_start: int = 0
    top: int = 20
    most: tuple[int, ...] = ()


# Smaller than published, with larger weights at the start, fewer heads, a faster curriculum and a higher rate.
_small = partial(Setting, batch=32, width=64, init_std=0.1, embedding_std=0.3, ema=0.99)

SETTINGS: dict[Scale, dict[str, Setting]] = {
    "paper": {
        "parity": Setting(Parity(), 1, 64, 500, 10_500, ema=0.9999, ema_start=10_500),
        "copy": Setting(Copy(), 2, 8, 1000, 20_000),
        "addition": Setting(Addition(2, "most", True, True), 3, 8, 1600, 32_000, embedding_std=0.26),
        "binary-sum": Setting(BinarySum(), 2, 16, 500, 10_000, ema=0.9999, ema_start=10_000),
        "multiplication": Setting(Multiplication(), 4, 8, 500, 6000, embedding_std=0.26, top=11, most=(2, 11)),
        "unique-set": Setting(UniqueSet(), 3, 8, 1000, 20_000, embedding_std=1.0),
    },
    "cpu": {
        "parity": _small(Parity(), 1, 8, 60, 1250, steps=2500, rate=7e-4),
        "copy": _small(Copy(), 2, 8, 150, 4250, steps=5000, batch=64, rate=7e-4, ema=0.995),
        "addition": _small(Addition(2, "most", True, True), 3, 8, 100, 2000, steps=3000, rate=5e-4),
        "binary-sum": _small(BinarySum(), 2, 8, 60, 1250, steps=2500, rate=7e-4),
        "multiplication": _small(Multiplication(), 4, 8, 100, 1500, steps=2500, rate=5e-4, top=11, most=(2, 11)),
        "unique-set": _small(UniqueSet(), 3, 8, 100, 2000, steps=3000, rate=1e-3, embedding_std=1.0),
    },
}


def variation(task: str, method: str, scale: Scale = "cpu") -> Recipe:
    """One method on one task. UsageError where a name is wrong, or a task has no recipe at this scale."""
    for what, name, known in (("scale", scale, get_args(Scale)), ("method", method, METHODS)):
        if name not in known:
            raise UsageError(f"{what}: {name!r} is not one of: {', '.join(known)}")
    if task not in SETTINGS[scale]:
        there = f"at the {scale} scale there are: {', '.join(SETTINGS[scale])}"
        raise UsageError(f"task: {task!r} has no recipe; {there}")
    setting, chosen = SETTINGS[scale][task], METHODS[method]
    return Recipe(
        name=f"{method}-{task}" if scale == "cpu" else f"{scale}-{method}-{task}",
        task=setting.task,
        layout=chosen.layout,
        lengths=Curriculum(top=setting.top, every=setting.every, most=setting.most),
        loops=chosen.loops,
        model=Transformer(
            width=setting.width,
            layers=setting.layers * (1 if chosen.looped else LOOPS),
            heads=setting.heads,
            injection="add" if chosen.looped and chosen.injection else "once",
            init_std=setting.init_std,
            embedding_std=setting.embedding_std,
        ),
        objective=Final(),
        steps=setting.steps,
        batch=setting.batch,
        optimizer=AdamW(rate=setting.rate, weight_decay=0.01),
        schedule=Schedule("cosine", cooldown=1 - setting.constant / setting.steps),
        ema=setting.ema,
        ema_start=setting.ema_start,
        watch=Watch(every=setting.steps // 10, sizes=(setting.top, int(1.3 * setting.top)), count=200),
        chosen_on=ChosenOn((setting.top, int(1.3 * setting.top))),
    )


def cpu() -> dict[str, Recipe]:
    """A method of Fan et al. 2025 at a small width: minutes of one CPU thread. See results/looped."""
    return _all("cpu")


def paper() -> dict[str, Recipe]:
    """A method of Fan et al. 2025 as published: width 256, 100,000 steps; for a GPU."""
    return _all("paper")


def _all(scale: Scale) -> dict[str, Recipe]:
    found = [variation(task, method, scale) for task in SETTINGS[scale] for method in METHODS]
    return {recipe.name: recipe for recipe in found}
