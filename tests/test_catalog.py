"""What the catalog finds keeps its contract, whatever is added to it."""

import pytest

from lengthwise import catalog
from lengthwise.cost import cost
from lengthwise.evaluation import evaluate
from lengthwise.recipe import Recipe
from lengthwise.run import load, shipped
from lengthwise.solver import Solver
from lengthwise.training import train
from lengthwise.types import UsageError


@pytest.mark.parametrize("name", sorted(catalog.recipes()))
def test_every_recipe(name):
    """It is named as it is called, says what to expect, survives JSON, trains and is measured."""
    recipe = catalog.recipe(name)
    assert recipe.name == name
    assert catalog.recipes()[name].__doc__
    assert Recipe.read(recipe.json()) == recipe
    assert Recipe.read(recipe.json()).id == recipe.id
    small = ["model.layers=1", "model.width=64"] if name.startswith("paper-") else []
    run = train(recipe.change([*small, "steps=2", "batch=4", "watch.every=0"]))
    (score,) = evaluate(run.weights(), [2], samples=5)
    assert score.count == 5


@pytest.mark.parametrize("name", sorted(catalog.studies()))
def test_every_study_reports_what_did_not_choose(name):
    study = catalog.study(name)
    assert len({recipe.name for recipe in study.recipes}) == len(study.recipes)
    for recipe in study.recipes:
        chosen = max(recipe.watch.sizes)
        assert chosen <= 1.5 * recipe.lengths.top
        assert max(study.sizes) > chosen


def test_recipes_that_are_compared_see_the_same_problems():
    for function in catalog.studies().values():
        alike = {(r.task, r.layout, r.lengths, r.hard, r.batch, r.steps, r.data_seed) for r in function().recipes}
        assert len(alike) == 1


def test_ids_differ_wherever_the_recipe_does():
    recipe = catalog.recipe("looped-parity")
    changes = ["steps=7", "seed=1", "data_seed=1", "model.width=32", "ema=0.5", "optimizer.rate=0.1", "name=other"]
    assert len({recipe.id, *(recipe.change([change]).id for change in changes)}) == len(changes) + 1


@pytest.mark.parametrize("name", shipped())
def test_shipped_weights_answer_and_are_as_good_as_their_scores_say(name):
    weights = load(name)
    sizes = [weights.recipe.lengths.top, 2 * weights.recipe.lengths.top]
    for score in evaluate(weights, sizes, samples=100, seed=123):
        assert score.exact >= 0.97
    assert Solver(weights)


def test_shipped_pairs_answer_long_sums():
    solver = Solver(load("looped-pairs"))
    assert solver.solve("4821973650128839+9178026349871162").text == "14000000000000001"
    assert solver.solve("7+123456").text == "123463"
    assert solver.solve(f"{'9' * 100}+1").prompt
    assert solver.solve("0+0").text == "0"


def test_wrong_names_are_answered_with_right_ones():
    for find in (catalog.recipe, catalog.study, catalog.task):
        with pytest.raises(UsageError, match="is not one of: "):
            find("nothing")


def test_cost_grows_with_the_model():
    small, large = (cost(catalog.recipe("looped-parity", [f"model.width={w}", "steps=100"]), 1) for w in (16, 64))
    assert small.parameters < large.parameters
    assert small.operations < large.operations
    assert large.minutes > 0
