"""Restarts keep the best answer, and give each problem its own random initial states; misuse is refused."""

import json

import pytest
import torch

import lengthwise as lw
from lengthwise.base.rng import stream
from lengthwise.base.types import Problems, UsageError
from lengthwise.cli import entry
from lengthwise.evaluation.answers import predict, predict_by_rules, select_initial_state, trace_loops
from lengthwise.experiment.stopping import After, Converged, MaxConfidence, Restarts, Settled
from lengthwise.runs.run import load

RULES = [After(3), Settled(0.5, max_loops=9), Converged(1, max_loops=9), MaxConfidence(max_loops=5)]
with_each_pick = pytest.mark.parametrize("pick", ["confidence", "residual"])


def run_evaluate(words):
    """Run ``evaluate`` at size 4 and return its exit status."""
    return entry._run(entry.parse(["evaluate", *words.split(), "--lengths", "4"]))


@pytest.fixture(scope="module")
def sudoku():
    """Return a model that starts from noise, its recipe, and a batch of puzzles of two sizes."""
    weights = load("looped-sudoku")
    weights.model.double()
    draw, task = stream(0, "restarts"), weights.recipe.task
    problems = Problems.join([task.sample(torch.full((3, 1), size), draw) for size in (6, 4)])
    return weights.model, weights.recipe, weights.recipe.layout.write(problems, task)


@with_each_pick
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_restarts_keep_the_best_of_the_answers_from_each_initial_state(sudoku, rule, pick):
    model, recipe, batch = sudoku
    kept = predict(model, recipe, batch, Restarts(rule, 5, pick))
    starts, row = [select_initial_state(model, number) for number in range(5)], torch.arange(len(batch))
    tried = [predict(one, recipe, batch, rule) for one in starts]
    pairs = zip(starts, tried, strict=True)
    traces = [trace_loops(one, batch, found.loops, None, with_movement=True) for one, found in pairs]
    residuals = [whole.movement[found.loops - 1, row, 0].float() for whole, found in zip(traces, tried, strict=True)]
    values = torch.stack([-one for one in residuals] if pick == "residual" else [one.confidence for one in tried])
    best = values.argmax(0)
    assert len(best.unique()) > 1 and torch.equal(kept.start, best)
    for name in ("symbols", "loops", "confidence"):
        wanted = torch.stack([getattr(one, name) for one in tried])[best, row]
        assert torch.allclose(getattr(kept, name).double(), wanted.double()), name
    if kept.residual is not None:
        assert torch.allclose(kept.residual, torch.stack(residuals)[best, row])
    assert torch.equal(kept.loops_run, sum(one.loops if one.loops_run is None else one.loops_run for one in tried))


@with_each_pick
def test_an_answer_does_not_depend_on_other_rows(sudoku, pick):
    """A problem's answer depends neither on the number, order or width of other rows nor on other rules."""
    model, recipe, batch = sudoku
    rule, order = Restarts(After(3), 4, pick), torch.tensor([4, 0, 5, 2, 1, 3])
    together = predict(model, recipe, batch, rule)
    rules = [Settled(max_loops=4), rule, Restarts(After(2), 6)]
    _, shuffled, _ = predict_by_rules(model, recipe, batch.take(order), rules)
    for place, row in enumerate(order.tolist()):
        alone = predict(model, recipe, batch.take(slice(row, row + 1)).cut_padding(), rule)
        for found, at in ((shuffled, place), (alone, 0)):
            assert found.start[at] == together.start[row]
            assert torch.allclose(found.confidence[at], together.confidence[row])
            width = found.symbols.shape[1]
            assert torch.equal(found.symbols[at], together.symbols[row, :width])


def test_initial_states_are_normal_independent_and_scaled_as_in_training(sudoku):
    model, _, batch = sudoku
    models = [select_initial_state(model, number) for number in range(1, 9)]
    starts = torch.stack([one.start(one.embed(batch.inputs)) for one in models])
    real = batch.inputs.padding_mask
    assert not starts[:, ~real].any() and abs(starts[:, real].std() - model.start_noise) < 0.02
    flat = starts[:, 0].flatten(1)
    assert (torch.corrcoef(flat) - torch.eye(8)).abs().max() < 0.1


def test_a_single_restart_equals_the_plain_rule(sudoku):
    model, recipe, batch = sudoku
    one, own = predict(model, recipe, batch, Restarts(After(3), 1)), predict(model, recipe, batch, After(3))
    assert torch.equal(one.symbols, own.symbols) and torch.equal(one.loops, own.loops) and not one.start.any()


def test_the_command_line_and_python_write_rows_under_the_rule_s_name(capsys):
    rule = "Restarts(rule=After(loops=4), count=3, pick=residual)"
    words = "looped-sudoku --samples 9 --uniform-only --json --stopping After(loops=4) --restarts 3 --pick residual"
    assert run_evaluate(words) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["stopping"] == rule and row["loops"] == 4 and row["ran"] == 12
    (score,) = lw.evaluate("looped-sudoku", [4], samples=9, stopping=rule)
    assert score.row() == {name: value for name, value in row.items() if name != "seed"}


def test_shown_confidence_is_that_of_the_kept_answer():
    solved = lw.load("looped-sudoku").solve("41../..../..../..34", Restarts(After(2), 6))
    mean = torch.tensor(solved.slot_confidence).log().mean().exp()
    assert solved.confidence == pytest.approx(float(mean), rel=1e-5)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("looped-parity --restarts 2", "TransformerModel always starts from one state: Restarts needs a model"),
        ("looped-sudoku --pick residual", "--pick works only with --restarts: add it, e.g. --restarts 8"),
        ("abacus-addition --restarts 2", "Restarts looks at the model's own answer, which NextToken replaces"),
        ("looped-sudoku --restarts 2 --stopping Restarts", "Restarts needs a rule other than Restarts"),
    ],
)
def test_unsupported_restarts_are_refused_in_one_line(words, line, capsys):
    assert run_evaluate(f"{words} --samples 1") == 2
    message = capsys.readouterr().err.strip()
    assert message.startswith(f"lengthwise: {line}") and "\n" not in message


def test_a_model_with_a_fixed_initial_state_accepts_a_single_restart_only():
    with pytest.raises(UsageError, match="starts from one state"):
        lw.evaluate("looped-parity", [4], samples=2, stopping=[lw.Oracle(), Restarts(count=2)])
    (score,) = lw.evaluate("looped-parity", [4], samples=2, stopping=Restarts(lw.Oracle(), count=1))
    assert score.ran == score.loops
