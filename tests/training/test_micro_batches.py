"""Batches too large for memory run in parts with the same result; several runs are spread over a machine's GPUs."""

import io
import os
import signal
import sys
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from conftest import LONG
from torch.autograd.graph import saved_tensors_hooks
from training_recipes import PLAIN, RECIPES, read_outcome, stop_at

from lengthwise.api import catalog
from lengthwise.base.progress import Progress
from lengthwise.base.types import UsageError
from lengthwise.cli import entry
from lengthwise.experiment import data
from lengthwise.jobs import launchers
from lengthwise.jobs.launchers import Local, find_least_used_gpu
from lengthwise.runners import cpu
from lengthwise.runners.plain import Plain
from lengthwise.runs.run import choose_device
from lengthwise.training import stacked
from lengthwise.training.choice import MicroBatches
from lengthwise.training.loop import Interrupted, train
from lengthwise.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("no_type_checks")
CPU = torch.device("cpu")


def exhaust_memory(*_, **__):
    torch.empty(2**50)


def raise_cuda_error(*_, **__):
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")


def raise_memory_error(*_, **__):
    raise MemoryError


class TwoRowRunner(Plain):
    def _check_rows(self, loops):
        if len(loops) > 2:
            exhaust_memory()

    def last(self, inputs, loops, positions, *, no_grad_loops=0):
        self._check_rows(loops)
        return super().last(inputs, loops, positions, no_grad_loops=no_grad_loops)

    def each(self, inputs, loops, positions):
        self._check_rows(loops)
        return super().each(inputs, loops, positions)

    def carry(self, inputs, loops, positions, state=None):
        self._check_rows(loops)
        return super().carry(inputs, loops, positions, state)


@pytest.mark.parametrize("name", ["ntp-pause-parity", "gpt-small"])
def test_cpu_runners_give_equal_gradients_in_micro_batches(name):
    recipe = catalog.find_recipe(name, ["batch=4", "source=Fresh", "watch.every=0", "keep=last", "model.dropout=0"])
    whole, parted = Trainer(recipe, CPU), Trainer(recipe, CPU)
    parted.parts = 2
    for trainee in (whole, parted):
        next(trainee.compute_losses(*trainee.draw_batch(0)))
    for one, other in zip(whole.model.parameters(), parted.model.parameters(), strict=True):
        if one.grad is not None or other.grad is not None:
            torch.testing.assert_close(one.grad, other.grad, atol=1e-5, rtol=1e-3)


@pytest.mark.parametrize("name", RECIPES if LONG else ["every"])
def test_training_in_parts_gives_the_same_weights(name, monkeypatch):
    recipe, steps = RECIPES[name]
    whole, parted = Trainer(recipe, CPU), Trainer(recipe, CPU)
    for trainee in (whole, parted):
        trainee.model.double()
        if trainee.average:
            trainee.average.double()
    for _ in range(steps):
        whole.advance()
        with monkeypatch.context() as patch:
            patch.setattr(cpu, "choose_runner", lambda model, kinds: TwoRowRunner(model))
            parted.advance()
    assert (whole.parts, parted.parts) == (1, 2 if recipe.batch == 3 else 4)
    for one, other in zip(whole.model.parameters(), parted.model.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=0)
    for one, other in zip(whole.sums.values(), parted.sums.values(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-9, rtol=0)


def test_parts_keep_less_memory_for_backpropagation():
    rows, loops = data.draw_batch(replace(PLAIN, batch=16), 0)
    model, kept = PLAIN.build(), []
    for runner in (Plain(model), MicroBatches(Plain(model), 4)):
        numbers = Counter()
        with saved_tensors_hooks(lambda x, numbers=numbers: numbers.update([x.numel()]) or x, lambda x: x):
            runner.last(rows.inputs, loops, rows.loss_mask)
        kept.append(sum(size * times for size, times in numbers.items()))
    assert kept[1] < kept[0] / 10


def test_a_resumed_run_stays_divided_into_parts_and_reports_it_once(runs, monkeypatch, capsys):
    """A resumed run divides its batches as before, so its weights equal those of an uninterrupted run bit for bit."""
    recipe = replace(PLAIN, steps=4)
    monkeypatch.setattr(cpu, "choose_runner", lambda model, kinds: TwoRowRunner(model))
    whole, _ = train(recipe, runs / "whole"), capsys.readouterr()
    stop_at(monkeypatch, [3], lambda: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        train(recipe, progress=Progress())
    stopped = train(recipe, progress=Progress())
    assert read_outcome(stopped) == read_outcome(whole) and stopped.about()["parts"] == 4
    note = "plain: memory does not hold a batch: from step 1 on, 6 rows run in 4 parts"
    assert capsys.readouterr().err.count(note) == 1
    monkeypatch.undo()
    assert "parts" not in Trainer(PLAIN, CPU).about()


RAISING_FUNCTIONS = [exhaust_memory, raise_cuda_error, raise_memory_error]


@pytest.mark.parametrize("raise_error", RAISING_FUNCTIONS)
def test_a_single_row_that_does_not_fit_gives_a_usage_error(monkeypatch, raise_error):
    trainee = Trainer(PLAIN, CPU)
    monkeypatch.setattr(Trainer, "objective_losses", raise_error)
    with pytest.raises(UsageError, match="plain: memory does not hold 1 of 6 rows at a time: reduce batch"):
        trainee.advance()
    together = stacked.Stack([SimpleNamespace(trainer=trainee, run=SimpleNamespace(recipe=PLAIN))], Progress())
    monkeypatch.setattr(stacked, "advance_together", raise_error)
    with pytest.raises(UsageError, match="plain: memory does not hold 1 seeds at once: stack fewer, or omit"):
        together.advance()


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        ("evaluate looped-parity --lengths 4 --samples 2", "--lengths, --samples"),
        ("attack looped-parity --tries 4", "--lengths"),
        ("solve looped-parity 101", "the problem's size"),
        (
            "train looped-parity steps=2 batch=4 watch.every=0 --samples 2",
            "batch, lengths.top, --lengths, --samples, --jobs",
        ),
        ("verify looped-parity --lengths 4 --samples 2", "--lengths, --samples"),
    ],
)
def test_a_command_that_runs_out_of_memory_says_what_to_reduce(command, settings, monkeypatch, capsys, runs):
    for module, raise_error in zip(("answers", "scores", "attack"), RAISING_FUNCTIONS, strict=True):
        monkeypatch.setattr(f"lengthwise.evaluation.{module}.predict_by_rules", raise_error)
    assert entry._run(entry.parse(command.split())) == 2
    kept = "; the same command continues from here" if command.startswith("train") else ""
    *_, last = capsys.readouterr().err.splitlines()  # a slow machine shows progress before it
    assert last == f"lengthwise: out of memory: reduce {settings}{kept}"


