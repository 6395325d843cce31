"""Prefetched batches give the same results. Prefetching is for GPUs only, and is turned on for the CPU here."""

import os
import signal
import threading
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from conftest import LONG, Crash
from trainings import MASTERED, PLAIN, RICH, read_outcome, stop_at, train_uninterrupted

from lengthwise.base.errors import Interrupted, UsageError
from lengthwise.experiment import data
from lengthwise.experiment.lengths import Mastery
from lengthwise.training import loop, stacked
from lengthwise.training.loop import prefetch_batches, train
from lengthwise.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("no_type_checks")
CPU = torch.device("cpu")


@pytest.fixture
def draws(monkeypatch):
    """Turn prefetching on, and return a list of the drawn batches: step, number of exams passed, and thread."""
    found, draw = [], data.draw_batch

    def record_draw(recipe, step, *, exams_passed=None):
        found.append((step, exams_passed, threading.current_thread().name))
        return draw(recipe, step, exams_passed=exams_passed)

    monkeypatch.setattr(data, "draw_batch", record_draw)
    for module in (loop, stacked):
        monkeypatch.setattr(module, "prefetch_batches", partial(prefetch_batches, on_any_device=True))
    return found


@pytest.fixture(autouse=True)
def _no_thread_is_left():
    before = {*threading.enumerate()}
    yield
    assert {*threading.enumerate()} <= before


def test_all_but_the_first_are_drawn_by_one_thread(draws):
    """One thread draws every batch after the first, each once, and none beyond the last step."""
    run = train(PLAIN)
    mine = threading.current_thread().name
    alone = [step for step, _, thread in draws if thread == mine]
    others = {thread: [step for step, _, by in draws if by == thread] for _, _, thread in draws if thread != mine}
    assert alone == [0, PLAIN.steps - 1, 0]  # two of them by try_training
    assert [*others.values()] == [[*range(1, PLAIN.steps)]]
    assert read_outcome(run) == train_uninterrupted(PLAIN)


@pytest.mark.parametrize("recipe", [MASTERED, RICH] if LONG else [MASTERED], ids=lambda recipe: recipe.name)
def test_stopped_and_resumed_equals_unbroken_to_the_bit(recipe, monkeypatch, draws):
    stop_at(monkeypatch, [3, 4], lambda: os.kill(os.getpid(), signal.SIGTERM))
    for _ in range(2):
        with pytest.raises(Interrupted):
            train(recipe, save_every=1e9)
    assert read_outcome(train(recipe)) == train_uninterrupted(recipe)


def test_a_batch_from_before_an_exam_is_never_used(draws):
    recipe = replace(PLAIN, lengths=Mastery(9, every=1), batch=30)
    trainee = Trainer(recipe, CPU)
    with prefetch_batches([trainee], on_any_device=True):
        for step, passed in [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2)]:
            trainee.exams_passed = passed
            assert int(trainee.draw_batch(step)[0].sizes.max()) == recipe.lengths.maximum(passed)
    assert {(step, passed) for step, passed, _ in draws} >= {(2, 0), (2, 1), (3, 1), (3, 2)}


# Errors and interruption


def test_an_error_while_drawing_is_raised_where_the_batch_is_needed(monkeypatch, draws):
    draw = data.draw_batch

    def fail_at_step_4(recipe, step, *, exams_passed=None):
        if step == 4:
            raise UsageError("there is no such problem")
        return draw(recipe, step, exams_passed=exams_passed)

    monkeypatch.setattr(data, "draw_batch", fail_at_step_4)
    taken = []
    advance = Trainer.advance
    monkeypatch.setattr(Trainer, "advance", lambda one: (advance(one), taken.append(one.step)))
    with pytest.raises(UsageError, match="there is no such problem"):
        train(PLAIN)
    assert taken[2:] == [1, 2, 3, 4]  # after two of try_training
    monkeypatch.setattr(data, "draw_batch", draw)
    assert read_outcome(train(PLAIN)) == train_uninterrupted(PLAIN)


@pytest.mark.parametrize("end", [Crash, KeyboardInterrupt])
def test_no_thread_is_left_when_training_is_interrupted(end, monkeypatch, draws):
    def broken():
        raise end

    stop_at(monkeypatch, [3], broken)
    with pytest.raises(end):
        train(PLAIN)


def test_batches_are_not_prefetched_on_a_cpu(monkeypatch):
    monkeypatch.setattr(loop, "ThreadPoolExecutor", lambda *_: pytest.fail("a thread draws batches"))
    train(replace(PLAIN, steps=2))
    on_gpu = SimpleNamespace(device=torch.device("cuda"), draw=None)
    with pytest.raises(pytest.fail.Exception, match="a thread draws"), prefetch_batches([on_gpu]):
        pass
