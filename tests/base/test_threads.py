"""Training several runs in threads of one process gives each run the same weights as training alone."""

import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn
from training_recipes import MASTERED, MODEL, PLAIN, read_outcome

import lengthwise as lw
from lengthwise.runners import cpu
from lengthwise.runners.plain import Plain
from lengthwise.training import trainer
from lengthwise.training.arithmetic import computation_settings
from lengthwise.training.loop import train

pytestmark = pytest.mark.usefixtures("no_type_checks")


@dataclass(frozen=True)
class DropoutSpec(lw.ModelSpec):
    """A module with torch's dropout, which no fast runner supports, that also draws from Python's generator."""

    def build(self, reads, writes, *, causal):
        class Module(nn.Sequential):
            def forward(self, tokens):
                random.random()
                return super().forward(tokens)

        return Module(nn.Embedding(len(reads), 8), nn.Dropout(0.3), nn.Linear(8, len(writes)))


DROPOUT_RECIPE = replace(PLAIN, model=replace(MODEL, dropout=0.3), steps=8)
NEXT_TOKEN_RECIPE = replace(DROPOUT_RECIPE, layout=lw.NextToken(), loops=lw.Constant(1))
RECIPES = [
    DROPOUT_RECIPE,
    replace(DROPOUT_RECIPE, seed=1, watch=lw.Watch(every=5, sizes=(2,), count=4)),
    replace(NEXT_TOKEN_RECIPE, model=lw.LSTM(width=4, hidden=4, layers=2, dropout=0.3)),
    replace(NEXT_TOKEN_RECIPE, model=DropoutSpec()),
    replace(MASTERED, model=replace(MODEL, dropout=0.3), steps=8),
]


def call_in_threads(function, arguments):
    """Return the function's result for each of ``arguments``, computed in threads at the same time."""
    ready, before = threading.Barrier(len(arguments)), sys.getswitchinterval()

    def call_when_ready(argument):
        ready.wait()
        return function(argument)

    sys.setswitchinterval(1e-5)  # seconds: threads take turns as often as they can
    try:
        with ThreadPoolExecutor(len(arguments)) as threads:
            return list(threads.map(call_when_ready, arguments))
    finally:
        sys.setswitchinterval(before)


def test_training_in_threads_equals_training_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(trainer, "read_git_commit", lambda: "")  # calls git otherwise
    before = torch.get_rng_state(), random.getstate()
    alone = [read_outcome(train(recipe, tmp_path / f"alone-{number}")) for number, recipe in enumerate(RECIPES)]
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]

    def train_again(number):
        return read_outcome(train(RECIPES[number], tmp_path / f"beside-{number}"))

    beside = call_in_threads(train_again, range(len(RECIPES)))
    assert [one == other for one, other in zip(alone, beside, strict=True)] == [True] * len(RECIPES)
    assert torch.equal(torch.get_rng_state(), before[0]) and random.getstate() == before[1]


def test_training_does_not_change_the_random_numbers_of_another_thread(tmp_path):
    """Training in one thread does not change the numbers that another thread draws from the global generator."""
    hold, go = threading.Event(), threading.Event()

    def train_two_steps():
        one = trainer.Trainer(DROPOUT_RECIPE, torch.device("cpu"))
        one.advance()
        hold.set()
        assert go.wait(20)
        one.advance()

    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    with ThreadPoolExecutor(1) as worker:
        training = worker.submit(train_two_steps)
        assert hold.wait(20)
        first = torch.rand(1)
        go.set()
        training.result()
    assert torch.equal(torch.cat([first, torch.rand(1)]), expected)


def test_choosing_the_plain_runner_affects_only_its_thread():
    model = PLAIN.build()
    with ThreadPoolExecutor(1) as other, lw.plain():
        assert type(cpu.choose_runner(model)) is Plain
        assert type(other.submit(cpu.choose_runner, model).result()) is not Plain


def test_denormal_numbers_are_flushed_until_the_outer_context_ends():
    tiny = torch.tensor(1e-40)
    with computation_settings(1):
        with computation_settings(1):
            pass
        assert float(tiny * 1) == 0
    assert float(tiny * 1) != 0