def test_other_runtime_errors_are_not_reported_as_lack_of_memory(monkeypatch):
    fail = Mock(side_effect=RuntimeError("mat1 and mat2 shapes cannot be multiplied"))  # not raised in a user's file
    monkeypatch.setattr("lengthwise.evaluation.scores.predict_by_rules", fail)
    with pytest.raises(RuntimeError, match="mat1"):
        entry._run(entry.parse(["evaluate", "looped-parity", "--lengths", "4", "--samples", "2"]))


# Devices


@pytest.mark.parametrize(
    ("has_cuda", "has_mps", "expected_device"), [(1, 1, "cuda"), (1, 0, "cuda"), (0, 1, "mps"), (0, 0, "cpu")]
)
def test_device_auto_is_cuda_else_mps_else_the_cpu(has_cuda, has_mps, expected_device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(has_cuda))
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: bool(has_mps))
    monkeypatch.setattr(torch, "zeros", lambda *_, device: torch.ones(1))  # as if the device existed
    assert choose_device("auto").type == expected_device


def test_the_gpu_with_the_fewest_jobs_is_chosen():
    with pytest.MonkeyPatch.context() as patch:
        for count in (0, 1):
            patch.setattr(torch.cuda, "device_count", lambda count=count: count)
            assert find_least_used_gpu([]) is None
        patch.setattr(torch.cuda, "device_count", lambda: 3)
        chosen = [find_least_used_gpu(taken) for taken in ([], [0], [0, 1], [0, 1, 2], [2, 1, 0, 0, 1])]
        assert chosen == [0, 1, 2, 0, 2]


def test_runs_are_spread_over_gpus(monkeypatch):
    """Seven runs, four at a time, are spread over three GPUs, at most two on each; an explicit device is kept."""
    started = []

    def start_process(words, **_):
        started.append(SimpleNamespace(words=words, status=None, poll=None, stdin=io.BytesIO()))
        started[-1].poll = lambda process=started[-1]: process.status
        return started[-1]

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 3)
    monkeypatch.setattr(launchers, "subprocess", SimpleNamespace(Popen=start_process, PIPE=None, DEVNULL=None))
    executor, jobs, used = Local().build_executor(4), [], []
    for number in range(7):
        if len(started) >= 4:
            started[number - 4].status = 0
        jobs += executor.submit([["train", f"run-{number}", "--device", "auto" if number % 2 else "cuda", "--quiet"]])
        running = [one.words[one.words.index("--device") + 1] for one in started if one.status is None]
        used.append(Counter(running))
    assert set(used[-1]) == {"cuda:0", "cuda:1", "cuda:2"} and max(max(each.values()) for each in used) == 2
    jobs += executor.submit([["train", "x", "--device", "cpu"], ["train", "y", "--device", "cuda:2"]])
    assert [one.words[-1] for one in started[-2:]] == ["cpu", "cuda:2"]
    assert started[0].words[:4] == [sys.executable, "-P", "-m", "lengthwise"]
    for job in jobs:
        job.close()
