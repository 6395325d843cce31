"""Looped transformers and their baselines (Fan et al., 2025): eight methods on six tasks, at three scales.

``paper-<method>-<task>`` is the published recipe, without positional encoding and window; ``<method>-<task>`` is the
same at a small width, for a CPU. ``half-<method>-<task>`` is trained on half the range, with half the loops and pauses.
A method is a layout, a number of loops and a depth. All methods of a task share everything else, including the number
and distribution of problems. Exception: with ``Mastery``, the lengths depend on the model's accuracy. Our variants of
these models are in ``recipes/window.py``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

from lengthwise.base.fields import validate_arguments
from lengthwise.base.types import UsageError
from lengthwise.experiment.layout import FullOutput, NextToken
from lengthwise.experiment.lengths import Curriculum, Mastery
from lengthwise.experiment.loops import Constant, PerRound
from lengthwise.experiment.optim import AdamW, Schedule
from lengthwise.experiment.recipe import ChosenOn, Recipe, Watch, index_recipes
from lengthwise.models.transformer import Transformer
from lengthwise.objectives import Final
from lengthwise.tasks import Task
from lengthwise.tasks.arithmetic import Addition, Multiplication
from lengthwise.tasks.bits import BinarySum
from lengthwise.tasks.parity import Parity
from lengthwise.tasks.strings import Copy, UniqueSet

Scale = Literal["cpu", "half", "paper"]
# A method's name has these parts. ``ntp``, ``fop``: next-token or full-output prediction; ``pause``: pause tokens;
# ``loop``: T(n) loops if ``adaptive``, else ``Setting.fixed_count``; ``wo``: without input injection. A method without
# loops has ``Setting.fixed_count`` copies of the block.
Method = Literal[
    "ntp", "ntp-pause", "ntp-loop", "fop", "fop-pause", "fop-loop-fixed", "fop-loop-adaptive", "fop-loop-adaptive-wo"
]
METHODS: tuple[Method, ...] = get_args(Method)


@dataclass(frozen=True)
class Setting:
    """The settings of a task at one scale. Defaults hold for all tasks of Fan et al., 2025, section 6 and appendix.

    ``embedding_std`` is 1 / √(3 · symbols), the standard deviation with which torch initializes a linear layer on
    one-hot symbols: 0.29 for four symbols. The official code reads symbols with such a layer, plus a bias, but with six
    inputs for every task (0.24); for the unique set, it uses an embedding table.
    """

    task: Task
    layers: int  # layers of the block
    heads: int
    steps_per_length: int  # steps until the curriculum's next length; 0: until the model masters it
    constant_steps: int  # steps until the rate falls
    steps: int = 100_000
    batch: int = 64
    rate: float = 1e-4
    width: int = 256
    init_std: float = 0.02
    embedding_std: float = 0.29
    ema: float = 0.0
    ema_start: int = 0
    top: int = 20
    top_per_axis: tuple[int, ...] = ()  # the largest size in training; empty: ``top`` on every axis
    large_eps: bool = False  # in AdamW: steps then vanish with the gradients, so that nothing is forgotten (docs/lab)
    families: tuple[str, ...] = ()  # half of the problems are from these families
    measurements: int = 10  # number of measurements near the training lengths, on 200 problems each
    keep_best: bool = False  # keep the best measured weights, on 500 problems each; else the last
    inspected_sizes: tuple[int, ...] = ()  # longer sizes that were measured while the setting was chosen (docs/lab)
    mastery_level: float = 0.9  # with ``Mastery``: exact match that admits the next length
    longest_fraction: float = 0.0  # with ``Mastery``: the fraction of rows that have the largest size so far
    level_rows: bool = True  # rows are as long as the batch's longest, and supervised to their ends
    fixed_count: int = 20  # number of loops, pauses, or blocks (in methods without loops), if it is fixed


# Smaller than published, with larger initial weights, fewer heads, a faster curriculum and a higher rate. The unique
# set has two heads of the published width: with heads of width eight it learns later and confuses symbols (docs/lab).
_small_setting = partial(Setting, batch=32, width=64, level_rows=False, init_std=0.1, embedding_std=0.3, ema=0.99)
_steady_setting = partial(_small_setting, batch=64, large_eps=True)
_long_setting = partial(
    _steady_setting,
    layers=3,
    steps_per_length=0,
    mastery_level=0.8,
    rate=1e-3,
    ema=0.998,
    level_rows=True,
    inspected_sizes=(30,),
)
_half_setting = partial(_steady_setting, steps_per_length=0, ema=0.995, top=10, fixed_count=10, level_rows=True)

SETTINGS: dict[Scale, dict[str, Setting]] = {
    "paper": {
        "parity": Setting(Parity(), 1, 64, 500, 10_500, ema=0.9999, ema_start=10_500),
        "copy": Setting(Copy(), 2, 8, 1000, 20_000),
        "addition": Setting(Addition(2, "most", True, True), 3, 8, 1600, 32_000, embedding_std=0.26),
        "binary-sum": Setting(BinarySum(), 2, 16, 500, 10_000, ema=0.9999, ema_start=10_000),
        "multiplication": Setting(Multiplication(), 4, 8, 500, 6000, embedding_std=0.26, top=11, top_per_axis=(2, 11)),
        "unique-set": Setting(UniqueSet(), 3, 8, 1000, 20_000, embedding_std=1.0),
    },
    "cpu": {
        "parity": _small_setting(Parity(), 1, 8, 60, 1250, steps=2500, rate=7e-4),
        "copy": _steady_setting(Copy(), 2, 8, 150, 7200, steps=8000, rate=7e-4, ema=0.998, inspected_sizes=(30, 40)),
        # The rate falls from the first step: at a high rate, a model that solves long sums forgets them (docs/lab).
        "addition": _long_setting(
            Addition(2, "most", True, True),
            heads=8,
            constant_steps=0,
            steps=14_000,
            longest_fraction=0.3,
            measurements=28,
            keep_best=True,
        ),
        "binary-sum": _small_setting(BinarySum(), 2, 8, 60, 1250, steps=2500, rate=7e-4),
        "multiplication": _steady_setting(
            Multiplication(),
            layers=4,
            heads=8,
            steps_per_length=0,
            constant_steps=9000,
            steps=12_000,
            rate=7e-4,
            ema=0.995,
            top=11,
            top_per_axis=(2, 11),
            families=("mostly-highest", "powers", "one-and-any", "rich-in-one-digit"),
            measurements=48,
            keep_best=True,
            inspected_sizes=(13, 15),
        ),
        "unique-set": _long_setting(
            UniqueSet(), heads=2, constant_steps=3000, steps=20_000, measurements=40, embedding_std=1.0
        ),
    },
    "half": {
        "parity": _half_setting(Parity(), 1, 8, constant_steps=750, steps=1500, rate=7e-4),
        "copy": _half_setting(Copy(), 2, 8, constant_steps=1500, steps=3000, rate=7e-4),
        "addition": _half_setting(Addition(2, "most", True, True), 3, 8, constant_steps=3000, steps=7000, rate=1e-3),
        "binary-sum": _half_setting(BinarySum(), 2, 8, constant_steps=1000, steps=2000, rate=7e-4),
        "multiplication": _half_setting(
            Multiplication(), 4, 8, constant_steps=2000, steps=4000, rate=7e-4, top=6, top_per_axis=(2, 6)
        ),
        "unique-set": _half_setting(UniqueSet(), 3, 2, constant_steps=3000, steps=7000, rate=1e-3, embedding_std=1.0),
    },
}


@validate_arguments
def build_variation(task: str, method: Method, scale: Scale = "cpu") -> Recipe:
    """Return the recipe of one method on one task. Raises UsageError for a task that has no recipe at this scale."""
    if task not in SETTINGS[scale]:
        tasks = ", ".join(SETTINGS[scale])
        raise UsageError(f"task: {task!r} has no recipe; the tasks at the {scale} scale are: {tasks}")
    setting = SETTINGS[scale][task]
    looped, watched_sizes = "loop" in method, (setting.top, int(1.3 * setting.top))
    pauses = setting.fixed_count if "pause" in method else 0
    # The paper's code supervises every column of a batch; its code for the baselines is not public.
    full = FullOutput(pauses, whole_tail=setting.level_rows, level=setting.level_rows)
    range_ = {"top": setting.top, "max_per_axis": setting.top_per_axis}
    lengths = Mastery(pass_accuracy=setting.mastery_level, longest=setting.longest_fraction, **range_)
    if setting.steps_per_length:
        lengths = Curriculum(every=setting.steps_per_length, **range_)
    return Recipe(
        name=f"{method}-{task}" if scale == "cpu" else f"{scale}-{method}-{task}",
        task=setting.task,
        layout=NextToken(pauses) if method.startswith("ntp") else full,
        lengths=lengths,
        loops=PerRound() if "adaptive" in method else Constant(setting.fixed_count if looped else 1),
        model=Transformer(
            width=setting.width,
            layers=setting.layers * (1 if looped else setting.fixed_count),
            heads=setting.heads,
            injection="add" if looped and not method.endswith("wo") else "once",
            init_std=setting.init_std,
            embedding_std=setting.embedding_std,
        ),
        objective=Final(),
        steps=setting.steps,
        batch=setting.batch,
        optimizer=AdamW(setting.rate, (0.9, 0.95), eps=1e-4) if setting.large_eps else AdamW(setting.rate),
        schedule=Schedule("cosine", cooldown=1 - setting.constant_steps / setting.steps),
        clip=0.5 if setting.large_eps else 1.0,
        ema=setting.ema,
        ema_start=setting.ema_start,
        families=0.5 if setting.families else 0.0,
        family_names=setting.families,
        watch=Watch(setting.steps // setting.measurements, watched_sizes, 500 if setting.keep_best else 200),
        keep="best" if setting.keep_best else "last",
        chosen_on=ChosenOn((*watched_sizes, *setting.inspected_sizes)),
    )


def build_small_methods() -> dict[str, Recipe]:
    """A method of Fan et al., 2025, at a small width: minutes to three hours of one CPU thread. See results/looped."""
    return _build_methods("cpu")


def build_half_range_methods() -> dict[str, Recipe]:
    """A method of Fan et al., 2025, at a small width, trained on half the range. See docs/looped.md."""
    return _build_methods("half")


def build_paper_methods() -> dict[str, Recipe]:
    """A method of Fan et al., 2025, as published: width 256, 100,000 steps; for a GPU."""
    return _build_methods("paper")


def _build_methods(scale: Scale) -> dict[str, Recipe]:
    return index_recipes(build_variation(task, method, scale) for task in SETTINGS[scale] for method in METHODS)
