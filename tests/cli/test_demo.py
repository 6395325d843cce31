"""The command ``demo``, from end to end with a few steps of training."""

import json

import pytest
from conftest import command

from lengthwise.base.results import wilson_interval
from lengthwise.base.score_rows import SOLVED
from lengthwise.cli.demo import _mark_wrong_digits
from lengthwise.cli.entry import build_parser
from lengthwise.evaluation.solver import Answer
from lengthwise.report.card import MIN_PROBLEMS
from lengthwise.viewer import report


@pytest.mark.usefixtures("jobs_in_process")
def test_the_demo_shows_its_results_and_can_be_repeated(runs, monkeypatch):
    monkeypatch.setattr(report, "ATTACK_TRIES", 1)  # of the attack in the report
    words = ["demo", "--steps", "2", "--samples", "2"]
    shown = command(*words)
    assert shown.returncode == 0, shown.stderr
    for part in ("exact match", "trained to 8", "looped-pairs", "standard-pairs", "digits wrong", "What to type next"):
        assert part in shown.stdout
    assert (runs / "demo" / "lengths.png").stat().st_size > 10_000
    page = (runs / "demo" / "page.html").read_text()
    assert "data-viewer" in page and "lengthwise demo" in page
    again = command(*words, "--json")
    scores = json.loads(again.stdout)["scores"]
    alone = [row for row in scores["looped-pairs"] if row["problems"] in ("uniform", "hard")]
    assert {row["sizes"][0] for row in alone} == {4, 8, 12, 16, 20, 24, 50, 100}
    assert len(alone) == 16  # no size was measured twice
    names = [row["problems"] for row in scores["looped-pairs"] if row["sizes"] == [16]]
    assert {"all-highest", "twice"} < set(names) and len(names) == len(set(names))
    assert "worst family" in shown.stdout


def test_the_demo_samples_enough_problems_to_call_a_size_solved():
    """The default sample is large enough for the card to call a size solved if every answer is right."""
    samples = build_parser().parse_args(["demo"]).samples
    assert wilson_interval(1.0, MIN_PROBLEMS)[0] >= SOLVED > wilson_interval(1.0, MIN_PROBLEMS - 1)[0]
    assert samples >= MIN_PROBLEMS


def test_wrong_digits_are_counted_in_answers_of_another_length():
    line = _mark_wrong_digits("standard-pairs", Answer("60+40", "1100", "100", False, 1, 0.9, 1.2), "100")
    assert line.plain.split(maxsplit=1) == ["standard-pairs", "1100  1 of 4 digits wrong"]
    line = _mark_wrong_digits("standard-pairs", Answer("60+40", "10", "100", False, 1, 0.9, 1.2), "100")
    assert "2 of 3 digits wrong" in line.plain
