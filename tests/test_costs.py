"""The training costs that ``--dry-run`` and ``show`` print, which are estimated without running a step."""

import inspect
import json
import time

import pytest
from conftest import command

from lengthwise.api import catalog
from lengthwise.experiment.resources import count_parameters
from lengthwise.training import cost
from lengthwise.training.trainer import Trainer

SCALES = ("cpu", "half", "paper")


@pytest.fixture
def forbid_steps(monkeypatch):
    """Make every training step and every count of operations fail the test."""
    ran = []
    monkeypatch.setattr(Trainer, "advance", lambda *_: ran.append("a step"))
    monkeypatch.setattr(cost, "count_operations", lambda *_, **__: ran.append("a count"))
    yield
    assert not ran


@pytest.mark.usefixtures("forbid_steps", "runs")
@pytest.mark.parametrize("name", catalog.list_studies())
def test_the_cost_of_every_study_is_estimated_without_a_training_step(name):
    known = inspect.signature(catalog.list_studies()[name]).parameters
    wide = [word for option in ("tasks", "sizes") if option in known for word in (f"--{option}", "all")]
    for scale in SCALES if name == "looped" else ("cpu",):
        words, start = [*wide, *(["--scale", scale] if "scale" in known else [])], time.process_time()
        told = json.loads(command("reproduce", name, *words, "--dry-run", "--json").stdout)["recipes"]
        assert time.process_time() - start < 5
        assert all(row["minutes_each"] > 0 and row["memory"] > 0 for row in told)


@pytest.mark.usefixtures("forbid_steps", "runs")
def test_the_cost_of_a_changed_recipe_is_estimated_from_its_sizes():
    for words in (("train", "--dry-run"), ("show",)):
        verb, *options = words
        done = command(verb, "looped-pairs", "model.width=24", *options)
        assert "estimated: from the sizes" in " ".join(done.stdout.split()), done.stderr


@pytest.mark.parametrize("changes", [["keep=best", "patience=3"], ["accumulate=8"]])
def test_cost_is_measured_on_fewer_rows_than_training_uses(changes):
    assert (
        cost.measure_cost(catalog.find_recipe("looped-parity").change(changes), n_steps=1, rows=2).source == "measured"
    )


def test_stored_costs_agree_with_the_computed_costs_of_the_recipes():
    recipes = [recipe for name in ("pairs", "parity", "notebook") for recipe in catalog.find_study(name).recipes]
    stored = [recipe for recipe in recipes if cost.look_up_cost(recipe).source == "stored"]
    assert stored, "make costs"
    for recipe in stored[:3]:
        price = cost.look_up_cost(recipe)
        assert (price.parameters, price.steps) == (count_parameters(recipe), recipe.steps)
        assert price.operations == pytest.approx(cost.count_operations(recipe, recipe.batch, n_steps=2), rel=0.02)
