"""Loops on a fixed buffer, as they are recorded for evaluation on a GPU, equal those of the plain runner: every form of
model. On a CPU a recording computes again from its buffers, which is all but the replay."""

from dataclasses import replace

import pytest
import torch
from conftest import LONG
from forms import BASE, EVERY, all_close, built, names, some
from torch.utils._pytree import tree_leaves

import lengthwise as lw
from lengthwise.runners import loop_graphs
from lengthwise.runners.loop_graphs import LoopGraphs, RecordedLoop
from lengthwise.runners.plain import Plain

LOOPS = torch.tensor([2, 9, 1, 9, 4, 6])
STOP = torch.tensor([9, 3, 9, 9, 2, 9])  # the loop after which a rule lets a row go
FORMS = EVERY if LONG else EVERY[::4]


@pytest.fixture(autouse=True)
def _short_recordings(monkeypatch):
    monkeypatch.setattr(loop_graphs, "MIN_LOOPS", 2)


@pytest.fixture
def recorded(monkeypatch):
    """Of each loop that is to be recorded: its number of rows, and whether it was."""
    found, record = [], RecordedLoop.record

    def remember(loop):
        found.append((tree_leaves(loop.state)[0].shape[0], record(loop)))
        return found[-1][1]

    monkeypatch.setattr(RecordedLoop, "record", remember)
    return found


def run(runner, inputs, *, movement=False):
    """What is read after the last loops, and after each while rows leave; with the movement of states."""
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
def test_a_fixed_buffer_changes_no_value(spec, causal, recorded):
    model, inputs = built(spec, causal).eval(), some([4, 11, 1, 11, 7, 11], width=12)
    all_close(*(run(runner, inputs, movement=True) for runner in (LoopGraphs(model), Plain(model))))
    assert recorded and all(done for _, done in recorded)


@torch.no_grad()
def test_when_half_of_the_rows_have_finished_the_others_have_a_smaller_buffer(recorded):
    model, inputs = built(BASE, True).eval(), some([4, 11, 1, 11, 7, 11])
    LoopGraphs(model).last(inputs, LOOPS, inputs.padding_mask)
    assert recorded == [(6, True), (3, True)]  # then two loops of three rows, one of which has finished


@torch.no_grad()
def test_states_go_on_from_those_that_were_carried():
    model, inputs = built(BASE, True).eval(), some([4, 11, 1, 11, 7, 11])
    at, found = inputs.padding_mask, []
    for runner in (LoopGraphs(model), Plain(model)):
        _, state = runner.carry(inputs, LOOPS, at)
        found.append([*runner.carry(inputs, LOOPS + 1, at, state)])
    all_close(*found)


class Growing(lw.Model):
    """Its state is a list of all states before, which grows by one in each loop."""

    def __init__(self):
        super().__init__()
        self.table, self.out = torch.nn.Embedding(20, 4), torch.nn.Linear(4, 6)

    def embed(self, inputs):
        return self.table(inputs.tokens)

    def start(self, context):
        return context[..., None]

    def advance(self, state, context):
        return torch.cat([state, state.mean(-1, keepdim=True).tanh()], -1)

    def read(self, state):
        return self.out(state[..., -1])


class Counting(Growing):
    """It counts loops in Python, which a replay would not."""

    def start(self, context):
        self.loops = 0
        return context

    def advance(self, state, context):
        self.loops += 1
        return state + self.loops

    def read(self, state):
        return self.out(state)


class Numbered(Counting):
    """Its state has the number of the loop."""

    def start(self, context):
        return context, 0

    def advance(self, state, context):
        return state[0] + state[1], state[1] + 1

    def read(self, state):
        return self.out(state[0])


@pytest.mark.parametrize("kind", [Growing, Counting, Numbered])
@torch.no_grad()
def test_a_loop_that_a_replay_would_not_repeat_runs_plainly(kind, recorded):
    model, inputs = kind().double().eval(), some([4, 11, 1, 11, 7, 11])
    all_close(*(run(runner, inputs) for runner in (LoopGraphs(model), Plain(model))))
    assert recorded and not any(done for _, done in recorded)


@torch.no_grad()
def test_a_fault_of_the_model_is_raised_as_it_is(monkeypatch):
    model, inputs = built(BASE, True).eval(), some()
    monkeypatch.setattr(type(model), "advance", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        LoopGraphs(model).last(inputs, torch.full((len(inputs),), 9), inputs.padding_mask)


def test_with_gradients_and_on_a_cpu_nothing_is_recorded(recorded):
    model, inputs = built(replace(BASE, layers=2), True), some([4, 11, 1, 11, 7, 11])
    LoopGraphs(model).last(inputs, LOOPS, inputs.padding_mask).sum().backward()
    assert not recorded and not LoopGraphs.is_worthwhile(model)
