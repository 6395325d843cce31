"""The study of formal languages: its cells, and user-defined mixers and tasks as rows and columns."""

import dataclasses

import pytest
import torch
from conftest import command

from lengthwise.api import catalog
from lengthwise.base.errors import UsageError
from lengthwise.experiment.recipe import ChosenOn
from lengthwise.recipes.formal import ARCHITECTURES, TASKS, build_formal_recipe

USER_MODULE = """
from dataclasses import dataclass

import lengthwise as lw
from torch import nn


@dataclass(frozen=True)
class LinearAlone(lw.MixerSpec):
    def build(self, width, heads):
        return nn.Linear(width, width)


@dataclass(frozen=True)
class Swapped(lw.Parity):
    pass
"""


def test_all_tasks_and_architectures_share_one_training_protocol():
    """Models are about equally large, the longest words have about forty symbols, and lengths grow at the same rate."""
    for task, (problems, _, symbols) in TASKS.items():
        recipes = [build_formal_recipe(task, name) for name in ARCHITECTURES]
        counts = [sum(p.numel() for p in recipe.build().parameters()) for recipe in recipes]
        assert max(counts) < 1.1 * min(counts)
        lengths = recipes[0].lengths
        assert 38 <= symbols * lengths.top <= 40 and lengths.grow == 1.5 and lengths.start >= problems.smallest
    study = catalog.find_study("formal")
    assert study.matrix and [panel.name for panel in study.panels] == [*TASKS]
    assert study.panels[0].sizes == (40, 128, 256)
    assert {len(panel.recipes) for panel in study.panels} == {len(ARCHITECTURES)}
    assert catalog.find_study("formal", scale="paper").recipes[0].steps == 10_000


def test_a_user_s_mixer_and_task_are_added_to_the_study(tmp_path, monkeypatch):
    (tmp_path / "my_parts.py").write_text(USER_MODULE)
    monkeypatch.chdir(tmp_path)
    words = ["--mixer", "LinearAlone", "--tasks", "parity,Swapped", "--import", "my_parts", "--dry-run", "--json"]
    done = command("reproduce", "formal", *words)
    assert done.returncode == 0, done.stderr
    assert "formal-parity-linear-alone" in done.stdout and "formal-swapped-linear-alone" in done.stdout


@pytest.mark.parametrize(("task", "top"), [("ModularArithmetic", 20), ("Sorting", 7), ("FlippedCopy", 40), ("Maze", 2)])
def test_training_words_of_any_task_have_at_most_forty_symbols(task, top):
    """Whatever a task's sizes count, prompts have at most 40 symbols, unless the smallest size has more."""
    recipe = build_formal_recipe(task, "lstm")
    problems = recipe.lengths.problems(recipe.task, recipe.lengths.top, 8, torch.Generator().manual_seed(0))
    assert recipe.lengths.top == top
    assert problems.prompt_length.max() <= 40 or top == recipe.task.smallest


def test_with_the_suffix_families_half_of_the_training_rows_are_from_families():
    uniform, half = catalog.find_study("formal", tasks="parity", methods="lstm,lstm-families").recipes
    assert uniform == build_formal_recipe("parity", "lstm")
    changes = {"name": "formal-parity-lstm-families", "families": 0.5, "chosen_on": ChosenOn((40,))}
    assert half == dataclasses.replace(uniform, **changes)


def test_unknown_rows_and_columns_are_refused_and_the_known_ones_listed():
    with pytest.raises(UsageError, match=r"'mamba' is neither one of attention, rope, .* nor the class of a mixer"):
        catalog.find_study("formal", methods="mamba")
    with pytest.raises(UsageError, match=r"'partiy' is neither .* nor the class of a task \(did you mean Parity"):
        catalog.find_study("formal", tasks="partiy")
