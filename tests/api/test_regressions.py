"""Edge cases of validation sets, families, attacks, analyses of errors, failed runs and stacked training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.evaluation import attack as attacking
from lengthwise.evaluation.answers import predict_by_rules
from lengthwise.evaluation.attack import attack
from lengthwise.evaluation.families import evaluate_families
from lengthwise.experiment import data
from lengthwise.jobs.pool import JobPool
from lengthwise.runs.run import Weights
from lengthwise.training.loop import train
from lengthwise.training.stacked import train_stacked
from lengthwise.training.validation import Validator


def test_validation_problems_have_the_distribution_of_training_problems():
    for name in ("looped-parity", "half-fop-loop-adaptive-copy", "gpt-small"):
        recipe = catalog.find_recipe(name)
        assert int(data.draw_validation_problems(recipe, 300).sizes.max()) == recipe.lengths.top
    recipe = catalog.find_recipe("looped-addition").change(["families=0.5", "family_names=all-highest"])
    problems = data.draw_validation_problems(recipe, 100)
    within = torch.arange(problems.prompt.shape[1]) < problems.prompt_length[:, None]
    assert int(((problems.prompt > 0) == within).all(1).sum()) >= 50  # a prompt of ones, and zeros behind it
    recipe = catalog.find_recipe("looped-multiplication")
    with pytest.raises(lw.UsageError, match="one size for all axes: 3, not 2x3"):
        data.draw_recipe_problems(recipe, (2, 3), 10, seed=0, kind="natural")
    assert int(data.draw_recipe_problems(recipe, (3, 3), 50, seed=0, kind="natural").sizes.max()) == 3
    with pytest.raises(lw.UsageError, match="count must be 1 or more"):
        data.draw_recipe_problems(catalog.find_recipe("looped-parity"), 4, 0, seed=0)


def test_families_that_a_fixed_set_has_used_up_are_left_out():
    recipe = replace(catalog.find_recipe("looped-parity"), lengths=lw.Uniform(20), source=lw.Finite(rows=2000))
    weights = Weights("untrained", recipe, recipe.build().eval())
    found = {score.problems for score in evaluate_families(weights, [12], samples=10)}
    assert "odd-one-out" in found
    with pytest.raises(lw.UsageError, match="almost no problem of this size"):
        list(evaluate_families(weights, [20], samples=10, names=["one-symbol"]))


def test_attack_refuses_a_batch_wise_rule():
    recipe = catalog.find_recipe("looped-parity")
    weights = Weights("untrained", recipe, recipe.build().eval())
    with pytest.raises(lw.UsageError, match="per=example"):
        attack(weights, [4], tries=1, stopping=lw.MaxConfidence(per="batch"))


def test_zero_loss_ranks_first_and_a_missing_loss_last():
    recipe = catalog.find_recipe("looped-parity", ["keep=lowest-loss", "watch.validation=4", "watch.every=1"])
    merits = [Validator(recipe)._compute_merit({"validation_loss": loss}) for loss in (0.0, 0.5, None)]
    assert merits == sorted(merits, reverse=True) and merits[0] == 0.0


def test_anatomy_uses_the_batch_size_of_its_rule(monkeypatch):
    recipe = catalog.find_recipe("looped-parity", ["model.width=16"])
    seen = []

    def record_batch_size(model, recipe, batch, rules):
        seen.append(len(batch))
        return predict_by_rules(model, recipe, batch, rules)

    monkeypatch.setattr(attacking, "predict_by_rules", record_batch_size)
    weights = Weights("untrained", recipe, recipe.build().eval())
    attacking.measure_anatomy(weights, 3, samples=600, stopping=lw.MaxConfidence(per="batch"))
    assert seen == [512, 88]


def test_a_run_that_another_process_trains_is_not_called_failed(runs, monkeypatch):
    run = lw.Run.of(catalog.find_recipe("looped-parity"))

    def refuse_lock(*_, **__):
        raise lw.UsageError("process 1 on a machine works on this run")

    pool = JobPool([run], lambda _: [])
    with monkeypatch.context() as patch:
        patch.setattr(lw.Run, "lock", refuse_lock)
        pool._record_failure([run], "it was locked")
    assert not (run.folder / "failed.json").exists()
    pool._record_failure([run], "it was lost")
    assert (run.folder / "failed.json").exists()


def test_a_single_unfinished_run_is_trained_by_the_stacked_runner(runs):
    recipe = catalog.find_recipe("looped-parity", ["steps=1", "batch=2", "lengths=Uniform(top=3)", "watch.every=0"])
    train(recipe.with_seed(0))
    lone = train_stacked([recipe.with_seed(0), recipe.with_seed(1)])[1]
    assert (lone.about()["runner"], lone.about()["stacked"]) == ("Stacked", 1)
