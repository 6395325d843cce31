"""ReTran, GPT and LSTM on arithmetic expressions (ReTran, ACL 2025): three models with about equal numbers of
parameters, in three sizes.

``paper-<model>-<size>`` is the published recipe: ten epochs of 2.6 million expressions. ``<model>-<size>`` is the same
model on a CPU budget.
"""

from __future__ import annotations

from dataclasses import replace

from lengthwise.experiment.layout import NextToken
from lengthwise.experiment.lengths import Natural
from lengthwise.experiment.loops import Constant
from lengthwise.experiment.optim import LAMB, AdamW, Schedule
from lengthwise.experiment.recipe import Recipe, Watch, index_recipes
from lengthwise.experiment.source import Finite
from lengthwise.models import ModelSpec
from lengthwise.models.retran import LSTM, ReTran
from lengthwise.models.transformer import Transformer
from lengthwise.nn.position import RoPE
from lengthwise.objectives import Final
from lengthwise.tasks.expression import Expression

ROWS, BATCH, EPOCHS = 2_621_440, 2048, 10
SIZES = {"small": (16, 64, 3), "medium": (32, 128, 4), "large": (64, 256, 6)}  # width, hidden width, layers


def build_models(size: str) -> dict[str, tuple[ModelSpec, float]]:
    """Return the models of one size, each with its peak learning rate. GPT is twice as wide as the others, to have as
    many parameters."""
    width, hidden, layers = SIZES[size]
    gpt = Transformer(
        width=2 * width,
        layers=layers,
        heads=8,
        norm="post",
        final_norm="none",
        readout="scaled",
        init="attention",
        positions=(RoPE(),),
        injection="once",
        dropout=0.1,
        embedding_std=0.02,
    )
    return {
        "retran": (ReTran(width, hidden, layers), 0.008),
        "gpt": (gpt, 0.01),
        "lstm": (LSTM(width, hidden, layers), 0.006),
    }


def build_paper_models() -> dict[str, Recipe]:
    """A model of the ReTran paper as published: ten epochs of 2.6 million expressions of up to 30 characters."""
    # One difference: the published GPT also has dropout after each GELU.
    return index_recipes(_build_published_recipe(name, size) for size in SIZES for name in build_models(size))


def _build_published_recipe(name: str, size: str) -> Recipe:
    model, rate = build_models(size)[name]
    epoch = ROWS // BATCH
    return Recipe(
        name=f"paper-{name}-{size}",
        task=Expression(),
        layout=NextToken(framed=True),
        lengths=Natural(top=30, bottom=8),
        loops=Constant(1),
        model=model,
        objective=Final(),
        steps=EPOCHS * epoch,
        batch=BATCH,
        optimizer=LAMB(rate=rate),
        schedule=Schedule("linear", warmup=0.1),
        clip=None,
        source=Finite(ROWS),
        watch=Watch(every=epoch, validation=ROWS // 5),
        keep="lowest-loss",
    )


# The CPU budget of a size: the number of expressions and, for each model, the batch size and AdamW's peak rate with the
# lowest validation loss after a short run (docs/lab).
BUDGETS = {
    "small": (1_280_000, {"retran": (256, 0.01), "gpt": (256, 0.01), "lstm": (256, 0.01)}),
    "medium": (512_000, {"retran": (256, 0.003), "gpt": (256, 0.003), "lstm": (256, 0.003)}),
    "large": (512_000, {"retran": (128, 0.003), "gpt": (128, 0.001), "lstm": (32, 0.0005)}),
}


def build_small_models() -> dict[str, Recipe]:
    """A model of the ReTran paper on a CPU's budget: fewer expressions, in smaller batches."""
    recipes = []
    for size, (expressions, settings) in BUDGETS.items():
        for name, (batch, rate) in settings.items():
            steps = expressions // batch
            recipe = replace(_build_published_recipe(name, size), name=f"{name}-{size}", steps=steps, batch=batch)
            watch = Watch(every=steps // 10, validation=8192)
            recipes.append(replace(recipe, optimizer=AdamW(rate=rate), watch=watch))
    return index_recipes(recipes)
