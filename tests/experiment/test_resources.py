"""Estimates of a recipe's resources are close to measured ones, and recipes that are too large are refused."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.experiment import resources
from lengthwise.training.cost import count_operations


@pytest.mark.parametrize(
    "name", ["ntp-parity", "fop-copy", "fop-loop-fixed-parity", "fop-loop-adaptive-addition", "looped-pairs"]
)
def test_estimated_operations_are_within_a_factor_of_ten(name):
    """The counted step is the last one, whose rows are longest; estimates assume rows half as long."""
    recipe = catalog.find_recipe(name, ["watch.every=0", "keep=last"])
    estimated = resources.estimate_training(recipe).seconds / recipe.steps * resources.OPERATIONS_PER_SECOND
    assert 0.1 < estimated / count_operations(recipe, rows=2, n_steps=1) < 10


def test_operations_of_a_fused_lstm_are_counted():
    """A step does at least six operations per parameter and symbol, forward and backward; a row has 19 bits or more."""
    recipe = catalog.find_recipe("formal-parity-lstm", ["lengths=Uniform(top=20,bottom=19)", "batch=4"])
    parameters = sum(weights.numel() for name, weights in recipe.build().named_parameters() if ".weight_" in name)
    assert count_operations(recipe, rows=4, n_steps=1) > 6 * parameters * 4 * 19


def test_estimates_grow_with_loops_and_segments():
    once, looped = (catalog.find_recipe("looped-parity", [f"loops=Constant(count={count})"]) for count in (1, 20))
    assert resources.estimate_training(looped).seconds == pytest.approx(20 * resources.estimate_training(once).seconds)
    assert resources.estimate_training(looped).memory > 5 * resources.estimate_training(once).memory
    one, four = (catalog.find_recipe("looped-sudoku", [f"objective.count={count}"]) for count in (1, 4))
    assert resources.estimate_training(four).seconds == pytest.approx(4 * resources.estimate_training(one).seconds)
    assert (
        resources.estimate_training(catalog.find_recipe("paper-fop-addition")).memory < 20e9
    )  # a workstation holds it


def test_a_wide_model_is_refused_for_its_memory():
    recipe = catalog.find_recipe("looped-parity", ["model.width=100000"])
    assert not resources.is_small_model(recipe.model) and resources.estimate_model(recipe).memory > 1e11
    with pytest.raises(lw.UsageError, match=r"takes about .* of memory; this machine has"):
        lw.train(recipe)


class ReadsWeights(nn.Module):
    """A module that reads its weights while it is built, which fails on the meta device."""

    def __init__(self):
        super().__init__()
        self.table = nn.Linear(7, 7)
        assert self.table.weight.detach().numpy().sum() != 7

    def forward(self, tokens):
        return self.table(nn.functional.one_hot(tokens, 7).float())


class BrokenModule(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = self.nothing


@dataclass(frozen=True)
class ModuleByName(lw.models.ModelSpec):
    module: str = "ReadsWeights"

    def build(self, reads, writes, *, causal):
        return globals()[self.module]()


def test_parameters_of_a_user_s_module_are_counted_by_building_it(monkeypatch):
    monkeypatch.setattr(resources, "is_small_model", lambda spec: False)
    recipe = catalog.find_recipe("looped-parity").change(model=ModuleByName())
    assert resources.count_parameters(recipe) == 7 * 7 + 7
    assert torch.get_default_device() == torch.device("cpu")
    with pytest.raises(
        lw.UsageError, match=r"AttributeError in test_resources\.py.*; it uses your own classes: ModuleByName"
    ):
        resources.count_parameters(recipe.change(model=ModuleByName("BrokenModule")))
