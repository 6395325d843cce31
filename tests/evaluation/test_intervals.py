"""95 % intervals over batches, and for paired differences, cover the true value about as often as they claim."""

from __future__ import annotations

import csv
import random
from dataclasses import replace
from pathlib import Path

import pytest

import lengthwise as lw
from lengthwise.base.csv_files import read_csv, write_csv
from lengthwise.base.results import (
    Outcomes,
    Score,
    count_effective_trials,
    count_independent_trials,
    select_worst_families,
    wilson_interval,
)
from lengthwise.base.score_rows import list_interval_notes
from lengthwise.report.comparisons import newcombe_interval
from lengthwise.report.tables import build_detail_table

DRAW_COUNT = 1000
RESULTS = Path(__file__).parents[2] / "results"


def build_score(successes, problems=b"the same"):
    share = sum(successes) / len(successes)
    outcomes = Outcomes(problems, bytes(successes))
    return Score("t", "w", "r", "uniform", (1,), len(successes), share, None, share, 1.0, outcomes=outcomes)


# Rules that choose one loop for a batch


@pytest.mark.parametrize("probability", [0.1, 0.263, 0.5, 0.9])
@pytest.mark.parametrize("count", [1000, 6400])
def test_an_interval_over_batches_covers_the_true_probability(probability, count):
    """If whole batches are right or wrong, intervals over batches cover the truth; intervals over problems do not."""
    drawn = random.Random(0)
    over_batches = over_problems = 0
    for _ in range(DRAW_COUNT):
        right = sum(min(512, count - start) for start in range(0, count, 512) if drawn.random() < probability)
        whole = Score("t", "w", "r", "uniform", (1,), count, right / count, None, 1.0, 1.0, together=512)
        low, high = whole.interval
        over_batches += low <= probability <= high
        low, high = wilson_interval(right / count, count)
        over_problems += low <= probability <= high
    assert over_batches >= 0.93 * DRAW_COUNT
    assert over_problems < 0.6 * DRAW_COUNT


