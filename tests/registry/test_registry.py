"""Every recipe, study and set of shipped weights in the catalog satisfies its contract."""

import importlib
import re
from dataclasses import replace

import pytest
import torch
from conftest import LONG
from hypothesis import given
from hypothesis import strategies as st
from specs import choose_covering, list_features

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.evaluation.families import compute_weights_digest
from lengthwise.evaluation.scores import evaluate
from lengthwise.experiment.recipe import Recipe, build_outline
from lengthwise.recipes.pairs import looped_pairs
from lengthwise.runs.folder import SHIPPED_FOLDER, RunFolder, list_shipped_weights
from lengthwise.runs.run import Run, load
from lengthwise.testing.laws import list_laws
from lengthwise.testing.laws_of_parts import watched_sizes_stay_near_training
from lengthwise.training import cost as costs
from lengthwise.training.cost import count_operations, measure_cost, measure_operations
from lengthwise.training.trainer import try_training

RECIPES = catalog.list_recipes()


def test_every_recipe_is_valid():
    """Every recipe has its catalog name and a docstring, survives JSON, and watches no sizes far beyond training."""
    for name, build in RECIPES.items():
        recipe = build()
        watched_sizes_stay_near_training(recipe)
        assert recipe.name == name
        assert build.__doc__, name
        again = Recipe.read(recipe.json())
        assert again == recipe and again.id == recipe.id, name


def list_part_kinds(recipe):
    """Return the kinds of a recipe's parts, their options that are not numbers, and the features that it uses."""
    features = ("ema", "hard", "families", "patience", "watch", "clip")
    kinds = {recipe.keep, recipe.accumulate > 1, *(f"{name} {bool(getattr(recipe, name))}" for name in features)}
    names = ("task", "layout", "model", "lengths", "loops", "objective", "source", "optimizer", "schedule", "stopping")
    return kinds.union(*(list_features(part, type(part)) for part in (getattr(recipe, name) for name in names)))


CHOSEN = sorted(RECIPES if LONG else choose_covering({name: list_part_kinds(b()) for name, b in RECIPES.items()}))


@pytest.mark.parametrize("name", CHOSEN)
def test_every_form_of_recipe_trains_and_is_measured(name):
    """``try_training`` runs the first and the last step, and measures the watched sizes and the longest problems."""
    recipe = RECIPES[name]()
    small = ["batch=2", "source=Fresh"]
    small += ["model.layers=2"] * (getattr(recipe.model, "layers", 0) > 2)
    small += ["model.width=64"] * (getattr(recipe.model, "width", 0) > 128)
    assert try_training(recipe.change(small), torch.device("cpu")).step == recipe.steps


