"""Controls: our looped models without the loop, without the window, or without both.

``control-<task>-window`` applies several layers once, and sees only neighbours; ``-loops`` loops and sees the whole
row; ``-neither`` has neither loop nor window; ``-both`` has loop and window. All four are trained on half the range,
and share data, steps and batch size. Exception: for pairs, the range is unchanged, and models without a loop are
trained as ``standard-pairs`` is.
"""

from __future__ import annotations

from dataclasses import replace

from lengthwise.experiment.lengths import Curriculum
from lengthwise.experiment.loops import Constant, PerRound
from lengthwise.experiment.recipe import ChosenOn, Recipe, Watch, index_recipes
from lengthwise.experiment.stopping import Oracle
from lengthwise.models.timed import Timed
from lengthwise.models.transformer import Transformer
from lengthwise.nn.position import Learned, Mark, NoPE
from lengthwise.nn.window import Local
from lengthwise.objectives import Final, Halting
from lengthwise.recipes.pairs import looped_pairs, standard_pairs
from lengthwise.recipes.window import CONTROLLED_RECIPES

LAYER_COUNT = 20  # applied once instead of in a loop


def build_controls() -> dict[str, Recipe]:
    """One of our recipes with loop, window, both or neither; except for pairs, trained on half the range of sizes. See
    docs/controls.md."""
    looped, standard = looped_pairs(), standard_pairs()  # the standard one has neither loop nor window
    assert isinstance(looped.model, Transformer)
    assert isinstance(standard.model, Transformer)
    # Pairs have learned positions of columns or, with a window, a mark at the first column.
    window = replace(standard.model, positions=(Local(reach=1), Mark()))
    unwindowed = replace(looped.model, positions=(Learned(size=512),))
    pairs = (
        replace(standard, name="control-pairs-window", model=window),
        replace(looped, name="control-pairs-loops", model=unwindowed),
    )
    recipes = [*pairs]
    # All four controls of a task have half the range and half the steps, an eighth of the cost.
    once = {"loops": Constant(1), "objective": Final(), "stopping": Oracle()}
    for task, build in CONTROLLED_RECIPES.items():
        recipe = build()
        # Recipes that halt by themselves run T(n) loops instead, since controls without the mark could not halt.
        if isinstance(recipe.objective, Halting):
            answers = recipe.model.answers if isinstance(recipe.model, Timed) else recipe.model
            recipe = replace(recipe, model=answers, loops=PerRound(), objective=Final(), stopping=Oracle())
        assert isinstance(recipe.lengths, Curriculum)
        top, steps = (recipe.lengths.top + 1) // 2, recipe.steps // 2
        sizes = (top, int(1.3 * top))
        both = replace(
            recipe,
            name=f"control-{task}-both",
            lengths=replace(recipe.lengths, top=top),
            steps=steps,
            watch=Watch(every=steps // 4, sizes=sizes, count=200),
            chosen_on=ChosenOn(sizes),
        )
        assert isinstance(both.model, Transformer)
        deep, unwindowed_model = replace(both.model, layers=LAYER_COUNT), replace(both.model, positions=(NoPE(),))
        recipes += [
            both,
            replace(both, name=f"control-{task}-window", model=deep, **once),
            replace(both, name=f"control-{task}-loops", model=unwindowed_model),
            replace(both, name=f"control-{task}-neither", model=replace(unwindowed_model, layers=LAYER_COUNT), **once),
        ]
    return index_recipes(recipes)