@pytest.mark.parametrize("lowest", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("gap", [0.0, 0.05])
def test_an_interval_of_the_worst_family_covers_the_lowest_of_all(lowest, gap):
    """The worst of 24 equal families scores below the true value by chance, so its own interval is mostly too low."""
    drawn, covered = random.Random(0), 0
    for _ in range(200):
        rows = []
        for number in range(24):
            share = lowest if number == 0 else min(lowest + gap, 1)
            right = [drawn.random() < share for _ in range(100)]
            rows.append(replace(build_score(right), problems=f"family-{number}").row())
        (worst,) = select_worst_families(rows)
        assert worst["exact"] == min(row["exact"] for row in rows)
        covered += worst["low"] <= lowest <= worst["high"]
    assert covered >= 0.93 * 200
    assert select_worst_families(rows[:1])[0]["low"] == pytest.approx(rows[0]["low"])  # one family has its own interval


def test_trials_are_batches_of_different_problems_where_a_fixed_set_repeats(tmp_path):
    assert count_independent_trials(1000) == count_independent_trials(1000, 1) == 1000
    assert (count_independent_trials(1024, 512), count_independent_trials(100, 512)) == (2, 1)
    assert 12 < count_independent_trials(6400, 512) < 13
    row = {"count": 6400, "distinct": 1024}
    assert count_effective_trials(row) == 6400 and count_effective_trials(row | {"fixed_set": True}) == 1024
    assert count_effective_trials(row | {"together": 512}) == count_independent_trials(6400, 512)
    assert count_effective_trials(row | {"together": 512, "fixed_set": True}) == 2
    assert count_effective_trials({"count": 6400, "fixed_set": True}) == 6400  # as all differ
    both = Score("t", "w", "r", "uniform", (1,), 6400, 0.5, None, 0.5, 1.0, together=512, distinct=1024, fixed_set=True)
    assert both.interval == wilson_interval(0.5, 2)
    notes = list_interval_notes([both.row()])
    read = read_csv(write_csv(tmp_path / "scores.csv", [both.row()]))
    assert read == [both.row()] and count_effective_trials(read[0]) == 2
    assert len(notes) == 2 and "over batches" in notes[0] and "each problem once" in notes[1]


def test_scores_of_batch_wise_rules_are_marked():
    rules = ["Oracle", "MaxConfidence(per=batch)"]
    found = lw.evaluate("looped-parity", [3], samples=20, stopping=rules, quiet=True)
    alone, batch = found
    assert (alone.together, batch.together) == (None, 512) and "together" not in alone.row()
    assert batch.interval[1] - batch.interval[0] > alone.interval[1] - alone.interval[0]
    note = "the rule chose one loop per 512 problems"
    assert note in str(found) and note in str(build_detail_table(found.rows()).caption)


# Differences


PROBABILITIES = {  # probabilities that both are right, only the first, only the second, neither
    "disjoint errors": (0.05, 0.45, 0.45, 0.05),
    "shared errors": (0.70, 0.05, 0.10, 0.15),
    "independent errors": (0.42, 0.28, 0.18, 0.12),
    "nearly solved": (0.96, 0.02, 0.01, 0.01),
}


def measure_coverage(joint, pairing, count=120):
    drawn, true, held = random.Random(1), joint[2] - joint[1], 0
    cells = ((1, 1), (1, 0), (0, 1), (0, 0))
    for _ in range(DRAW_COUNT):
        first, second = zip(*drawn.choices(cells, joint, k=count), strict=True)
        _, low, high = newcombe_interval(build_score(first), build_score(second), pairing)
        held += low <= true <= high
    return held / DRAW_COUNT


@pytest.mark.parametrize("kind", PROBABILITIES)
def test_intervals_of_pairs_and_of_unknown_pairing_cover_the_true_difference(kind):
    # Few discordant problems give few possible intervals.
    assert 0.93 <= measure_coverage(PROBABILITIES[kind], "paired") <= 0.995
    assert measure_coverage(PROBABILITIES[kind], "unknown") >= 0.93
    assert kind != "disjoint errors" or measure_coverage(PROBABILITIES[kind], "independent") < 0.88


def test_the_same_problems_are_compared_in_pairs(tmp_path):
    first = lw.evaluate("looped-parity", [8], samples=50, quiet=True)
    second = lw.evaluate("looped-parity", [8], samples=50, stopping="After(loops=1)", quiet=True)
    others = lw.evaluate("looped-parity", [8], samples=50, seed=1, quiet=True)
    (same,), (apart,) = lw.compare(first, second).rows(), lw.compare(first, others).rows()
    assert (same["pairing"], apart["pairing"]) == ("paired", "independent")
    known = lw.compare(first, second)
    assert "are paired" in str(known) and "spread between training seeds" in str(known)
    bare = [replace(one, outcomes=None) for one in second]  # as a run's rows are read
    unknown = lw.compare(first, type(second)(bare, second.outline))
    assert unknown.rows()[0]["pairing"] == "unknown" and "Without single answers" in unknown._repr_html_()


def test_a_comparison_with_itself_has_no_difference():
    right = [1] * 30 + [0] * 20
    difference, low, high = newcombe_interval(build_score(right), build_score(right), "paired")
    assert difference == 0 and -0.05 < low <= 0 <= high < 0.05  # 0.19 for independent samples


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("scores.csv")), ids=lambda path: "-".join(path.parts[-3:-1]))
def test_published_rows_by_batch_have_intervals_over_batches(path):
    with path.open(newline="") as file:
        head, *lines = [line for number, line in enumerate(file) if number == 0 or "per=batch" in line]
    for row in csv.DictReader([head, *lines]):
        interval = wilson_interval(float(row["exact"]), count_independent_trials(int(row["count"]), 512))
        assert (float(row["low"]), float(row["high"])) == pytest.approx(interval)
