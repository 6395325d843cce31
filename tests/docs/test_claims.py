"""Verdicts on claims of the sources, and the rule that decides whether a model fits its training lengths."""

import json
import re
import tomllib

import pytest
from conftest import LONG
from fillers.claims import (
    VERDICTS,
    _read_exact_matches,
    format_main_results,
    format_tally,
    judge_claim,
    judge_comparison,
)
from fillers.results import ROOT, describe_unfitted, read_outlines

from lengthwise.base.score_rows import select_training_length_rows
from lengthwise.report import WORST_FAMILY, Curve, find_scores_at_training_length

UNFIT_NOTES = {"weak": " (not fitted: 0.531 at 20)"}
BOUNDS_BY_SIGN = {">=": ">= 0.95", "<=": "<= 0.6"}


def build_row(problems, exact, size=10):
    counts = {"count": 128, "low": 0.0, "high": 1.0}
    return {"problems": problems, "exact": exact, "sizes": [size], "stopping": "Oracle"} | counts


def test_a_listed_training_length_decides_whether_a_model_is_fitted():
    """A score on all 1,024 problems, with eleven errors, overrides a score on a sample of 128 without errors."""
    rows = [
        build_row("uniform", 1.0),
        build_row("every", 1013 / 1024),
        build_row("every", 1.0, 9),
        build_row("uniform", 0.2, 12),
    ]
    assert [one["exact"] for one in select_training_length_rows(rows, (10,))] == [1013 / 1024]
    assert [one["exact"] for one in select_training_length_rows(rows[:1], (10,))] == [1.0]
    drawn = Curve("a", 10, ("length",), "uniform", "Oracle", {(0, 0): rows[:1]})
    listed = Curve("a", 10, ("length",), WORST_FAMILY, "Oracle", {(0, 0): rows[1:2]})
    structured = Curve("a", 10, ("length",), WORST_FAMILY, "Oracle", {(0, 0): [build_row("runs", 0.3)]})
    assert find_scores_at_training_length([drawn, listed]) == {"a": 1013 / 1024}
    assert find_scores_at_training_length([drawn, structured]) == {"a": 1.0}


def test_baselines_are_judged_by_all_problems_if_those_were_scored():
    missing = [name for name in describe_unfitted("results/looped-half/binary-sum") if "adaptive" not in name]
    assert len(missing) == 6
    assert "half-ntp-pause-parity" not in describe_unfitted("results/looped-half/parity")


@pytest.mark.parametrize(
    ("sign", "recipe", "scores", "expected"),
    [
        (">=", "good", [0.99, 0.97, 0.96], "agrees"),
        (">=", "good", [0.5, 0.6, 0.7], "disagrees"),
        ("<=", "good", [0.99, 0.97], "undecided (2 seeds disagree)"),
        (">=", "good", [0.99, 0.6, 0.99], "undecided (2 of 3 seeds agree)"),
        (">=", "good", [0.99], "undecided (one seed agrees)"),
        ("<=", "weak", [0.5, 0.5], "undecided (not fitted: 0.531 at 20)"),
        (">=", "weak", [0.5, 0.5], "undecided (not fitted: 0.531 at 20)"),
        (">=", "weak", [0.99, 0.99, 0.99], "agrees"),
        (">=", "good", [], "not measured"),
    ],
)
def test_a_claim_with_a_bound_gets_the_verdict_of_its_seeds(sign, recipe, scores, expected):
    assert judge_claim({"recipe": recipe, "agrees": BOUNDS_BY_SIGN[sign]}, scores, UNFIT_NOTES) == expected


