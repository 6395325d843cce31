"""Loops on a fixed buffer, recorded for evaluation on a GPU, equal the plain runner's for every form of model. On a CPU
a recording computes again from its buffers, which tests everything except the replay. The relative movement of a state
in each loop follows its formula row by row, in every runner."""

from dataclasses import replace

import pytest
import torch
from conftest import LONG
from specs import BASE, FEW_MODELS, MODELS, assert_all_close, assert_close, build_rows, cached_model, list_ids
from torch.utils._pytree import tree_leaves

import lengthwise as lw
from lengthwise.evaluation.answers import predict_by_rules
from lengthwise.evaluation.scores import evaluate
from lengthwise.experiment.data import draw_recipe_problems
from lengthwise.experiment.stopping import After, Settled
from lengthwise.models.scan import Scan
from lengthwise.runners import loop_graphs
from lengthwise.runners.cpu import choose_runner
from lengthwise.runners.loop_graphs import LoopGraphs, RecordedLoop
from lengthwise.runners.plain import Plain, measure_movement
from lengthwise.runs.run import load

LOOPS = torch.tensor([2, 9, 1, 9, 4, 6])
STOP_AFTER = torch.tensor([9, 3, 9, 9, 2, 9])  # the loop after which each row stops
FORMS = MODELS if LONG else FEW_MODELS[:16]


@pytest.fixture(autouse=True)
def _record_short_runs_too(monkeypatch):
    monkeypatch.setattr(loop_graphs, "MIN_LOOPS", 2)


@pytest.fixture
def recordings(monkeypatch):
    """Collect, for each attempt to record a loop, its number of rows and whether recording succeeded."""
    found, record = [], RecordedLoop.record

    def record_and_count(loop):
        found.append((tree_leaves(loop.state)[0].shape[0], record(loop)))
        return found[-1][1]

    monkeypatch.setattr(RecordedLoop, "record", record_and_count)
    return found


def collect_logits(runner, inputs, *, movement=False):
    """Return the logits after the last loop, followed by the logits, row numbers and (if requested) movement of each
    loop of a pass in which rows stop early."""
    positions = inputs.padding_mask & (torch.arange(inputs.tokens.shape[1]) % 3 != 1)
    read, stay = [runner.last(inputs, LOOPS, positions)], None
    steps = runner.steps(inputs, LOOPS, positions, movement=movement)
    while True:
        try:
            loop, rows, logits, moved = steps.send(stay)
        except StopIteration:
            return read
        order = rows.argsort()
        parts = logits.split(positions[rows].sum(1).tolist())
        read += [torch.cat([parts[row] for row in order]), rows[order].double()]
        read += [] if moved is None else [moved[order].nan_to_num(posinf=-1)]
        stay = STOP_AFTER[rows] > loop


@pytest.mark.parametrize(("spec", "causal"), FORMS, ids=list_ids(FORMS))
@torch.no_grad()
def test_recorded_loops_equal_the_plain_runner(spec, causal, recordings):
    model, inputs = cached_model(spec, causal).eval(), build_rows([4, 11, 1, 11, 7, 11], width=12)
    assert_all_close(*(collect_logits(runner, inputs, movement=True) for runner in (LoopGraphs(model), Plain(model))))
    recordable = not isinstance(spec, Scan)  # a scan's state holds the number of its loops
    assert recordings and all(done is recordable for _, done in recordings)


@torch.no_grad()
def test_the_buffer_shrinks_when_half_of_the_rows_have_finished(recordings):
    model, inputs = cached_model(BASE, True).eval(), build_rows([4, 11, 1, 11, 7, 11])
    LoopGraphs(model).last(inputs, LOOPS, inputs.padding_mask)
    assert recordings == [(6, True), (3, True)]  # then two loops of three rows, one of which has finished


@torch.no_grad()
def test_runs_continue_from_carried_states():
    model, inputs = cached_model(BASE, True).eval(), build_rows([4, 11, 1, 11, 7, 11])
    positions, found = inputs.padding_mask, []
    for runner in (LoopGraphs(model), Plain(model)):
        _, state = runner.carry(inputs, LOOPS, positions)
        found.append([*runner.carry(inputs, LOOPS + 1, positions, state)])
    assert_all_close(*found)


