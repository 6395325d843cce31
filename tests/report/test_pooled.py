"""Recipes compared over their seeds: the mean of each recipe, and its difference from the first."""

from __future__ import annotations

import pytest
from made_up_runs import build_run, recipe

import lengthwise as lw
from lengthwise.base.results import student_quantile, welch_interval
from lengthwise.report.pooled import PooledComparison
from lengthwise.runs.folder import DIVERGED
from lengthwise.tasks.arithmetic import Multiplication


def build_seeds(name, *scores, size=16, first_seed=0):
    return [build_run(recipe(name, seed=first_seed + seed), (size, exact)) for seed, exact in enumerate(scores)]


@pytest.mark.parametrize(("degrees", "quantile"), [(1, 12.706), (2, 4.303), (4, 2.776), (10, 2.228), (100, 1.984)])
def test_student_quantiles_equal_those_in_tables(degrees, quantile):
    assert student_quantile(degrees) == pytest.approx(quantile, abs=1e-3)


def test_welch_s_interval_equals_the_one_that_r_computes():
    """The data are Student's sleep data (1908), and the interval is that of R's ``t.test(extra ~ group, sleep)``."""
    errors = 1.789010 / 10**0.5, 2.002249 / 10**0.5
    assert welch_interval(0.75 - 2.33, errors, (10, 10)) == pytest.approx((-3.36548, 0.20548), abs=1e-3)
    with pytest.raises(ValueError, match="values that differ"):
        welch_interval(0.5, (0.0, 0.0), (2, 2))


def test_runs_of_a_recipe_are_pooled_whether_given_as_objects_folders_or_lists():
    first, second = build_seeds("one", 0.5, 0.9), build_seeds("two", 0.2, 0.4)
    asked = [[*first, *second], [run.folder for run in (*first, *second)], [first, second], [*first, second[0]]]
    for things in asked:
        found = lw.compare(*things)
        assert isinstance(found, PooledComparison)
        assert {row["recipe"]: row["seeds"] for row in found.rows()}["one"] == 2
    assert isinstance(lw.compare(*first), PooledComparison)


def test_single_runs_and_scores_are_compared_side_by_side(tmp_path):
    one, two, other = *build_seeds("one", 0.5, 0.9), *build_seeds("two", 0.2)
    for found in (lw.compare(one, other), lw.compare(one, one), lw.compare(one, lw.Run(two.folder, two.recipe).scores)):
        assert isinstance(found, lw.Comparison)
    assert found.savefig(tmp_path / "x.svg").read_text().startswith("<?xml")
    with pytest.raises(lw.UsageError, match=r"x\.doc: a figure's name must end in one of \.png, \.svg, \.pdf"):
        found.savefig(tmp_path / "x.doc")


def test_each_recipe_has_its_difference_from_the_first_with_an_interval_over_seeds():
    found = lw.compare(build_seeds("one", 0.5, 0.7, 0.9), build_seeds("two", 0.1, 0.2), build_seeds("three", 0.4))
    rows = {row["recipe"]: row for row in found.rows()}
    assert rows["one"]["difference"] is None and rows["one"]["difference_note"] == ""
    low, high = welch_interval(-0.55, (0.2 / 3**0.5, 0.05), (3, 2))
    assert (rows["two"]["difference"], rows["two"]["difference_low"]) == pytest.approx((-0.55, low))
    assert rows["two"]["difference_high"] == pytest.approx(high)
    assert rows["three"]["difference"] == pytest.approx(-0.3)
    assert (rows["three"]["difference_low"], rows["three"]["difference_note"]) == (None, "one seed")
    assert {"difference", "difference_low", "difference_high", "difference_note"} <= {*found.frame().columns}
    text, latex = " ".join(str(found).split()), found.to_latex()
    assert f"two − one uniform −0.550 (−{-low:.2f} … −{-high:.2f})" in text and "three −" not in text
    assert "Welch's 95 % interval over seeds, not over problems. One seed, so no interval over seeds: three." in text
    assert rf"two $-$ one & uniform &  & $-$0.550 ($-${-low:.2f} \dots{{}} $-${-high:.2f}) \\" in latex
    assert found.to_latex("two\nlines").endswith("\\end{tabular}\n% two lines\n")


