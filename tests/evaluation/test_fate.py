"""Scores of `depth` after each loop equal those of `evaluate`; verdicts and figures follow from its measurements."""

import csv
import math
from dataclasses import replace

import pytest
import torch

import lengthwise as lw
from lengthwise.api.depth import Fates
from lengthwise.base.results import Fate
from lengthwise.cli import entry
from lengthwise.evaluation.scores import evaluate
from lengthwise.runs.run import load


@pytest.mark.parametrize(("name", "size"), [("looped-parity", 6), ("halting-parity", 5), ("looped-pairs", 4)])
def test_exact_match_equals_evaluate_after_the_same_loops(name, size):
    (fate,) = lw.depth(name, size, more=6, samples=20)
    weights, rules = load(name), [lw.Oracle(k) for k in (0, 1, 2, 6)]
    scores = evaluate(weights, [size], samples=20, stopping=rules)
    assert [fate.exact_after(k) for k in (0, 1, 2, 6)] == pytest.approx([score.exact for score in scores])
    assert fate.after[-1] == 6 and fate.cosine[-1] == pytest.approx(1, abs=1e-6)
    assert fate.moved[0] is None and fate.moved[1] > 0 and fate.moved_over_two[1] is None
    assert len(fate.map) == len(fate.path) == fate.map_planned + 6


def test_problems_are_aligned_at_their_own_rounds():
    """Problems of one size with different T(n) are aligned at their own T(n)."""
    (fate,) = lw.depth("looped-unique-set", [5], more=3, samples=16)  # a list of one size is this size
    (score,) = evaluate(load("looped-unique-set"), [5], samples=16, stopping=lw.Oracle(3))
    assert fate.exact_after(3) == pytest.approx(score.exact)


def build_fate(moved, over_two, exact=1.0, seed=0, recipe="r"):
    weights = (f"w{seed}", recipe, seed, "parity", (4,), 8, 0, 4.0)
    course = ([0, 1], [1.0, exact], [None, moved], [None, over_two], [1.0, 1.0])
    return Fate(*weights, *course, [[1.0]] * 5, [[0.0, 1.0]] * 5, 4)


@pytest.mark.parametrize(
    ("moved", "over_two", "exact", "verdict"),
    [
        (1e-4, 1e-4, 1.0, "settles right"),
        (1e-4, 1e-4, 0.9, "settles wrong"),
        (0.5, 1e-4, 1.0, "cycles"),
        (0.01, 0.01, 1.0, "marginal"),
        (0.5, 0.4, 1.0, "drifts"),
        (None, None, 1.0, "drifts"),
    ],
)
def test_verdicts_follow_from_movement_and_accuracy(moved, over_two, exact, verdict):
    fates = Fates([build_fate(moved, over_two, exact)])
    assert fates[0].verdict == verdict
    assert verdict in str(fates) and verdict in fates._repr_html_()


def test_the_command_writes_a_row_per_loop_and_a_figure(tmp_path, capsys, blank_figures):
    words = ["depth", "looped-pairs", "looped-parity", "--lengths", "3", "--more", "5", "--samples", "4"]
    assert entry._run(entry.parse([*words, "--out", str(tmp_path)])) == 0
    printed = capsys.readouterr().out
    assert "settles" in printed and "over" in printed.split("looped")[0]  # the heading of the column that decides
    with (tmp_path / "depth.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["weights"] for row in rows} == {"looped-pairs", "looped-parity"}
    assert [row["after"] for row in rows][-1] == "5"
    assert (tmp_path / "depth.png").exists()
    assert len(Fates([build_fate(0.1, 0.1, recipe=str(k)) for k in range(5)]).plot().axes) == 10


def test_seeds_of_a_recipe_share_one_table_row_and_one_panel(blank_figures):
    seeds = [build_fate(1e-4, 1e-4, exact, seed) for seed, exact in enumerate((1.0, 0.5, 1.0))]
    fates = Fates([*seeds, build_fate(0.5, 0.4, recipe="other")])
    several, one = fates.table()[1]
    assert several == ["r, 3 seeds", "4", "4", "1.00", "0.50 to 1.00", "", "", "", "0.50 to 1.00", "1e-04", "1e-04",
                       "settles right 2, settles wrong 1"]  # fmt: skip
    assert one[0] == "w0" and one[-1] == "drifts"
    assert len(fates.plot().axes) == 2 * 2 + 2 * 4  # curves with two scales; a map, a path and their colour bars
    assert [row["seed"] for row in fates.rows()] == [0, 0, 1, 1, 2, 2, 0, 0]
    assert all(row["sizes"] == [4] for row in fates.rows())  # as in rows of scores


def test_the_map_counts_loops_from_one_and_its_parts_are_named(blank_figures):
    figure = Fates([build_fate(1e-4, 1e-4)]).plot()
    (shown,) = (axes for axes in figure.axes if axes.images)
    assert shown.images[0].get_extent() == [-0.5, 0.5, 5.5, 0.5]  # five loops, one position
    assert list(shown.lines[0].get_ydata()) == [4, 4]  # T(n) = 4
    assert all(float(tick).is_integer() for tick in shown.get_xticks())
    labels = {axes.get_ylabel() for axes in figure.axes} | {axes.get_xlabel() for axes in figure.axes}
    assert {"loop", "position", "movement", "first principal component", "second"} <= labels
    assert "state after T(n) loops (lowest panel)" in [text.get_text() for text in figure.legends[0].get_texts()]


def build_single_loop_weights():
    weights = load("looped-pairs")
    return replace(weights, recipe=replace(weights.recipe, loops=lw.Constant()))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: lw.depth("abacus-addition"), "its inputs hold the right answer"),
        (lambda: lw.depth(build_single_loop_weights()), "`depth` needs looped weights"),
        (lambda: lw.depth(["looped-pairs", "looped-pairs"]), "looped-pairs is given more than once"),
        (lambda: lw.depth("looped-pairs", more=0), "more and samples must be 1 or more, not 0 and 64"),
        (lambda: lw.depth("looped-parity", 0), "0 is not a size"),
        (lambda: lw.depth("looped-parity", [5, 6]), "depth: give one size, not 2"),
        (lambda: Fates().plot(), "there is nothing to draw"),
    ],
)
def test_unsupported_weights_and_options_are_refused(call, message):
    with pytest.raises(lw.UsageError, match=message):
        call()


def test_movement_is_a_mean_over_real_positions():
    weights = load("looped-parity")
    (fate,) = lw.depth(replace(weights, name="mine"), 3, more=2, samples=1, seed=5)
    assert fate.weights == "mine" and all(math.isfinite(value) for value in fate.moved[1:])
    loop = fate.map_planned + 1
    assert fate.moved[-1] == pytest.approx(sum(fate.map[loop]) / len(fate.map[loop]), rel=1e-3)
    assert torch.tensor(fate.path).shape == (fate.map_planned + 2, 2)
