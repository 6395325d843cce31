"""Recordings, which a page shows for looped models that it cannot compute."""

import base64
import json
import re
import zlib

import pytest
import torch
from conftest import command

import lengthwise as lw
from lengthwise.api import catalog
from lengthwise.base.types import UsageError
from lengthwise.evaluation import depth
from lengthwise.runners.plain import Plain
from lengthwise.runs.folder import list_shipped_weights
from lengthwise.runs.run import Weights, load
from lengthwise.viewer.viewer import build_model_data, build_viewer_page, find_export_obstacle, record_model

MAZE, SUDOKU = "#####/#S.G#/###.#/#...#/#####", "..../21.3/1..4/.42."
RECORDED_RECIPE = "looped-parity", ["model.positions=RoPE", "model.width=8", "model.heads=2"]  # no page computes RoPE


def build_untrained_weights():
    recipe = catalog.find_recipe(*RECORDED_RECIPE)
    torch.manual_seed(0)
    return Weights("mine", recipe, recipe.build().eval())


PROMPTS = {"looped-maze": MAZE, "looped-sudoku": SUDOKU, "looped-prefix-sum": "1011000101", "own": "10110"}


@pytest.mark.parametrize(("name", "prompt"), PROMPTS.items())
def test_a_recording_shows_what_the_model_computes(name, prompt):
    weights = build_untrained_weights() if name == "own" else load(name)
    found, solved = depth.record_problem(weights, prompt), lw.Solver(weights).solve(prompt)
    batch = weights.recipe.layout.write(weights.recipe.task.parse(prompt), weights.recipe.task)
    assert len(found["loops"]) == found["stop"] + depth.LOOPS_AFTER_STOP and found["stop"] == solved.loops
    for loop in (1, 2, found["stop"], len(found["loops"])):
        logits = Plain(weights.model).last(batch.inputs, torch.tensor([loop]), batch.answer_slots)
        probability, symbols = logits.softmax(-1).max(-1)
        told = found["loops"][loop - 1]
        assert told["said"] == symbols.tolist()
        assert all(abs(one - 100 * share) <= 1 for one, share in zip(told["sure"], probability.tolist(), strict=True))
    final = found["loops"][found["stop"] - 1]["said"]
    right = all(one == wanted for one, wanted in zip(final, found["wanted"], strict=False))
    assert right == solved.correct == found["right"]
    assert found["loops"][0]["moved"] is None and all(loop["moved"] > 0 for loop in found["loops"][1:])


def test_the_recorded_movement_is_the_one_that_the_stopping_rule_compares():
    weights = load("looped-maze")
    found, rule = depth.record_problem(weights, MAZE), weights.recipe.stopping
    assert [loop["moved"] < rule.below for loop in found["loops"][1:]].index(True) + 2 == found["stop"]


def test_recordings_that_are_too_long_are_omitted(monkeypatch):
    weights = load("looped-maze")
    assert depth.record_problem(weights, MAZE, max_cells=100) is None
    monkeypatch.setattr(depth, "MAX_LOOPS", 10)
    with pytest.raises(UsageError, match="no problem is short enough for a recording of at most 10 loops"):
        record_model(weights, [MAZE])


def test_all_shipped_weights_that_loop_have_a_page():
    for name in list_shipped_weights():
        recipe = load(name).recipe
        if find_export_obstacle(recipe, 1):
            reason = depth.find_recording_obstacle(recipe)
            assert not reason or recipe.layout.decodes or not recipe.loops.adapts, (name, reason)


def test_a_page_of_recordings_starts_with_the_given_problem():
    page = build_viewer_page([load("looped-sudoku")], [SUDOKU])
    packed = re.search(r'<script type="text/plain" id="models">(.*?)</script>', page)[1]
    (model,) = json.loads(zlib.decompress(base64.b64decode(packed)))["models"]
    assert model["recordings"][0]["prompt"] == model["examples"][0]["prompt"] == SUDOKU
    assert {one["prompt"] for one in model["examples"]} == {one["prompt"] for one in model["recordings"]}
    assert all(one["shape"] for one in model["recordings"]) and "plays recordings of a model" in page


def test_a_given_problem_is_the_first_example_of_a_page_that_computes():
    found = build_model_data(load("looped-parity"), 1, ["111"])["examples"][0]
    assert found == {"prompt": "111", "origin": "given", "right": True}


def test_problems_and_models_that_cannot_be_shown_are_refused(tmp_path):
    page = tmp_path / "page.html"
    for words, message in {
        ("looped-maze", "--html", page, "--problem", MAZE, "--problem", "#"): "problem 2: maze: write n lines",
        ("looped-maze", "--problem", MAZE): "--problem needs --html FILE",
        ("gpt-small", "--html", page): "nor show a recording (its inputs hold the right answer)",
    }.items():
        done = command("show", *words)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
    assert not page.exists()
