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
from training_recipes import MASTERED, PLAIN, RICH, read_outcome, stop_at, train_uninterrupted

from lengthwise.base.errors import Interrupted, UsageError
from lengthwise.experiment import data
from lengthwise.experiment.lengths import Mastery
from lengthwise.training import loop, stacked
from lengthwise.training.loop import prefetch_batches, train
from lengthwise.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("no_type_checks")
CPU = torch.device("cpu")


@pytest.fixture
def batches(monkeypatch):
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
def _check_that_no_thread_is_left():
    before = {*threading.enumerate()}
    yield
    assert {*threading.enumerate()} <= before


def test_all_batches_but_the_first_are_drawn_by_one_thread(batches):
    """One thread draws every batch after the first, each once, and none beyond the last step."""
    run = train(PLAIN)
    mine = threading.current_thread().name
    alone = [step for step, _, thread in batches if thread == mine]
    others = {thread: [step for step, _, by in batches if by == thread] for _, _, thread in batches if thread != mine}
    assert alone == [0, PLAIN.steps - 1, 0]  # two of them by try_training
    assert [*others.values()] == [[*range(1, PLAIN.steps)]]
    assert read_outcome(run) == train_uninterrupted(PLAIN)


@pytest.mark.parametrize("recipe", [MASTERED, RICH] if LONG else [MASTERED], ids=lambda recipe: recipe.name)
def test_stopped_and_resumed_training_equals_uninterrupted_training_bit_for_bit(recipe, monkeypatch, batches):
    stop_at(monkeypatch, [3, 4], lambda: os.kill(os.getpid(), signal.SIGTERM))
    for _ in range(2):
        with pytest.raises(Interrupted):
            train(recipe, save_every=1e9)
    assert read_outcome(train(recipe)) == train_uninterrupted(recipe)


def test_a_batch_from_before_an_exam_is_never_used(batches):
    recipe = replace(PLAIN, lengths=Mastery(9, every=1), batch=30)
    trainee = Trainer(recipe, CPU)
    with prefetch_batches([trainee], on_any_device=True):
        for step, passed in [(0, 0), (1, 0), (2, 1), (3, 2), (4, 2)]:
            trainee.exams_passed = passed
            assert int(trainee.draw_batch(step)[0].sizes.max()) == recipe.lengths.maximum(passed)
    assert {(step, passed) for step, passed, _ in batches} >= {(2, 0), (2, 1), (3, 1), (3, 2)}


# Errors and interruption


def test_an_error_in_drawing_a_batch_is_raised_at_its_step(monkeypatch, batches):
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


@pytest.mark.parametrize("error_type", [Crash, KeyboardInterrupt])
def test_no_thread_is_left_when_training_is_interrupted(error_type, monkeypatch, batches):
    def raise_error():
        raise error_type

    stop_at(monkeypatch, [3], raise_error)
    with pytest.raises(error_type):
        train(PLAIN)


def test_batches_are_not_prefetched_on_a_cpu(monkeypatch):
    monkeypatch.setattr(loop, "ThreadPoolExecutor", lambda *_: pytest.fail("a thread draws batches"))
    train(replace(PLAIN, steps=2))
    on_gpu = SimpleNamespace(device=torch.device("cuda"), draw=None)
    with pytest.raises(pytest.fail.Exception, match="a thread draws"), prefetch_batches([on_gpu]):
        pass
