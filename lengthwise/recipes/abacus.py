"""Abacus embeddings and looped decoders (McLeish et al., 2024): the published recipes and ours.

``abacus-addition`` is ours, at a small width; ``abacus-positions-<encoding>`` and ``abacus-split-<layers>x<loops>``
compare encodings, and splits of depth into layers and loops, at equal budget; ``paper-abacus-…`` and
``blog-abacus-addition`` are the published recipes, for a GPU.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from lengthwise.experiment.layout import NextToken
from lengthwise.experiment.lengths import LogUniform, Uniform
from lengthwise.experiment.loops import Constant
from lengthwise.experiment.optim import AdamW, Schedule
from lengthwise.experiment.recipe import ChosenOn, Recipe, Watch, index_recipes
from lengthwise.models.transformer import Injection, Transformer
from lengthwise.nn.digit_position import Abacus, Coupling
from lengthwise.nn.position import FIRE, ALiBi, Learned, NoPE, Position, Randomized, RoPE
from lengthwise.nn.window import Blank, CoupledHeads, LocalHeads
from lengthwise.objectives import Final, Progressive
from lengthwise.recipes.pairs import CARRY_FAMILIES
from lengthwise.tasks.arithmetic import Addition, Multiplication
from lengthwise.tasks.bits import BitwiseOr
from lengthwise.tasks.sorting import Sorting

PROBES = ("1+1", "57+24", "999999+8888", f"{'789' * 50}+{'12' * 20}")
EFFECTIVE_LAYERS = 16  # number of effective layers, as published


# Splits of ``EFFECTIVE_LAYERS`` effective layers into layers and loops: the layers, and the form of input injection.
SPLITS: dict[str, tuple[int, Injection]] = {
    "16x1": (16, "once"),
    "16x1-injection": (16, "layers"),
    "8x2": (8, "add"),
    "4x4": (4, "add"),
    "1x16": (1, "add"),
}


def build_decoders() -> dict[str, Recipe]:
    """A decoder of McLeish et al., 2024, as published: width 1024, 20 million sums of up to 20 digits; for a GPU."""
    return index_recipes(map(_build_published_recipe, SPLITS))


def _build_published_recipe(name: str) -> Recipe:
    layers, injection = SPLITS[name]
    loops = EFFECTIVE_LAYERS // layers
    # The batch size is constant: the published one grows to 8,192 over the first 60 % of the run, which lasts 24 hours.
    # docs/abacus.md lists all differences.
    model = Transformer(
        width=1024,
        layers=layers,
        heads=16,
        mlp=1,
        gated=True,
        norm="post",
        final_norm="readout",
        embedding_norm=True,
        eps=1e-12,
        biases=False,
        readout="mlp",
        # Symbols and digit positions start equally large; otherwise the norm of their sum hides the positions.
        embedding_std=1 / 32,
        positions=(Abacus(size=511, offset=101, std=1 / 32),),
        injection=injection,
        noise=0.02 if loops > 1 else 0.0,
    )
    return Recipe(
        name=f"paper-abacus-{name}",
        task=Addition(order="least"),
        layout=NextToken(),
        lengths=Uniform(20),
        loops=Constant(loops),
        model=model,
        objective=Progressive(weight=1.0, truncated=True) if loops > 1 else Final(),
        steps=2440,
        batch=8192,
        optimizer=AdamW(rate=1e-4, betas=(0.9, 0.98), eps=1e-12),
        schedule=Schedule("trapezoid", warmup=0.1, cooldown=0.1),
        clip=0.5,
        watch=Watch(every=244, sizes=(20, 25), count=100, probes=PROBES),
        chosen_on=ChosenOn((20, 25)),
    )


def blog_abacus_addition() -> Recipe:
    """The model of a blog that reproduced Abacus addition (docs/abacus.md): one layer, 16 loops, the input added in
    every layer, and digit positions added to queries and keys. Training takes 27 hours of one GPU. The blog reports a
    mean exact match of 0.61 over sums of 40 × 40 digits."""
    model = Transformer(
        width=1024,
        layers=1,
        heads=16,
        mlp=2,
        final_norm="none",
        positions=(Abacus(size=511, offset=100, each_row=True, added_to="attention"),),
        injection="reads",
    )
    return replace(
        _build_published_recipe("1x16"),
        name="blog-abacus-addition",
        model=model,
        objective=Progressive(),
        steps=210_000,
        batch=95,
        optimizer=AdamW(rate=1e-4),
        schedule=Schedule(),
        clip=None,
        watch=Watch(every=5000, sizes=(20, 25), count=100, probes=PROBES),
        chosen_on=ChosenOn((20, 25)),
    )


SMALL_MODEL = Transformer(width=128, layers=2, heads=4, init_std=0.05, embedding_std=0.5)
# Vectors that start as sines are distinct, and similar for neighbouring positions. With an offset per row, every batch
# trains all vectors.
ABACUS_ENCODING = Abacus(size=160, offset=100, std=0.3, start="sines", each_row=True)


def abacus_addition() -> Recipe:
    """Our model for addition with Abacus embeddings: two layers, two loops and width 128. Half of the heads see only
    neighbouring digit positions, the others only the position of the next digit; any head may also attend to nothing.
    A seed takes about 25 minutes of one CPU thread; weights are shipped. See docs/abacus.md."""
    coupling = Coupling(size=160, offset=100, std=0.3, start="sines")
    # A head that has to find the next column among its neighbours also mixes in some of their content.
    windows = CoupledHeads(count=SMALL_MODEL.heads, reach=1), CoupledHeads(count=SMALL_MODEL.heads // 2, ahead=1)
    return replace(
        abacus_addition_full(),
        name="abacus-addition",
        lengths=LogUniform(20),
        # With the blank key, a column of two 9s and one of a single 9 have different averages.
        model=replace(SMALL_MODEL, positions=(coupling, *windows, Blank())),
        steps=12_000,
        ema=0.999,
        families=0.5,
        family_names=(*CARRY_FAMILIES, "runs", "mostly-lowest", "mostly-highest", "twice"),
        chosen_on=ChosenOn((20, 25, 30, 40, 100), ("uniform", "families")),
    )


def abacus_addition_full() -> Recipe:
    """``abacus-addition`` with Abacus embeddings alone: all heads see the whole row. A seed takes an hour of one CPU
    thread. Expect a mean exact match of 1.0 over 20 × 20 digits, of 0.7 over 40 × 40, and of 0 at 100 digits."""
    return Recipe(
        name="abacus-addition-full",
        task=Addition(order="least"),
        layout=NextToken(),
        lengths=Uniform(20),
        loops=Constant(2),
        model=replace(SMALL_MODEL, positions=(ABACUS_ENCODING,)),
        objective=Final(),
        steps=7000,
        schedule=Schedule("cosine", warmup=0.02, cooldown=0.5),
        ema=0.998,
        watch=Watch(every=500, sizes=(20, 25), count=200, probes=PROBES),
        chosen_on=ChosenOn((20, 25)),
    )


# Digit positions for 5 digits plus offsets up to 30, so that training reaches positions of numbers of 30 digits.
_DIGIT_POSITIONS = Abacus(size=64, offset=30, std=0.3, start="sines", each_row=True)

POSITIONS: dict[str, tuple[Position, ...]] = {
    "nope": (NoPE(),),
    "learned": (Learned(size=64),),
    "rope": (RoPE(),),
    "alibi": (ALiBi(),),
    "fire": (FIRE(),),
    "randomized": (Randomized(encoding=Learned(size=64), size=64),),
    "abacus": (_DIGIT_POSITIONS,),
    "abacus-fire": (_DIGIT_POSITIONS, FIRE()),
    "abacus-rope": (_DIGIT_POSITIONS, RoPE()),
    "coupling": (Coupling(size=64, offset=30, std=0.3, start="sines"),),
}


def build_encoding_variants() -> dict[str, Recipe]:
    """Sums of up to 5 digits with one of ten positional encodings, after McLeish et al., 2024. With this budget,
    encodings without digit positions also solve most 5-digit sums. See results/abacus."""
    models = {name: replace(SMALL_MODEL, positions=positions) for name, positions in POSITIONS.items()}
    return index_recipes(
        _build_comparison_recipe(f"abacus-positions-{name}", 5, steps=4000, model=model)
        for name, model in models.items()
    )


def build_depth_splits() -> dict[str, Recipe]:
    """Sums of up to 6 digits by sixteen effective layers of width 64, split into layers and loops as published.
    ``-once`` adds the input only before the first loop; ``-progressive`` adds a loss after a random number of loops.
    See results/abacus."""
    recipes = []
    for name, (layers, injection) in SPLITS.items():
        loops = EFFECTIVE_LAYERS // layers
        model = replace(SMALL_MODEL, width=64, layers=layers, injection=injection, positions=(_DIGIT_POSITIONS,))
        build = partial(_build_comparison_recipe, top=6, steps=3000, loops=Constant(loops))
        recipes.append(build(f"abacus-split-{name}", model=model))
        if loops > 1:
            recipes.append(build(f"abacus-split-{name}-once", model=replace(model, injection="once")))
            recipes.append(build(f"abacus-split-{name}-progressive", model=model, objective=Progressive()))
    return index_recipes(recipes)


def _build_comparison_recipe(name: str, top: int, **changes: Any) -> Recipe:
    """Return a recipe for sums of up to ``top`` digits that trains in minutes."""
    sizes = (top, top + 2)
    return replace(
        abacus_addition_full(),
        name=name,
        lengths=Uniform(top),
        ema=0.99,
        watch=Watch(every=500, sizes=sizes, count=200),
        chosen_on=ChosenOn(sizes),
        **changes,
    )


# Digit positions of short numbers. Sorting also has to distinguish numbers, not only the digits within them.
_SHORT_DIGIT_POSITIONS = Abacus(size=64, offset=8, std=0.3, start="sines", each_row=True)


def build_other_tasks() -> dict[str, Recipe]:
    """Another task of McLeish et al., 2024, on small sizes. See results/abacus."""
    base = replace(abacus_addition_full(), steps=4000, ema=0.99)
    short_positions = replace(base, model=replace(SMALL_MODEL, positions=(_SHORT_DIGIT_POSITIONS,)), steps=12_000)
    rotary = replace(base, model=replace(SMALL_MODEL, positions=(_SHORT_DIGIT_POSITIONS, RoPE())))
    multiplication = Multiplication(base=10, order="least", product="least", leading_zeros=False)
    settings = (
        (short_positions, "multiplication", multiplication, 2),
        (rotary, "sorting", Sorting(), 3),
        (replace(base, steps=2000), "bitwise-or", BitwiseOr(), 10),
    )
    recipes = []
    for base_of_task, name, task, top in settings:
        watch = Watch(every=250, sizes=(top, int(top * 1.3)), count=200)
        named = replace(base_of_task, name=f"abacus-{name}", task=task, lengths=Uniform(top), watch=watch)
        recipes.append(replace(named, chosen_on=ChosenOn(watch.sizes)))
    return index_recipes(recipes)


def local_sorting() -> Recipe:
    """Our model for sorting: half of the heads see only the left neighbour, and collect a number's digits at its end;
    the others see all positions. The model is trained on up to four numbers of four digits. Expect exact match .99 or
    more on every family with three numbers of 3 digits, .9 with four of 4 digits, and low scores with five of 5 digits.
    A seed takes an hour of one CPU thread; weights are shipped."""
    similar = ("neighbours", "shared-front", "odd-one-out", "same-length", "two-values")
    return replace(
        build_other_tasks()["abacus-sorting"],
        name="local-sorting",
        lengths=Uniform(4),
        loops=Constant(4),
        model=replace(SMALL_MODEL, positions=(_SHORT_DIGIT_POSITIONS, LocalHeads(count=2))),
        steps=22_000,
        ema=0.999,
        families=0.6,
        family_names=(*similar, "shared-back", "descending"),
        watch=Watch(every=1000, sizes=(4, 5), count=200),
        chosen_on=ChosenOn((4, 5, 6), ("uniform", "families")),
    )