def test_seeds_with_equal_scores_give_no_interval():
    found = lw.compare(build_seeds("one", 1.0, 1.0), build_seeds("two", 0.5, 0.5))
    assert found.rows()[1]["difference_note"] == "no spread" and "−0.500 (no spread)" in str(found)


def test_an_interval_stays_within_minus_one_and_one():
    found = lw.compare(build_seeds("one", 0.0, 0.9), build_seeds("two", 0.1, 1.0))
    assert (found.rows()[1]["difference_low"], found.rows()[1]["difference_high"]) == (-1.0, 1.0)


def test_scores_are_pooled_by_the_recipe_s_own_stopping_rule():
    rule = lw.MaxConfidence()
    by_both = (16, 0.5), (16, 0.9, {"stopping": rule.name})
    runs = [build_run(recipe("one", seed=seed), *by_both) for seed in range(2)]
    further = build_run(recipe("two", stopping=rule), (16, 0.7, {"stopping": rule.name}))
    assert [row["exact"] for row in lw.compare(runs, [further]).rows()] == [0.5, 0.7]


def test_the_number_of_seeds_is_shown_as_a_range_if_it_differs_between_sizes():
    first, *others = build_seeds("one", 0.5, 0.9, 0.7)
    build_run(first.recipe, (24, 0.9))
    compared = lw.compare([first, *others])
    assert [row[2] for row in compared.table()[1]] == ["1–3"]
    assert "Fewer seeds at 24." in compared.title() and "Fewer seeds at 24." in compared.to_latex()
    assert "Fewer seeds" not in lw.compare(others).title()


def test_sizes_that_some_seeds_lack_are_the_first_that_a_table_leaves_out():
    scores = [(4 * n, 0.5) for n in range(1, 9)]
    first, *others = [build_run(recipe("one", seed=seed), *scores) for seed in range(3)]
    build_run(first.recipe, (6, 0.9), (64, 0.9))
    compared = lw.compare([first, *others])
    assert [size.strip("▪") for size in compared.table()[0][3:]] == [str(4 * n) for n in range(1, 9)]
    assert "Fewer seeds" not in compared.title() and "8 of 10 sizes are shown." in compared.title()


def test_a_pair_of_sizes_is_marked_as_trained_only_if_both_were_trained():
    task, lengths = Multiplication(), lw.Curriculum(11, 1, max_per_axis=(2, 11))
    run = build_run(recipe("products", task=task, lengths=lengths), ((2, 11), 1.0), ((11, 11), 0.0))
    assert lw.compare([run]).table()[0][3:] == ["2x11▪", "11x11"]


def test_diverged_seeds_are_counted_and_recipes_without_scores_are_refused():
    measured, failed = build_seeds("one", 0.5, 0.9), build_run(recipe("one", seed=2))
    with pytest.raises(lw.UsageError, match="no scores yet by its own stopping rule"):
        lw.compare([*measured, failed])
    failed.record_failure("not finite", DIVERGED)
    assert "one, 1 seed diverged" in str(lw.compare([*measured, failed]))
    lone = build_run(recipe("two"))
    lone.record_failure("not finite", DIVERGED)
    with pytest.raises(lw.UsageError, match=r"two-.*: no scores yet"):
        lw.compare(measured, [lone])


def test_the_number_of_sizes_that_a_table_leaves_out_is_stated():
    for count, note in ((8, ""), (10, " 8 of 10 sizes are shown.")):
        scores = [(4 * n, 0.5) for n in range(1, count + 1)]
        compared = lw.compare([build_run(recipe("one"), *scores)])
        assert len(compared.table()[0]) == 3 + 8
        assert compared.title().endswith(f"Trained on up to {recipe('one').lengths.top}.{note}")
        assert compared.title() in compared.to_latex()
