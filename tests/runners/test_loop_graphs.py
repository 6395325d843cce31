"""Loops on a fixed buffer, recorded for evaluation on a GPU, equal the plain runner's for every form of model. On a CPU
a recording computes again from its buffers, which tests all but the replay itself."""

from dataclasses import replace

import pytest
import torch
from conftest import LONG
from forms import BASE, EVERY, VARIED, all_close, built, names, some
from torch.utils._pytree import tree_leaves

import lengthwise as lw
from lengthwise.runners import loop_graphs
from lengthwise.runners.loop_graphs import LoopGraphs, RecordedLoop
from lengthwise.runners.plain import Plain

LOOPS = torch.tensor([2, 9, 1, 9, 4, 6])
STOP = torch.tensor([9, 3, 9, 9, 2, 9])  # the loop after which each row stops
FORMS = EVERY if LONG else VARIED[:16]


@pytest.fixture(autouse=True)
def _short_recordings(monkeypatch):
    monkeypatch.setattr(loop_graphs, "MIN_LOOPS", 2)


@pytest.fixture
def recordings(monkeypatch):
    """Collect, for each loop that is to be recorded, its number of rows and whether recording succeeded."""
    found, record = [], RecordedLoop.record

    def remember(loop):
        found.append((tree_leaves(loop.state)[0].shape[0], record(loop)))
        return found[-1][1]

    monkeypatch.setattr(RecordedLoop, "record", remember)
    return found


def run_all_ways(runner, inputs, *, movement=False):
    """Return the logits after the last loop, and after each loop while rows stop, with the movement of states."""
    at = inputs.padding_mask & (torch.arange(inputs.tokens.shape[1]) % 3 != 1)
    read, steps, stay = [runner.last(inputs, LOOPS, at)], runner.steps(inputs, LOOPS, at, movement=movement), None
    while True:
        try:
            loop, rows, logits, moved = steps.send(stay)
        except StopIteration:
            return read
        order = rows.argsort()
        parts = logits.split(at[rows].sum(1).tolist())
        read += [torch.cat([parts[row] for row in order]), rows[order].double()]
        read += [] if moved is None else [moved[order].nan_to_num(posinf=-1)]
        stay = STOP[rows] > loop


@pytest.mark.parametrize(("spec", "causal"), FORMS, ids=names(FORMS))
@torch.no_grad()
def test_recorded_loops_equal_the_plain_runner(spec, causal, recordings):
    model, inputs = built(spec, causal).eval(), some([4, 11, 1, 11, 7, 11], width=12)
    all_close(*(run_all_ways(runner, inputs, movement=True) for runner in (LoopGraphs(model), Plain(model))))
    assert recordings and all(done for _, done in recordings)


@torch.no_grad()
def test_the_buffer_shrinks_when_half_of_the_rows_have_finished(recordings):
    model, inputs = built(BASE, True).eval(), some([4, 11, 1, 11, 7, 11])
    LoopGraphs(model).last(inputs, LOOPS, inputs.padding_mask)
    assert recordings == [(6, True), (3, True)]  # then two loops of three rows, one of which has finished


@torch.no_grad()
def test_carried_states_are_continued():
    model, inputs = built(BASE, True).eval(), some([4, 11, 1, 11, 7, 11])
    at, found = inputs.padding_mask, []
    for runner in (LoopGraphs(model), Plain(model)):
        _, state = runner.carry(inputs, LOOPS, at)
        found.append([*runner.carry(inputs, LOOPS + 1, at, state)])
    all_close(*found)


class Unrepeatable(lw.Model):
    """A model with a state that grows in each loop, with loops that it counts in Python, or with their number in its
    state: a replay would not repeat them."""

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
def test_a_loop_that_cannot_be_replayed_runs_plainly(kind, recordings):
    model, inputs = Unrepeatable(kind).double().eval(), some([4, 11, 1, 11, 7, 11])
    all_close(*(run_all_ways(runner, inputs) for runner in (LoopGraphs(model), Plain(model))))
    assert recordings and not any(done for _, done in recordings)


@torch.no_grad()
def test_an_error_of_the_model_is_raised_unchanged(monkeypatch):
    model, inputs = built(BASE, True).eval(), some()
    monkeypatch.setattr(type(model), "advance", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        LoopGraphs(model).last(inputs, torch.full((len(inputs),), 9), inputs.padding_mask)


def test_nothing_is_recorded_with_gradients_or_on_a_cpu(recordings):
    model, inputs = built(replace(BASE, layers=2), True), some([4, 11, 1, 11, 7, 11])
    LoopGraphs(model).last(inputs, LOOPS, inputs.padding_mask).sum().backward()
    assert not recordings and not LoopGraphs.is_worthwhile(model)
