"""Faults that a run must survive or refuse: foreign code, two writers, orphaned processes, divergence, failed runs."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from conftest import LONG
from filelock import FileLock
from small_runs import SMALL_RECIPE
from torch import nn
from torture import races
from torture import signals as signal_cases

import lengthwise as lw
from lengthwise.base import process
from lengthwise.base.errors import Diverged, UsageError
from lengthwise.experiment.optim import AdamW
from lengthwise.jobs.pool import JobPool
from lengthwise.runs.run import Run
from lengthwise.training import loop
from lengthwise.training.loop import train

FREQUENT_SAVES = ["--quiet", "--lengths", "2", "--samples", "4", "--save-every", "0.2"]


def start_lengthwise(*words, **options):
    command = [sys.executable, "-P", "-m", "lengthwise", *map(str, words)]
    options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, preexec_fn=reset_signals, **options)


def reset_signals():
    """Restore default signal handling, as the tests may run with signals ignored (nohup)."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def wait_until(condition, seconds=90):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.05)


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def list_child_pids(pid):
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]


# Foreign code


def test_files_of_the_working_folder_are_not_imported_as_libraries(runs, tmp_path):
    """Neither the process nor its children import libraries from the working folder; ``--import`` searches it last.
    Children write their checkpoints and end if the parent is killed."""
    for name in ("random", "matplotlib", "json", "safetensors"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w')")
    (tmp_path / "own.py").write_text("import random; assert 'tmp' not in str(random.__file__)")
    words = ["train", "looped-parity", "steps=1000000", "watch.every=0", "--seeds", "2", "--jobs", "2", *FREQUENT_SAVES]
    parent = start_lengthwise(*words, "--import", "own", cwd=tmp_path)
    wait_until(lambda: len(list(runs.glob("*/state.pt"))) == 2)
    known = list_child_pids(parent.pid)
    assert len(known) == 2
    parent.kill()
    parent.communicate(timeout=90)
    wait_until(lambda: not any(map(is_alive, known)), 60)
    assert not (tmp_path / "ran").exists()


# Concurrent runs


def test_a_lock_is_reentrant_and_waiting_for_it_trains_the_run(monkeypatch):
    run = Run.of(SMALL_RECIPE)
    with run.lock(), run.lock():  # the process that holds the lock may take it again
        assert (run.folder / ".owner").exists()
    assert not (run.folder / ".owner").exists()
    with FileLock(run.folder / ".lock"):
        (run.folder / ".owner").write_bytes(b"\xff")
        with pytest.raises(UsageError, match=r"\.owner: cannot be read \(not UTF-8 text\)$"), run.lock():
            pass
    assert train(SMALL_RECIPE, wait=True).done


def test_time_counts_compiling_but_not_waiting_for_another_process(monkeypatch):
    read, passed, lock = time.perf_counter, [0.0], Run.lock
    monkeypatch.setattr("time.perf_counter", lambda: read() + sum(passed))
    monkeypatch.setattr(loop, "prepare_steps", lambda *_, **__: passed.append(1000.0))
    monkeypatch.setattr(Run, "lock", lambda run, **options: passed.append(50_000.0) or lock(run, **options))
    assert 1000 <= train(SMALL_RECIPE).about()["wall_s"] < 2000


# Signals


@pytest.mark.parametrize("number", process.STOP_SIGNALS, ids=lambda number: number.name)
def test_stop_signals_act_as_ctrl_c(number):
    before = {known: signal.getsignal(known) for known in process.STOP_SIGNALS}
    try:
        reset_signals()
        process.install_handlers()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    finally:
        for known, handler in before.items():
            signal.signal(known, handler)


def test_signals_and_races_cause_no_faults(tmp_path):
    cases = [(signal_cases, "parent-SIGTERM-later-0"), (races, "killed-looped-0")]
    for campaign, case in cases[: 1 + LONG]:
        assert campaign.run_case(case, Random(0), tmp_path / case / "work")["faults"] == []


# Divergence


class NaNInTraining(nn.Embedding):
    def forward(self, tokens):
        return super().forward(tokens) * (math.nan if self.training else 1)


def test_a_loss_that_was_never_finite_points_to_the_user_s_code():
    message = r"step \d+; none was finite before; look for NaN and infinity in your own code, or try a lower"
    with pytest.raises(Diverged, match=message):
        lw.train(NaNInTraining(4, 4), task="parity", lengths=4, steps=20, quiet=True)


def test_divergence_is_reported_at_once_and_only_finite_values_are_stored():
    wild = replace(SMALL_RECIPE, name="wild", optimizer=AdamW(rate=1e30), steps=100)
    with pytest.raises(Diverged, match=r"not finite at step \d+; .*try a lower optimizer.rate than 1e\+30$"):
        train(wild, save_every=0)
    run = Run.of(wild)
    assert not run.done
    for row in run.rows("metrics"):
        assert math.isfinite(row["loss"])
    state = run.load_state()
    assert state is None or all(tensor.isfinite().all() for tensor in state["model"].values())


@pytest.mark.usefixtures("jobs_in_process")
def test_a_failed_run_does_not_stop_other_runs():
    wild, tame = replace(SMALL_RECIPE, name="wild", optimizer=AdamW(rate=1e30)), SMALL_RECIPE
    both = [Run.of(wild), Run.of(tame)]
    with JobPool(both, lambda _: ["--lengths", "2", "--samples", "4"], jobs=1) as fleet:
        wait_until(lambda: not fleet.poll())
    assert not both[0].done
    assert both[1].done
    assert "not finite" in json.loads((both[0].folder / "failed.json").read_text())["reason"]
    with pytest.raises(UsageError, match=r"^[^\n]*wild-\w+: wild: the loss is not finite[^\n]*$"):
        fleet.raise_failures()


def test_ignored_signals_stay_ignored_in_training():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with loop.catch_stop_signals() as stopped:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stopped()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_run_that_another_process_trains_is_not_called_failed(runs, monkeypatch):
    run = Run.of(SMALL_RECIPE)

    def refuse_lock(*_, **__):
        raise UsageError("process 1 on a machine works on this run")

    pool = JobPool([run], lambda _: [])
    with monkeypatch.context() as patch:
        patch.setattr(Run, "lock", refuse_lock)
        pool._record_failure([run], "it was locked")
    assert not (run.folder / "failed.json").exists()
    pool._record_failure([run], "it was lost")
    assert (run.folder / "failed.json").exists()