class UnrepeatableModel(lw.Model):
    """A model that no replay can repeat: its state grows in each loop, it counts loops in Python, or its state holds
    their number."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.table, self.out = kind, torch.nn.Embedding(20, 4), torch.nn.Linear(4, 6)

    def embed(self, inputs):
        self.loops = 0
        return self.table(inputs.tokens)

    def start(self, context):
        return context[..., None], 0

    def advance(self, state, context):
        (values, number), self.loops = state, self.loops + 1
        if self.kind == "growing":
            return torch.cat([values, values.mean(-1, keepdim=True).tanh()], -1), 0
        return (values + self.loops, 0) if self.kind == "counting" else (values + number, number + 1)

    def read(self, state):
        return self.out(state[0][..., -1])


@pytest.mark.parametrize("kind", ["growing", "counting", "numbered"])
@torch.no_grad()
def test_a_loop_that_cannot_be_replayed_runs_unrecorded(kind, recordings):
    model, inputs = UnrepeatableModel(kind).double().eval(), build_rows([4, 11, 1, 11, 7, 11])
    assert_all_close(*(collect_logits(runner, inputs) for runner in (LoopGraphs(model), Plain(model))))
    assert recordings and not any(done for _, done in recordings)


@torch.no_grad()
def test_an_error_of_the_model_is_raised_unchanged(monkeypatch):
    model, inputs = cached_model(BASE, True).eval(), build_rows()
    monkeypatch.setattr(type(model), "advance", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        LoopGraphs(model).last(inputs, torch.full((len(inputs),), 9), inputs.padding_mask)


def test_nothing_is_recorded_with_gradients_or_on_a_cpu(recordings):
    model, inputs = cached_model(replace(BASE, layers=2), True), build_rows([4, 11, 1, 11, 7, 11])
    LoopGraphs(model).last(inputs, LOOPS, inputs.padding_mask).sum().backward()
    assert not recordings and not LoopGraphs.is_worthwhile(model)


ROW_LOOPS = torch.tensor([3, 1, 4])


def compute_movement_and_logits(runner, inputs, positions):
    """Return movement and logits by loop and row, independent of the runner's order of rows."""
    found = {}
    for step in runner.steps(inputs, ROW_LOOPS, positions, movement=True):
        logits_by_row = step.logits.split(positions[step.rows].sum(1).tolist())
        for row, far, logits in zip(step.rows.tolist(), step.movement, logits_by_row, strict=True):
            found[step.loop, row] = far, logits
    assert {*found} == {(k, row) for row, count in enumerate(ROW_LOOPS.tolist()) for k in range(1, count + 1)}
    return found


MOVEMENT_CASES = MODELS if LONG else FEW_MODELS


@pytest.mark.parametrize(("spec", "causal"), MOVEMENT_CASES, ids=list_ids(MOVEMENT_CASES))
@torch.no_grad()
def test_movement_follows_the_formula_in_every_runner(spec, causal):
    model, inputs = cached_model(spec, causal).eval(), build_rows(width=10)
    positions = inputs.padding_mask
    plainly, chosen = (compute_movement_and_logits(kind(model), inputs, positions) for kind in (Plain, choose_runner))
    for row, count in enumerate(ROW_LOOPS.tolist()):
        length, context = int(positions[row].sum()), model.embed(inputs.take(slice(row, row + 1)).cut_padding())
        state, states = model.start(context), []
        for loop in range(1, count + 1):
            far, logits = plainly[loop, row]
            assert_close(far, chosen[loop, row][0])
            assert_close(logits, chosen[loop, row][1])
            assert (far[length:] == 0).all() and (far[:, 1].isinf() == (positions[row] & (loop < 3))).all()
            state = model.advance(state, context)
            states.append(model.answer_state(state))
            for period in range(1, min(3, loop)):
                now, before = states[-1], states[-1 - period]
                assert_close(far[:length, period - 1], (now - before).norm(dim=-1)[0] / now.norm(dim=-1)[0])


def test_movement_counts_parts_of_a_state_without_positions_at_every_position():
    real = torch.tensor([[True, True, False], [True, False, False]])
    now = (torch.full((2, 3, 2), 2.0), (torch.tensor([[6.0], [0.0]]), torch.tensor([1, 2])))
    before = (torch.full((2, 3, 2), 2.0), (torch.tensor([[0.0], [0.0]]), torch.tensor([1, 1])))
    over_one, over_two = measure_movement(now, [before], real).unbind(-1)
    assert_close(over_one, torch.tensor([[6 / 44**0.5] * 2 + [0.0], [0.0] * 3]), 1e-6)
    assert over_two.isinf().tolist() == real.tolist()


@pytest.mark.parametrize(("name", "size", "period", "should_stop"), [
    ("looped-pairs", 8, 1, True), ("halting-parity", 20, 1, True), ("looped-parity", 20, 1, False),
    ("looped-parity", 20, 2, True),
])  # fmt: skip
def test_settled_stops_once_the_answering_state_is_stationary(name, size, period, should_stop):
    """``looped-parity`` alternates between two states; the changing clock of ``halting-parity`` is ignored."""
    weights = load(name)
    recipe = weights.recipe
    batch = recipe.layout.write(draw_recipe_problems(recipe, recipe.sizes(size), 8, seed=0), recipe.task)
    (found,) = predict_by_rules(weights.model, recipe, batch, [Settled(0.01, period=period, max_loops=80)])
    assert bool(found.stopped_by_rule.all()) == should_stop and (found.loops <= 80).all()
    (score,) = evaluate(weights, [size], samples=8, stopping=Settled(0.01, period=period, max_loops=80))
    assert (score.at_limit == 0) == should_stop and score.row()["at_limit"] == score.at_limit
    (score,) = evaluate(weights, [size], samples=8, stopping=After(3))
    assert score.at_limit is None
