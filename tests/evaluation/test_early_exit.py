"""Rows that stop early are no longer computed, and their answers equal those of the full trace."""

import pytest
import torch
from conftest import LONG
from hypothesis import given
from hypothesis import strategies as st
from specs import MODELS, assert_close, build_rows, cached_model, choose_covering, list_features, list_parts

from lengthwise.base.rng import stream
from lengthwise.base.types import Problems, UsageError
from lengthwise.evaluation import answers as answering
from lengthwise.evaluation.answers import predict_by_rules, trace_loops
from lengthwise.evaluation.scores import evaluate
from lengthwise.experiment.stopping import Converged, Halted, Oracle, Settled, compute_loop_limits, find_first_done
from lengthwise.runners.cpu import choose_runner
from lengthwise.runners.plain import Plain
from lengthwise.runs.run import load

LOOPS = torch.tensor([5, 2, 6])
# Few loops: after hundreds, rounding errors in chaotic states change answers.
RULES = [
    Settled(0.3, max_loops=40), Settled(0.02, period=2, max_loops=40), Settled(1e-6, max_loops=9),
    Converged(), Converged(1, max_loops=12), Halted(), Halted(delay=2, max_loops=15),
    *(rule for rule in list_parts("stopping")
      if rule.may_stop_early and rule.starts == 1 and type(rule) not in (Settled, Converged, Halted)),
]  # fmt: skip
WEIGHTS = ["looped-pairs", "halting-parity"]
WEIGHTS += ["looped-parity", "looped-multiplication", "looped-unique-set"] * LONG


CHOSEN_MODELS = MODELS if LONG else choose_covering({pair: list_features(*pair) for pair in MODELS})
EXIT_CASES = [(movement, *pair) for pair in CHOSEN_MODELS for movement in (False, True)]
EXIT_CASES = EXIT_CASES if LONG else [*EXIT_CASES[::4], *EXIT_CASES[3::4]]  # movement for every other model
EXIT_LOOPS = [[3, 1, 9], [9, 9, 2], [2, 2, 2], [1, 9, 3], [9, 1, 1], [4, 9, 4]]  # loops after which rows leave


def compute_results_by_row(runner, inputs, positions, exit_loops, movement):
    """Return logits and movement by loop and row; ``exit_loops`` has the loop after which each row leaves."""
    found, stay = {}, None
    steps = runner.steps(inputs, LOOPS, positions, movement=movement)
    while True:
        try:
            step = steps.send(stay)
        except StopIteration:
            return found
        far = step.movement if movement else torch.zeros(len(step.rows))
        parts = step.logits.split(positions[step.rows].sum(1).tolist())
        found |= {(step.loop, row): pair for row, *pair in zip(step.rows.tolist(), parts, far, strict=True)}
        stay = exit_loops[step.rows] > step.loop if (exit_loops == step.loop).any() else None


@pytest.mark.parametrize(("movement", "spec", "causal"), EXIT_CASES, ids=str)
@torch.no_grad()
def test_results_of_remaining_rows_do_not_depend_on_rows_that_left(movement, spec, causal):
    model, inputs = cached_model(spec, causal).eval(), build_rows(width=10)
    positions = inputs.padding_mask & (torch.arange(10) % 3 != 1)
    whole = compute_results_by_row(Plain(model), inputs, positions, LOOPS, movement)
    for leave in map(torch.tensor, EXIT_LOOPS if LONG else EXIT_LOOPS[:3]):
        wanted = {key: pair for key, pair in whole.items() if key[0] <= leave[key[1]]}
        for runner in (Plain(model), choose_runner(model)):
            found = compute_results_by_row(runner, inputs, positions, leave, movement)
            assert sorted(found) == sorted(wanted)
            for key, pair in wanted.items():
                for one, two in zip(pair, found[key], strict=True):
                    assert_close(one.double(), two.double())


def build_batch(recipe, sizes, count):
    draw = stream(3, "early")
    problems = [recipe.task.sample(torch.tensor([list(recipe.sizes(size))] * count), draw) for size in sizes]
    return recipe.layout.write(Problems.join(problems), recipe.task)