@pytest.mark.parametrize(
    ("recipe", "scores", "other_scores", "expected"),
    [
        ("good", [0.9, 0.8, 0.8], {"fine": [0.7, 0.6, 0.6]}, "agrees"),
        ("good", [0.9, 0.8, 0.8], {"fine": [0.7] * 3, "weak": [0.1] * 3}, "agrees (1 of 2 others not fitted)"),
        ("good", [0.9, 0.8, 0.8], {"weak": [0.7, 0.6, 0.6]}, "better, none fitted"),
        ("good", [0.9, 0.8], {"weak": [0.7, 0.6]}, "undecided (2 seeds agree: no other fitted)"),
        ("good", [0.9, 0.8], {"fine": [0.85, 0.6]}, "undecided (seeds overlap)"),
        ("good", [0.5, 0.4, 0.4], {"fine": [0.7, 0.6, 0.6]}, "disagrees"),
        ("good", [0.5, 0.4, 0.4], {"fine": [0.7, 0.6]}, "undecided (2 seeds disagree)"),
        ("weak", [0.5, 0.4], {"fine": [0.7, 0.6]}, "undecided (not fitted: 0.531 at 20)"),
        ("good", [0.9], {"fine": [0.7], "weak": [0.1]}, "undecided (one seed agrees: 1 of 2 others not fitted)"),
        ("good", [0.5], {"fine": [0.4, 0.6, 0.6]}, "undecided (seeds overlap)"),
        ("good", [0.5], {"fine": []}, "not measured"),
    ],
)
def test_a_claim_that_compares_recipes_gets_the_verdict_of_their_seeds(recipe, scores, other_scores, expected):
    assert judge_comparison(recipe, scores, other_scores, UNFIT_NOTES) == expected


def test_the_tally_counts_each_claim_once():
    """The tally counts claims by verdict, and undecided claims by reason."""
    verdicts = ["agrees", "undecided (one seed agrees: 1 of 2 others not fitted)",
                "undecided (not fitted: 0.531 at 20)",
                "undecided (2 of 3 seeds agree)", "better, none fitted", "undecided (2 seeds agree)",
                "undecided (chosen out of range: agrees (2 of 3 others not fitted))"]  # fmt: skip
    lines = format_tally(verdicts, 4)
    why = "2 seeds agree 1, chosen out of range 1, not fitted 1, one seed agrees 1, seeds on both sides 1"
    assert f"| undecided ({why}) | 5 |" in lines
    assert "| agrees | 1 |" in lines and "| in all | 7 |" in lines and "| with 3 seeds or more | 4 |" in lines


@pytest.fixture(scope="module")
def claims():
    """Return each claim with its cells on the page, which another test compares with the rows."""
    page = (ROOT / "docs/claims.md").read_text().split("fill: claims docs/claims.toml -->")[1].split("<!-- end")[0]
    tables = [part.split("\n\n")[1] for part in page.split("### ")[1:]]
    cells = [line.strip("| ").split(" | ") for lines in tables for line in lines.strip().splitlines()[2:]]
    claims = tomllib.loads((ROOT / "docs/claims.toml").read_text())["claim"]
    assert [one[0] for one in cells] == [claim["says"] for claim in claims] and f"| in all | {len(claims)} |" in page
    return list(zip(claims, cells, strict=True))


def test_every_claim_has_a_verdict(claims):
    undecided = ("one seed ", "2 seeds ", "not fitted: ", "seeds overlap", "2 of 3 seeds ", "chosen out of range: ")
    for claim, cells in claims:
        assert cells[-1].startswith((*VERDICTS, *undecided))
        assert "seeds" in cells[2] or cells[-1] not in ("agrees", "disagrees")
        earlier = claim.get("earlier", {})
        assert earlier.get("missed", 0) <= earlier.get("seeds", 0)


def test_a_verdict_needs_three_seeds_and_a_recipe_chosen_near_its_training_lengths(claims):
    decided = [claim for claim, cells in claims if cells[-1].startswith(("agrees", "disagrees", "better"))]
    assert 0 < len(decided) < len(claims)
    for claim in decided if LONG else decided[:3]:
        shares, others = _read_exact_matches(claim)
        outline = read_outlines(claim["folder"])[claim["recipe"]]
        assert min(map(len, (shares, *others.values()))) >= 3
        assert all(size <= 1.3 * outline.top for size in outline.looked_at)


def test_the_command_of_a_claim_trains_all_its_seeds():
    for claim in tomllib.loads((ROOT / "docs/claims.toml").read_text())["claim"]:
        runs = json.loads((ROOT / claim["folder"] / "runs.json").read_text())
        seeds = {run["train_seed"] for run in runs if run["recipe_name"] == claim["recipe"]}
        requested = re.search(r"--seeds (\d+)", claim["command"])
        assert " RUN " in claim["command"] or len(seeds) == int(requested[1] if requested else 1), claim["command"]


def test_each_main_result_of_a_paper_ends_in_a_command():
    for system in ("looped", "abacus", "notebook", "retran"):
        lines = format_main_results("docs/claims.toml", system).splitlines()[2:-2]
        assert lines and all(re.search(r"\| `lengthwise [^`]+` \|$", line) for line in lines)
