"""Sums of stacked digits: a looped encoder and a standard one."""

from __future__ import annotations

from dataclasses import replace

from lengthwise.experiment.layout import Pairs
from lengthwise.experiment.lengths import Uniform
from lengthwise.experiment.loops import Constant, ExtraLoops, PerRound
from lengthwise.experiment.optim import AdamW, Schedule
from lengthwise.experiment.recipe import ChosenOn, Recipe, Watch, index_recipes
from lengthwise.experiment.stopping import Converged, Oracle
from lengthwise.models.transformer import Transformer
from lengthwise.nn.position import Learned, Mark
from lengthwise.nn.window import Local
from lengthwise.objectives import Final
from lengthwise.tasks.arithmetic import Addition

CARRY_FAMILIES = ("carry-chain", "few-columns", "rich-in-one-digit")  # families that are rich in carries
CHOSEN_ON = ChosenOn((8, 12, 16, 24), ("uniform", "hard", "families"))


def looped_pairs() -> Recipe:
    """Addition of n digits by n + 3 loops of one small block that sees a digit's two neighbours. The first position is
    marked: otherwise, in a run of equal columns, it would look like the second. The model stops when its answer has not
    changed for four loops."""
    return Recipe(
        name="looped-pairs",
        task=Addition(order="least", equal_lengths=True, leading_zeros=True),
        layout=Pairs(),
        lengths=Uniform(top=8, longest=0.25),
        loops=ExtraLoops(offset=3, extra=1),
        model=Transformer(width=64, mlp=2, activation="relu", positions=(Local(reach=1), Mark()), init_std=0.1),
        objective=Final(),
        steps=2500,
        batch=32,
        optimizer=AdamW(rate=6e-3),
        schedule=Schedule("cosine", warmup=0.05),
        ema=0.99,
        families=0.5,
        family_names=CARRY_FAMILIES,
        stopping=Converged(patience=4),
        watch=Watch(every=500, sizes=(8, 12), count=200),
        chosen_on=CHOSEN_ON,
    )


def standard_pairs() -> Recipe:
    """Addition on the data of ``looped-pairs`` by four layers that are applied once, see the whole row and have learned
    positions. With only that recipe's 2,500 steps, this model does not learn all 8-digit sums."""
    return replace(
        looped_pairs(),
        name="standard-pairs",
        chosen_on=CHOSEN_ON,
        loops=Constant(1),
        model=Transformer(
            width=128,
            layers=4,
            mlp=2,
            activation="relu",
            positions=(Learned(size=512),),
            injection="once",
            init_std=0.06,
        ),
        steps=3000,
        optimizer=AdamW(rate=2e-3),
        stopping=Oracle(),
    )


def build_notebook_models() -> dict[str, Recipe]:
    """A model of the notebook (docs/pairs.md): a standard encoder, or the looped encoder that the notebook intended,
    trained on sums of exactly 8 digits, decimal or binary modulo 2ⁿ."""
    # Like torch's encoder layer: an MLP of width 2,048, dropout (but none inside the MLP), and initial weights of
    # standard deviation 1 / √(3 · inputs). A column's two digits are read as two real numbers.
    standard = Transformer(
        width=128,
        layers=4,
        mlp=16,
        activation="relu",
        read_in="numbers",
        positions=(Learned(size=512),),
        injection="once",
        dropout=0.1,
        init_std=0.05,
        embedding_std=0.41,
    )
    looped = replace(standard, layers=1, positions=(Local(reach=2),), injection="add")
    recipes = []
    for digits, base, layout in (("decimal", 10, Pairs()), ("binary", 2, Pairs(carry=False))):
        for name, model, loops in (("standard", standard, Constant(1)), ("looped", looped, PerRound(offset=5))):
            recipes.append(
                Recipe(
                    name=f"notebook-{name}-{digits}",
                    task=Addition(base, order="least", equal_lengths=True, leading_zeros=True),
                    layout=layout,
                    lengths=Uniform(top=8, bottom=8),
                    loops=loops,
                    model=model,
                    objective=Final(),
                    steps=2001,
                    optimizer=AdamW(rate=1e-3, weight_decay=0.0),
                    clip=None,
                    watch=Watch(every=500, sizes=(8,), count=200),
                    chosen_on=ChosenOn((8,)),
                )
            )
    return index_recipes(recipes)
