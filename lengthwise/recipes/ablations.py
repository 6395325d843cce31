"""Ablations of our looped system and of our form of Abacus: each recipe changes one part.

``ablation-<task>-<change>``; ``ablation-<task>-ours`` is the reference.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lengthwise.experiment.layout import FullOutput
from lengthwise.experiment.lengths import Curriculum, LogUniform, Uniform
from lengthwise.experiment.loops import ExtraLoops, PerRound
from lengthwise.experiment.optim import Schedule
from lengthwise.experiment.recipe import Recipe, Watch, recipes_by_name
from lengthwise.models.transformer import Transformer
from lengthwise.nn.digit_position import Abacus, Coupling
from lengthwise.nn.position import ALiBi, Learned, NoPE, Position, RoPE
from lengthwise.nn.window import CoupledHeads, LocalHeads
from lengthwise.recipes.abacus import abacus_addition
from lengthwise.recipes.looped import SETTINGS, build_variation
from lengthwise.recipes.window import WINDOWED, columns_addition
from lengthwise.tasks.bits import FlippedCopy

PUBLISHED = ("parity", "binary-sum")  # tasks that the published form learns in minutes
PARITY_ONLY = ("no-ema", "alibi", "learned")  # addition takes longer


def ablations() -> dict[str, Recipe]:
    """Our looped system, or our form of Abacus, with one part changed. See results/ablations."""
    parity = replace(WINDOWED, name="ablation-parity-ours", watch=Watch())
    addition = replace(
        columns_addition(),
        name="ablation-addition-ours",
        lengths=Curriculum(top=10, every=60),  # up to 10 bits: four minutes instead of sixteen
        schedule=Schedule("cosine", cooldown=0.4),
        steps=1200,
        watch=Watch(),
    )
    of_addition = [recipe for recipe in _variants("addition", addition) if not recipe.name.endswith(PARITY_ONLY)]
    # The published recipes on half the range, without filling rows up to their batch's longest.
    halves = {task: build_variation(task, "fop-loop-adaptive", "half") for task in SETTINGS["half"]}
    own_rows = [
        replace(form, name=f"ablation-half-{task}-own-rows", layout=FullOutput()) for task, form in halves.items()
    ]
    return recipes_by_name(
        [
            *_variants("parity", parity),
            *of_addition,
            *_flipped_copy_recipes(),
            *_abacus_recipes(),
            *_published_recipes(),
            *own_rows,
        ]
    )


def _variants(task: str, base: Recipe) -> list[Recipe]:
    """Return one recipe per changed part."""
    others: dict[str, tuple[Position, ...]] = {
        "nope": (NoPE(),),
        "rope": (RoPE(),),
        "alibi": (ALiBi(),),
        "learned": (Learned(1024),),
        "half-local": (LocalHeads(2),),
        "half-coupled": (CoupledHeads(2),),
    }
    changes: dict[str, dict[str, Any]] = {
        "ours": {},
        "once": {"model": _change_model(base, injection="once")},
        "concat": {"model": _change_model(base, injection="concat")},
        "gate": {"model": _change_model(base, injection="gate")},
        "no-curriculum": {"lengths": Uniform(base.lengths.top)},
        "rounds-less": {"loops": PerRound(more=-1)},
        "rounds-more": {"loops": PerRound(more=1)},
        "rounds-twice": {"loops": PerRound(times=2)},
        "extra-loops": {"loops": ExtraLoops(extra=5)},
        "no-ema": {"ema": 0.0},
        **{name: {"model": _change_model(base, positions=positions)} for name, positions in others.items()},
    }
    return [replace(base, name=f"ablation-{task}-{what}", **change) for what, change in changes.items()]


def _flipped_copy_recipes() -> list[Recipe]:
    """Return recipes for a task that needs two loops in sequence, while the method has a single loop."""
    ours = replace(WINDOWED, task=FlippedCopy(), steps=3000, watch=Watch(every=300, sizes=(20, 26), count=200))
    deep = replace(ours, name="ablation-flipped-copy-ours", model=_change_model(ours, layers=2))
    half_local = _change_model(deep, positions=(LocalHeads(2),))
    return [deep, replace(deep, name="ablation-flipped-copy-half-local", model=half_local)]


def _abacus_recipes() -> list[Recipe]:
    """Return our form of Abacus on up to 10 digits, and without each of its five changes in turn."""
    ours = replace(abacus_addition(), name="ablation-abacus-ours", lengths=LogUniform(10), steps=3000, watch=Watch())
    coupling, neighbours, ahead, blank = _change_model(ours).positions
    assert isinstance(coupling, Coupling)
    plain = Abacus(size=coupling.size, offset=coupling.offset, std=coupling.std, start=coupling.start)
    changes: dict[str, tuple[Position, ...]] = {
        "random-start": (replace(coupling, start="random"), neighbours, ahead, blank),
        "one-offset": (plain, neighbours, ahead, blank),  # one offset per batch, for digits only
        "no-window": (coupling, ahead, blank),
        "no-ahead": (coupling, neighbours, blank),
        "no-blank": (coupling, neighbours, ahead),
    }
    others = [
        replace(ours, name=f"ablation-abacus-{what}", model=_change_model(ours, positions=positions))
        for what, positions in changes.items()
    ]
    return [ours, *others]


def _published_recipes() -> list[Recipe]:
    """Return the published recipes with one loop fewer, and with one more, than T(n)."""
    forms = {task: build_variation(task, "fop-loop-adaptive") for task in PUBLISHED}
    rounds = {"less": -1, "more": 1}
    return [
        replace(form, name=f"ablation-published-{task}-rounds-{what}", loops=PerRound(more=more))
        for task, form in forms.items()
        for what, more in rounds.items()
    ]


def _change_model(recipe: Recipe, **changes: Any) -> Transformer:
    assert isinstance(recipe.model, Transformer)
    return replace(recipe.model, **changes)
