"""Ablations of our looped models and of our variant of Abacus: each recipe changes one part.

Recipes are called ``ablation-<task>-<change>``; ``ablation-<task>-ours`` is the unchanged reference.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lengthwise.experiment.layout import FullOutput
from lengthwise.experiment.lengths import Curriculum, LogUniform, Uniform
from lengthwise.experiment.loops import ExtraLoops, PerRound
from lengthwise.experiment.optim import Schedule
from lengthwise.experiment.recipe import Recipe, Watch, index_recipes
from lengthwise.models.transformer import Transformer
from lengthwise.nn.digit_position import Abacus, Coupling
from lengthwise.nn.position import ALiBi, Learned, NoPE, Position, RoPE
from lengthwise.nn.window import CoupledHeads, LocalHeads
from lengthwise.recipes.abacus import abacus_addition
from lengthwise.recipes.looped import SETTINGS, build_variation
from lengthwise.recipes.window import WINDOWED, columns_addition
from lengthwise.tasks.bits import FlippedCopy


def build_ablations() -> dict[str, Recipe]:
    """Our looped model, or our variant of Abacus, with one part changed. See results/ablations."""
    parity = replace(WINDOWED, name="ablation-parity-ours", watch=Watch())
    addition = replace(
        columns_addition(),
        name="ablation-addition-ours",
        lengths=Curriculum(top=10, every=60),  # up to 10 bits: four minutes instead of sixteen
        schedule=Schedule("cosine", cooldown=0.4),
        steps=1200,
        watch=Watch(),
    )
    recipes = _build_variants("parity", parity)
    # These ablations are run on parity only, since addition takes longer.
    parity_only = ("no-ema", "alibi", "learned")
    recipes += [recipe for recipe in _build_variants("addition", addition) if not recipe.name.endswith(parity_only)]

    # A task that needs two loops in sequence, while the method has a single loop.
    flipped = replace(WINDOWED, task=FlippedCopy(), steps=3000, watch=Watch(every=300, sizes=(20, 26), count=200))
    deep = replace(flipped, name="ablation-flipped-copy-ours", model=_change_model(flipped, layers=2))
    half_local = _change_model(deep, positions=(LocalHeads(2),))
    recipes += [deep, replace(deep, name="ablation-flipped-copy-half-local", model=half_local)]

    # Our variant of Abacus on up to 10 digits, and without each of its five changes in turn.
    ours = replace(abacus_addition(), name="ablation-abacus-ours", lengths=LogUniform(10), steps=3000, watch=Watch())
    coupling, neighbours, ahead, blank = _change_model(ours).positions
    assert isinstance(coupling, Coupling)
    plain = Abacus(size=coupling.size, offset=coupling.offset, std=coupling.std, start=coupling.start)
    without: dict[str, tuple[Position, ...]] = {
        "random-start": (replace(coupling, start="random"), neighbours, ahead, blank),
        "one-offset": (plain, neighbours, ahead, blank),  # one offset per batch, for digits only
        "no-window": (coupling, ahead, blank),
        "no-ahead": (coupling, neighbours, blank),
        "no-blank": (coupling, neighbours, ahead),
    }
    recipes.append(ours)
    for change, positions in without.items():
        recipes.append(replace(ours, name=f"ablation-abacus-{change}", model=_change_model(ours, positions=positions)))

    # The published recipes that learn in minutes, with one loop fewer, and with one more, than T(n).
    for task in ("parity", "binary-sum"):
        published = build_variation(task, "fop-loop-adaptive")
        for change, extra_loops in (("less", -1), ("more", 1)):
            name = f"ablation-published-{task}-rounds-{change}"
            recipes.append(replace(published, name=name, loops=PerRound(offset=extra_loops)))
    # The published recipes on half the range, without ``level`` and ``whole_tail``: each row keeps its own length.
    for task in SETTINGS["half"]:
        published = build_variation(task, "fop-loop-adaptive", "half")
        recipes.append(replace(published, name=f"ablation-half-{task}-own-rows", layout=FullOutput()))
    return index_recipes(recipes)


def _build_variants(task: str, base: Recipe) -> list[Recipe]:
    """Return one recipe per change of ``base``, and ``base`` itself."""
    encodings: dict[str, tuple[Position, ...]] = {
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
        "rounds-less": {"loops": PerRound(offset=-1)},
        "rounds-more": {"loops": PerRound(offset=1)},
        "rounds-twice": {"loops": PerRound(times=2)},
        "extra-loops": {"loops": ExtraLoops(extra=5)},
        "no-ema": {"ema": 0.0},
        **{name: {"model": _change_model(base, positions=positions)} for name, positions in encodings.items()},
    }
    return [replace(base, name=f"ablation-{task}-{suffix}", **change) for suffix, change in changes.items()]


def _change_model(recipe: Recipe, **changes: Any) -> Transformer:
    assert isinstance(recipe.model, Transformer)
    return replace(recipe.model, **changes)