@pytest.mark.parametrize("law", list_laws(lw.Study), ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", sorted(catalog.list_studies()))
def test_every_study_satisfies_its_laws(name, law):
    law(catalog.find_study(name))


def test_all_families_are_found_and_recipe_names_are_unique():
    """All families of recipes are found, whatever the names of their functions, and no recipe's name occurs twice."""
    families = [family for file in catalog.list_recipe_family_members().values() for family in file.values()]
    members = [name for family in families for name in family]
    assert len(members) == len(set(members)) and set(members) <= set(RECIPES)
    assert {"paper-abacus-8x2", "paper-ntp-copy", "looped-pairs"} <= set(RECIPES)


# Recipes that may see other problems: the package's own models, which are not compared, and a curriculum's ablation.
NOT_COMPARED = re.compile(r"looped-(?!pairs).*|abacus-addition|ablation-.*-no-curriculum")


def test_compared_recipes_train_on_the_same_problems():
    """Compared recipes train on the same batches; some recipes train on more of them than others."""
    for function in catalog.list_studies().values():
        for panel in function().panels:
            compared = [recipe for recipe in panel.recipes if not NOT_COMPARED.fullmatch(recipe.name)]
            alike = {(r.task, r.lengths, r.hard, r.batch, r.data_seed) for r in compared}
            assert len(alike) <= 1


def test_unknown_names_and_options_are_refused_and_the_known_ones_listed():
    for find, error in (
        (lambda: catalog.find_study("pairs", tasks="parity"), r"^the study pairs has no --tasks$"),
        (
            lambda: catalog.find_study("looped", size="3"),
            r"^the study looped has no --size; it has --tasks, --methods, --scale$",
        ),
        (lambda: catalog.find_study("nothing"), "is not one of: "),
        (lambda: catalog.find_task("nothing"), "is not one of: "),
        (
            lambda: catalog.find_recipe("loped-pairs"),
            r"not one of the \d+ that `lengthwise list` has \(did you mean looped-pairs",
        ),
    ):
        with pytest.raises(lw.UsageError, match=error):
            find()


FAMILY_MODULE = '''
from dataclasses import replace
from lengthwise.api.catalog import find_recipe
from lengthwise.experiment.recipe import Recipe

def ours() -> dict[str, Recipe]:
    """Several of a kind."""
    return {f"our-{seed}": replace(find_recipe("looped-parity"), name=f"our-{seed}", seed=seed) for seed in range(3)}

def _hidden() -> dict[str, Recipe]:
    """Not for others."""
    return {"hidden": find_recipe("looped-parity")}

def takes(count: int) -> dict[str, Recipe]:
    """Cannot be called as it is."""
    return {}
'''


def test_members_of_a_family_are_found_as_recipes_by_their_names(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(catalog, "_OWN_RECIPES", {})
    (tmp_path / "a_family_of_ours.py").write_text(FAMILY_MODULE)
    shipped_ones = set(catalog.list_recipes())
    catalog.add_module(importlib.import_module("a_family_of_ours"))
    found = catalog.list_recipes()
    assert set(found) - shipped_ones == {"our-0", "our-1", "our-2"}
    assert found["our-2"].__doc__ == "Several of a kind."
    changed = catalog.find_recipe("looped-parity", ["name=our-2", "seed=2", "steps=7"])
    assert catalog.find_recipe("our-2", ["steps=7"]) == changed
    with pytest.raises(lw.UsageError, match="did you mean our-1"):
        catalog.find_recipe("our-1x")
    for name in ("math", "sys"):  # compiled or built-in modules have no source to register
        catalog.add_module(importlib.import_module(name))


def test_recipes_that_differ_have_different_ids():
    recipe = catalog.find_recipe("looped-parity")
    changes = ["steps=7", "seed=1", "data_seed=1", "model.width=32", "ema=0.5", "optimizer.rate=0.1", "name=other"]
    assert len({recipe.id, *(recipe.change([change]).id for change in changes)}) == len(changes) + 1


def test_a_study_lists_the_sizes_on_which_its_recipes_were_chosen():
    notes = catalog.find_study("pairs").notes
    assert notes == "Chosen: looped-pairs, standard-pairs on 8, 12, 16, 24; other sizes are only reported."
    assert catalog.find_study("controls").notes.startswith("Nothing was chosen by these figures.")
    for study in map(catalog.find_study, catalog.list_studies()):
        for sizes in (dict.fromkeys(recipe.chosen_on.sizes) for recipe in study.recipes):
            assert ", ".join(map(str, sizes)) in study.notes


@pytest.mark.parametrize("name", list_shipped_weights())
def test_shipped_weights_reach_their_stored_scores(name):
    """Files of shipped weights hold the sizes on which the recipe was chosen. Either all scores are sealed with the
    digest of these weights, or none is."""
    weights, stored = load(name), Run.open(SHIPPED_FOLDER / name).rows("scores")
    assert weights.recipe.chosen_on == catalog.find_recipe(name).chosen_on
    assert RunFolder(SHIPPED_FOLDER / name).outline == build_outline(weights.recipe)  # quoted by model cards
    assert {row.get("sealed") for row in stored} in ({None}, {compute_weights_digest(weights.model.state_dict())})
    rows = [row for row in stored if row["problems"] == "uniform"]
    claimed = {tuple(row["sizes"]): row for row in rows if row["stopping"] == weights.recipe.stopping.name}
    top = weights.recipe.sizes(weights.recipe.lengths.top)
    sizes = [top, min((size for size in claimed if size > top), default=top)]
    for score in evaluate(weights, sizes, samples=20, seed=123):
        low, high = score.interval
        own = claimed.get(tuple(score.sizes), {"low": 0.97, "high": 1.0})  # sizes without a score must be solved
        assert high >= own["low"] and low <= own["high"]
    assert lw.Solver(weights)


def test_the_shipped_looped_pairs_model_answers_long_sums():
    solver = lw.Solver(load("looped-pairs"))
    assert solver.solve("4821973650128839+9178026349871162").text == "14000000000000001"
    assert solver.solve("7+123456").text == "123463"
    assert solver.solve(f"{'9' * 100}+1").prompt
    assert solver.solve("0+0").text == "0"


def test_cost_grows_with_the_model_and_the_lengths():
    """The cost with the curriculum ``Mastery`` is estimated as if lengths grew evenly during training."""
    small, large = (
        measure_cost(catalog.find_recipe("looped-parity", [f"model.width={w}", "steps=100"]), 1) for w in (16, 64)
    )
    assert small.parameters < large.parameters and small.operations < large.operations and large.minutes > 0
    recipe = catalog.find_recipe("looped-parity", ["model.width=16", "steps=100"])
    rules = lw.Uniform(1), lw.Mastery(20), lw.Uniform(20, bottom=20)
    short, grown, long = (count_operations(replace(recipe, lengths=lengths)) for lengths in rules)
    assert 3 * short < grown < 0.7 * long


def test_operations_of_a_recipe_are_measured_once_and_stored(runs, monkeypatch):
    recipe, measured = catalog.find_recipe("looped-parity"), []
    runs.mkdir()
    monkeypatch.setattr(costs, "count_operations", lambda one: measured.append(one) or 2.0)
    for seed in (0, 1):
        assert measure_operations([replace(recipe, seed=seed, data_seed=seed)]) == {recipe.seedless_id: 2.0}
    assert len(measured) == 1
    kept = runs / ".operations.json"
    for number, damaged in enumerate(("{", kept.read_text().replace("2.0", '"many"')), 2):
        kept.write_text(damaged)
        assert measure_operations([recipe]) == {recipe.seedless_id: 2.0} and len(measured) == number


@pytest.mark.parametrize("loops", ["PerRound", "Constant(count=3)"])
def test_cost_measured_on_fewer_rows_equals_the_cost_on_all_rows(loops):
    """All rows have the same length, and so the same cost."""
    changes = ["model.width=16", f"loops={loops}", "lengths=Uniform(top=4, bottom=4)", "batch=12", "hard=0"]
    recipe = catalog.find_recipe("looped-parity", changes)
    whole = measure_cost(recipe, 1)
    for rows in (1, 3, 4, 12, 100):
        part = measure_cost(recipe, 1, rows=rows)
        assert part.operations == pytest.approx(whole.operations, rel=1e-12)
        assert (part.parameters, part.steps) == (whole.parameters, whole.steps)


@given(st.integers(1, 60), st.integers(1, 20), st.data())
def test_a_bare_size_applies_to_all_axes_except_limited_ones(size, top, data):
    """Beyond the training lengths, the limit of an axis applies only if it is below the limit of the other axis."""
    sums = replace(looped_pairs(), task=lw.Addition(), lengths=lw.Uniform(top))
    short = data.draw(st.integers(1, top))
    assert sums.sizes(size) == (size, size)
    assert sums.sizes((size, short)) == (size, short)
    kept = min(size, short) if short < top else size
    assert replace(sums, lengths=lw.Curriculum(top, 5, max_per_axis=(short, top))).sizes(size) == (kept, size)
    assert replace(sums, lengths=lw.Curriculum(top, 5, max_per_axis=(top + 9, short))).sizes(size) == (size, kept)
    products = catalog.find_recipe("paper-fop-loop-adaptive-multiplication")
    assert [products.sizes(size) for size in (1, 2, 11, 15)] == [(1, 1), (2, 2), (2, 11), (2, 15)]
    assert products.lengths.tops(2) == (2, 11)
