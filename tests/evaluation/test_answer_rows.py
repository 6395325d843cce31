"""Rows with single answers agree with the scores of the same problems."""

import json

import pytest
import torch
from torch import nn

import lengthwise as lw
from lengthwise.cli import entry


@pytest.mark.parametrize(
    ("weights", "stopping"), [("looped-parity", None), ("looped-pairs", ["Oracle", "MaxConfidence(per=batch)"])]
)
def test_rows_hold_the_problems_and_answers_that_the_scores_count(weights, stopping):
    scores = lw.evaluate(weights, [4, 30], samples=12, stopping=stopping, families=True, rows=True, quiet=True)
    assert len(scores.answers) == sum(score.count for score in scores)
    for score in scores:
        rows = [
            row
            for row in scores.answers
            if (tuple(row["sizes"]), row["problems"], row["stopping"]) == (score.sizes, score.problems, score.stopping)
        ]
        assert len(rows) == score.count
        assert sum(row["correct"] for row in rows) / score.count == pytest.approx(score.exact)
        assert sum(row["loops"] for row in rows) / score.count == pytest.approx(score.loops)
        task = lw.load(weights).weights.recipe.task
        for row in rows:
            problems = task.parse(row["prompt"])
            assert task.format(problems.answer[0]) == row["right_answer"]
            assert row["correct"] == (row["answer"] == row["right_answer"]) and row["log_confidence"] <= 0


def test_the_command_line_writes_a_row_per_problem(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    words = ["evaluate", "looped-parity", "--lengths", "8,9", "--samples", "7", "--uniform-only", "--quiet", "--json"]
    assert entry._run(entry.parse([*words, "--rows", str(path)])) == 0
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["sizes"] for row in rows] == [[8]] * 7 + [[9]] * 7
    assert rows == lw.evaluate("looped-parity", [8, 9], samples=7, rows=True, quiet=True).answers
    assert [row["count"] for row in json.loads(capsys.readouterr().out)] == [7, 7]
    assert entry._run(entry.parse([*words, "--rows", str(tmp_path)])) == 2


@pytest.mark.parametrize("precision", [None, 0.2])
def test_rows_need_no_further_runs_of_the_model(precision):
    """With ``rows=True`` the model runs as often as without, and there is one row per counted problem."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 8), nn.Linear(8, 9))
    calls = []
    model.register_forward_hook(lambda *_: calls.append(1))
    options = {"task": "parity", "samples": 200, "precision": precision, "quiet": True}
    without = lw.evaluate(model, [4, 5], **options)
    once = len(calls)
    scores = lw.evaluate(model, [4, 5], rows=True, **options)
    assert len(calls) == 2 * once and scores.rows() == without.rows() and not without.answers
    assert [len(score.answers) for score in scores] == [score.count for score in scores]
    shares = [sum(row["correct"] for row in score.answers) / score.count for score in scores]
    assert shares == pytest.approx([score.exact for score in scores])
