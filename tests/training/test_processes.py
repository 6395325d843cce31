"""Several processes train one model as one process does: threads stand in for processes, and with LENGTHWISE_LONG
torchrun starts real ones."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from contextvars import copy_context
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from conftest import LONG
from safetensors.torch import load_file
from training_recipes import PLAIN, RECIPES, UNEVEN

import lengthwise as lw
from lengthwise.base import rng
from lengthwise.base.types import UsageError
from lengthwise.runners.cpu import plain
from lengthwise.training import processes
from lengthwise.training.loop import Trainer
from lengthwise.training.processes import Processes
from lengthwise.training.trainer import try_training

pytestmark = pytest.mark.usefixtures("no_type_checks")
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _remove_generators_lock(monkeypatch):
    """Drop the lock around the global generators, which real processes would not share."""
    monkeypatch.setattr(rng, "_GENERATORS_LOCK", nullcontext())


class ThreadProcesses(Processes):
    def __init__(self, rank, count, values, barrier):
        super().__init__(rank, count)
        self.values, self.barrier = values, barrier

    def _exchange(self, value):
        self.values[self.rank] = value
        self.barrier.wait()
        found = list(self.values)
        self.barrier.wait()
        return found

    def gather(self, tensor):
        return self._exchange(tensor.detach().clone())

    def sum_in_place(self, tensor):
        tensor.copy_(torch.stack(self.gather(tensor)).sum(0))

    def broadcast(self, value):
        return self._exchange(value)[0]


def train_in_threads(recipe, count, steps, state=None):
    """Return the trainer of each of ``count`` processes after ``steps`` steps in float64."""
    barrier, values, faults = threading.Barrier(count, timeout=20), [None] * count, []
    trainees = []
    for rank in range(count):
        trainee = Trainer(recipe, CPU, processes=ThreadProcesses(rank, count, values, barrier) if count > 1 else None)
        trainee.model.double()
        if state:
            trainee.load_state({**state})
        trainees.append(trainee)

    def run_process(trainer):
        try:
            for _ in range(steps):
                trainer.advance()
                trainer.take_exam()
        except Exception as error:
            faults.append(error)
            barrier.abort()

    # With this thread's context, which holds the chosen runner.
    threads = [threading.Thread(target=copy_context().run, args=(run_process, trainee)) for trainee in trainees]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]
    return trainees


def assert_equal_trainers(first, second):
    for name, value in first.model.state_dict().items():
        torch.testing.assert_close(value, second.model.state_dict()[name], atol=1e-6, rtol=0)
    for name, value in first.sums.items():
        torch.testing.assert_close(value, second.sums[name], atol=1e-6, rtol=0)
    assert first.exams_passed == second.exams_passed


@pytest.mark.parametrize(("name", "count"), [("final", 2), *((name, 3) for name in RECIPES)])
def test_several_processes_train_like_one_process(name, count):
    recipe, steps = RECIPES[name]
    (alone,) = train_in_threads(recipe, 1, steps)
    for one in train_in_threads(recipe, count, steps):
        assert_equal_trainers(one, alone)


def test_several_processes_train_like_one_process_with_the_plain_runner():
    with plain():
        (alone,) = train_in_threads(RECIPES["every"][0], 1, 2)
        for one in train_in_threads(RECIPES["every"][0], 2, 2):
            assert_equal_trainers(one, alone)


def test_the_number_of_processes_may_change_during_training():
    (alone,) = train_in_threads(UNEVEN, 1, 6)
    state = None
    for count in (3, 1, 2):
        first, *others = train_in_threads(UNEVEN, count, 2, state)
        assert all(other.step == first.step for other in others)
        state = first.state()
    assert_equal_trainers(first, alone)


def test_each_process_draws_its_own_dropout():
    recipe = replace(UNEVEN, model=replace(UNEVEN.model, dropout=0.5), steps=1)
    assert Processes(0, 2).rng_address == () != Processes(1, 2).rng_address != Processes(2, 3).rng_address
    one, two = train_in_threads(recipe, 2, 1)
    assert_equal_trainers(one, two)


def test_fewer_rows_than_processes_are_refused():
    with pytest.raises(UsageError, match="batch must be 3 or more, a row per process, not 2"):
        train_in_threads(replace(PLAIN, batch=2), 3, 1)


@dataclass(frozen=True)
class WeightPenalty(lw.Final):
    def __call__(self, runner, batch, loops, generator):
        loss = super().__call__(runner, batch, loops, generator)
        return lw.Loss(loss.value + sum(weight.square().sum() for weight in runner.model.parameters()), loss.logs)


def test_objectives_that_use_the_model_are_refused_before_training_in_several_processes(monkeypatch):
    """Each process would add the whole gradient of a penalty."""
    recipe = replace(UNEVEN, objective=WeightPenalty())
    try_training(recipe, CPU)
    monkeypatch.setattr(processes, "count_processes", lambda: 2)
    with pytest.raises(UsageError, match=r"^the objective uses runner.model, .*, or train in one process$"):
        try_training(recipe, CPU)
    one = try_training(UNEVEN, CPU)  # uses only its own rows
    monkeypatch.undo()
    assert_equal_trainers(one, try_training(UNEVEN, CPU))


# Real processes


def start_torchrun(count):
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(count), "--standalone"]
    train = ["-m", "lengthwise", "train", "looped-parity", "lengths=Uniform(top=4)", "model.width=8", "batch=7",
             "watch.every=0", "keep=last", "steps=400", "--lengths", "3", "--samples", "5", "--quiet",
             "--save-every", "0.2"]  # fmt: skip
    return subprocess.Popen([*command, *train])


@pytest.mark.skipif(not LONG, reason="starts many processes: LENGTHWISE_LONG=1")
@pytest.mark.timeout(600)
def test_a_killed_torchrun_is_resumed_with_another_number_of_processes(runs):
    assert start_torchrun(1).wait() == 0
    (alone,) = runs.glob("looped-parity-*")
    expected = load_file(alone / "model.safetensors")
    alone.rename(runs / "alone")
    killed = start_torchrun(2)
    state = runs / alone.name / "state.pt"
    while not state.exists() and killed.poll() is None:
        time.sleep(0.05)
    children = Path(f"/proc/{killed.pid}/task/{killed.pid}/children").read_text(encoding="utf-8").split()
    os.kill(int(children[0]), signal.SIGKILL)
    assert killed.wait() != 0  # torchrun ends the others
    stopped = start_torchrun(3)
    before = state.stat().st_mtime_ns
    while state.exists() and state.stat().st_mtime_ns == before and stopped.poll() is None:
        time.sleep(0.05)
    stopped.send_signal(signal.SIGTERM)
    stopped.wait()
    assert start_torchrun(2).wait() == 0
    about = json.loads((runs / alone.name / "about.json").read_text())
    assert about["processes"] == 2 and about["steps"] == 400
    assert [change["processes"] for change in about["resumed"]] == ["2", "3"]
    for name, value in load_file(runs / alone.name / "model.safetensors").items():
        torch.testing.assert_close(value, expected[name], atol=1e-3, rtol=0)