@pytest.mark.parametrize("name", WEIGHTS)
def test_answers_equal_those_of_the_full_trace(name, monkeypatch):
    """Answers equal those of the full trace, whether rows leave one by one or together."""
    model, recipe = (weights := load(name)).model.double(), weights.recipe
    batch, end = build_batch(recipe, [2, 5, 9], 6 if LONG else 2), recipe.layout.end_id(recipe.task)
    planned, row = recipe.loops.planned(batch.rounds), torch.arange(len(batch))
    rules = [rule for rule in RULES if recipe.layout.ends or not rule.needs_end]
    limits = [compute_loop_limits(rule, planned) for rule in rules]
    traces = {str(limit): trace_loops(model, batch, limit, end, with_movement=True) for limit in limits}
    monkeypatch.setattr(answering, "LEAVE_TOGETHER", 1)
    alone = [predict_by_rules(model, recipe, batch, [rule])[0] for rule in rules]
    monkeypatch.setattr(answering, "LEAVE_TOGETHER", 10**9)
    together = predict_by_rules(model, recipe, batch, [*rules, Oracle()])
    for rule, limit, found, beside in zip(rules, limits, alone, together, strict=False):
        traced = traces[str(limit)]
        chosen, stopped = find_first_done(rule, traced, planned)
        assert torch.equal(found.symbols, traced.predictions[chosen - 1, row]), rule
        assert torch.equal(found.loops, chosen) and torch.equal(found.stopped_by_rule, stopped), rule
        assert torch.equal(found.loops_run, torch.where(stopped, chosen + rule.answer_lag, limit)), rule
        assert_close(found.confidence, traced.confidence[chosen - 1, row], 1e-6)
        for field in ("symbols", "loops", "stopped_by_rule", "loops_run"):
            assert torch.equal(getattr(found, field), getattr(beside, field)), (rule, field)


def test_loops_after_a_row_has_stopped_are_not_computed(monkeypatch):
    weights, ran = load("looped-pairs"), []
    plain = type(choose_runner(weights.model)).steps

    def count_rows(self, *args, **kwargs):
        steps, stay = plain(self, *args, **kwargs), None
        while True:
            try:
                step = steps.send(stay)
            except StopIteration:
                return
            ran.append(len(step.rows))
            stay = yield step

    monkeypatch.setattr(type(choose_runner(weights.model)), "steps", count_rows)
    monkeypatch.setattr(answering, "LEAVE_TOGETHER", 10**9)
    (score,) = evaluate(weights, [30], samples=100, stopping=Converged(2, max_loops=400))
    assert sum(ran) == pytest.approx(score.ran * 100)
    assert len(ran) < 10 < compute_loop_limits(Converged(2, max_loops=400), LOOPS)[0]
    (limited,) = evaluate(weights, [30], samples=100, stopping=Converged(50, max_loops=20))
    assert limited.at_limit == 1 and limited.loops == limited.ran == 20


@given(st.data())
def test_a_rule_stops_no_row_before_the_loop_whose_answer_counts(data):
    class FirstLoopRule(Converged):
        """A rule that stops every row after the first loop."""

        def done(self, trace, planned):
            return torch.ones_like(planned, dtype=torch.bool)

    weights = load("looped-parity")
    with pytest.raises(UsageError, match="done stopped a row after loop 1; its answer comes from 2 loops before"):
        predict_by_rules(weights.model, weights.recipe, build_batch(weights.recipe, [3], 6), [FirstLoopRule()])
    wrong = data.draw(st.sampled_from([None, 3, torch.ones(6), torch.ones(5, dtype=torch.bool)]))
    FirstLoopRule.done = lambda self, trace, planned: wrong
    with pytest.raises(UsageError, match=r"done must return a torch\.bool for each of 6 rows"):
        predict_by_rules(weights.model, weights.recipe, build_batch(weights.recipe, [3], 6), [FirstLoopRule()])
